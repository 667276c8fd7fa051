package wire

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestParseFollowBody(t *testing.T) {
	consumer := "c"
	for _, c := range []struct {
		body string
		want FollowBody
	}{
		{`{"streams":[{"key":""}]}`, FollowBody{Streams: []FollowStream{{Key: []byte{}}}}},
		{`{"streams":[{"key":"aw==","startSeq":0},{"key":"aw","startSeq":null}],"prefixes":null,"x":[{"streams":1}]}`,
			FollowBody{Streams: []FollowStream{{Key: []byte("k"), Given: true}, {Key: []byte("k")}}}},
		{`{"prefixes":[{"startSeq":18446744073709551615,"prefix":"aw","key":7}],"consumer":"c"}`,
			FollowBody{Prefixes: []FollowStream{{Key: []byte("k"), Start: 1<<64 - 1, Given: true}}, Consumer: &consumer}},
		{`{"startSeq":7,"sinceMs":1700000000000,"streams":[{"key":"aw","sinceMs":"ignored"}],"fromNow":false}`,
			FollowBody{Streams: []FollowStream{{Key: []byte("k")}}, Start: 7, SinceMs: 1700000000000}},
		{`{"fromNow":true,"streams":[{"key":"aw"}],"startSeq":null,"sinceMs":null}`,
			FollowBody{Streams: []FollowStream{{Key: []byte("k")}}, FromNow: true}},
	} {
		got, err := ParseFollowBody([]byte(c.body), 2, 1)
		require.NoError(t, err, c.body)
		require.Equal(t, &c.want, got, c.body)
	}
}

func TestParseFollowBodyRefuses(t *testing.T) {
	for body, want := range map[string]string{
		``:                                 "the body is empty",
		`{}`:                               "streams or prefixes are required",
		`{"streams":[],"prefixes":[]}`:     "streams or prefixes are required",
		`{"consumer":"c"}`:                 "streams or prefixes are required",
		`[]`:                               "an object is expected, not an array",
		`{"streams":{}}`:                   "/streams: an array is expected, not an object",
		`{"streams":[[]]}`:                 "/streams/0: an object is expected, not an array",
		`{"streams":[null]}`:               "/streams/0: an object is expected, not null",
		`{"streams":[{}]}`:                 "streams[0]: key is required",
		`{"streams":[{"key":null}]}`:       "streams[0]: key is required",
		`{"prefixes":[{"key":"aw"}]}`:      "prefixes[0]: prefix is required",
		`{"streams":[{"key":"aw"},1]}`:     "/streams/1: an object is expected, not a number",
		`{"streams":[{"key":7}]}`:          "/streams/0/key: a base64 string is expected, not a number",
		`{"streams":[{"key":"ax"}]}`:       "/streams/0/key: not base64",
		`{"streams":[{"key":"YWJj"}]}`:     "streams[0]: key has 3 bytes; at most 2 are allowed",
		`{"prefixes":[{"prefix":"YWJj"}]}`: "prefixes[0]: prefix has 3 bytes; at most 2 are allowed",
		`{"streams":[{"key":"aw","startSeq":-1}]}`:                                     "/streams/0/startSeq: an integer from 0 to 2^64-1 is expected",
		`{"streams":[{"key":"aw","startSeq":"1"}]}`:                                    "/streams/0/startSeq: a number is expected, not a string",
		`{"streams":[{"key":"aw","key":"aw"}]}`:                                        "repeated field",
		`{"streams":[{"key":"aw"}],"streams":[]}`:                                      "repeated field",
		`{"streams":[{"key":"aw"}]}{}`:                                                 "more than one JSON value",
		`{"streams":[{"key":"aw"}],"consumer":1}`:                                      "/consumer: a string is expected, not a number",
		`{"streams":[{"key":"aw"}],"fromNow":1}`:                                       "/fromNow: true or false is expected, not a number",
		`{"streams":[{"key":"aw"}],"sinceMs":-1}`:                                      "/sinceMs: an integer from 0 to 2^64-1 is expected",
		`{"streams":[{"key":"aw"}],"startSeq":0,"fromNow":true}`:                       "startSeq and fromNow exclude each other",
		`{"streams":[{"key":"aw"}]`:                                                    "unexpected EOF",
		`{"streams":[{"key":"a"},{"key":"aw"}`:                                         "not base64",
		`{"streams":[` + strings.Repeat(`{"key":""},`, 3) + `{"key":""}]}`:             "more than 3 streams and prefixes",
		`{"streams":[{"key":""},{"key":""}],"prefixes":[{"prefix":""},{"prefix":""}]}`: "more than 3 streams and prefixes",
	} {
		_, err := ParseFollowBody([]byte(body), 3, 2)
		require.ErrorContains(t, err, want, body)
	}
}

// A large body, or one that is mostly structure, takes no more than was foretold.
func TestFollowMemory(t *testing.T) {
	const streams = 200_000
	for name, stream := range map[string]string{"bare": `{"key":""},`, "keys": `{"key":"c29tZS9sb25nZXIva2V5LzAwMDAwMDAwMQ==","startSeq":123456},`} {
		t.Run(name, func(t *testing.T) {
			body := []byte(`{"streams":[` + strings.TrimSuffix(strings.Repeat(stream, streams), ",") + `]}`)
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			b, err := ParseFollowBody(body, streams, 100)
			runtime.ReadMemStats(&after)
			require.NoError(t, err)
			require.Len(t, b.Streams, streams)
			live := int64(cap(b.Streams))*followStreamBytes + int64(len(body))*3/4
			require.LessOrEqual(t, live, FollowMemory(int64(len(body)), streams))
			// What growing left behind counts here too: lists of all sizes.
			require.LessOrEqual(t, int64(after.TotalAlloc-before.TotalAlloc), 2*FollowMemory(int64(len(body)), streams))
		})
	}
}

func drawFollow(t *rapid.T) *FollowBody {
	stream := rapid.Custom(func(t *rapid.T) FollowStream {
		s := FollowStream{Key: append([]byte{}, rapid.SliceOfN(rapid.Byte(), 0, 5).Draw(t, "key")...), Given: rapid.Bool().Draw(t, "given")}
		if s.Given {
			s.Start = rapid.Uint64().Draw(t, "start")
		}
		return s
	})
	b := &FollowBody{Streams: rapid.SliceOfN(stream, 0, 4).Draw(t, "streams"), Prefixes: rapid.SliceOfN(stream, 0, 4).Draw(t, "prefixes")}
	if rapid.Bool().Draw(t, "has consumer") {
		c := rapid.StringN(0, 8, 8).Draw(t, "consumer")
		b.Consumer = &c
	}
	if b.FromNow = rapid.Bool().Draw(t, "from now"); !b.FromNow {
		b.Start = rapid.Uint64().Draw(t, "default start")
	}
	b.SinceMs = rapid.Uint64().Draw(t, "since")
	return b
}

func TestFollowBodyRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := drawFollow(t)
		got, err := ParseFollowBody(b.AppendJSON(nil), 8, 5)
		if len(b.Streams)+len(b.Prefixes) == 0 {
			require.Error(t, err)
			return
		}
		require.NoError(t, err)
		require.Equal(t, b.Consumer, got.Consumer)
		require.Equal(t, []any{b.Start, b.FromNow, b.SinceMs}, []any{got.Start, got.FromNow, got.SinceMs})
		requireEqualStreams(t, b.Streams, got.Streams)
		requireEqualStreams(t, b.Prefixes, got.Prefixes)
	})
}

func requireEqualStreams(t require.TestingT, want, got []FollowStream) {
	require.Len(t, got, len(want))
	for i := range want {
		require.Equal(t, want[i], got[i])
	}
}

func FuzzFollowBody(f *testing.F) {
	for _, s := range []string{
		`{"streams":[{"key":"aw==","startSeq":3},{"key":""}],"prefixes":[{"prefix":"aw"}],"consumer":"c"}`,
		`{"streams":[{"key":"aw"}],"startSeq":3,"fromNow":false,"sinceMs":5}`, `{"streams":[{"key":"aw"}],"fromNow":true}`,
		`{"streams":[{"key":"\/\/8\u003d"}],"x":[[[{}]]]}`, `{"streams":[{"key":"aw","key":"aw"}]}`, `{"prefixes":[`, `[]`, `{}{}`, ``,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		before := string(data)
		b, err := ParseFollowBody(data, 100, 100)
		require.Equal(t, before, string(data), "the body is left as it was")
		if err != nil {
			return
		}
		again, err := ParseFollowBody(b.AppendJSON(nil), 100, 100)
		require.NoError(t, err)
		requireEqualStreams(t, b.Streams, again.Streams)
		requireEqualStreams(t, b.Prefixes, again.Prefixes)
	})
}

func BenchmarkParseFollowBody(b *testing.B) {
	body := FollowBody{}
	for i := range 100_000 {
		body.Streams = append(body.Streams, FollowStream{Key: fmt.Appendf(nil, "key-%012d", i), Given: true})
	}
	data := body.AppendJSON(nil)
	b.SetBytes(int64(len(data)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := ParseFollowBody(data, 100_000, 100); err != nil {
			b.Fatal(err)
		}
	}
}
