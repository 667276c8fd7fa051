package wire

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"
)

func TestCursorsBodyJSON(t *testing.T) {
	for _, c := range []struct {
		in   string
		want CursorsBody
	}{
		{`{}`, CursorsBody{}},
		{`{"cursors":null,"force":null,"x":[1]}`, CursorsBody{}},
		{`{"cursors":[],"force":false}`, CursorsBody{}},
		{`{"cursors":[{"key":"aw==","nextSequence":7},{"nextSequence":18446744073709551615,"key":"","y":{}}],"force":true}`,
			CursorsBody{Cursors: []KeyCursor{{[]byte("k"), 7}, {[]byte{}, 1<<64 - 1}}, Force: true}},
	} {
		var b CursorsBody
		require.NoError(t, b.UnmarshalJSON([]byte(c.in)), c.in)
		require.Equal(t, c.want.Force, b.Force)
		require.ElementsMatch(t, c.want.Cursors, b.Cursors)
	}
}

func TestCursorsBodyJSONErrors(t *testing.T) {
	for in, want := range map[string]string{
		``:                           "the body is empty",
		`[]`:                         "an object is expected, not an array",
		`{"cursors":{}}`:             "/cursors: an array is expected, not an object",
		`{"cursors":[null]`:          "/cursors/0: an object is expected, not null",
		`{"cursors":[{"key":"aw"}]}`: "/cursors/0: key and nextSequence are required",
		`{"cursors":[{"key":null,"nextSequence":1}]}`:            "/cursors/0: key and nextSequence are required",
		`{"cursors":[{"nextSequence":1}]}`:                       "/cursors/0: key and nextSequence are required",
		`{"cursors":[{"key":"ax","nextSequence":1}]}`:            "/cursors/0/key: not base64",
		`{"cursors":[{"key":"aw","nextSequence":-1}]}`:           "/cursors/0/nextSequence: an integer from 0 to 2^64-1 is expected",
		`{"cursors":[{"key":"aw","nextSequence":"1"}]}`:          "/cursors/0/nextSequence: a number is expected, not a string",
		`{"cursors":[{"key":"aw","key":"aw","nextSequence":1}]}`: "repeated field",
		`{"force":1}`:                 "/force: true or false is expected, not a number",
		`{"force":true,"force":true}`: "repeated field",
		`{}{}`:                        "more than one JSON value",
		`{"cursors":[` + strings.Repeat(`{"key":"","nextSequence":0},`, MaxCursors+1) + `]}`: "more than 10000 cursors",
	} {
		var b CursorsBody
		require.ErrorContains(t, b.UnmarshalJSON([]byte(in)), want, in)
	}
}

func compareCursors(t require.TestingT, data []byte) {
	var m CursorsRequest
	wantErr := proto.Unmarshal(data, &m)
	var b CursorsBody
	err := b.UnmarshalProtobuf(data)
	if wantErr != nil {
		require.Error(t, err, "generated code says %v", wantErr)
		return
	}
	require.NoError(t, err)
	require.Equal(t, m.Force, b.Force)
	require.Len(t, b.Cursors, len(m.Cursors))
	for i, c := range m.Cursors {
		require.Equal(t, string(c.Key), string(b.Cursors[i].Key))
		require.Equal(t, c.NextSequence, b.Cursors[i].Next)
	}
}

func TestCursorsBodyProtobufAgainstGeneratedCode(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := &CursorsRequest{Force: rapid.Bool().Draw(t, "force")}
		for range rapid.IntRange(0, 4).Draw(t, "cursors") {
			m.Cursors = append(m.Cursors, &Cursor{Key: rapid.SliceOfN(rapid.Byte(), 0, 20).Draw(t, "key"), NextSequence: rapid.Uint64().Draw(t, "next")})
		}
		data, err := proto.Marshal(m)
		require.NoError(t, err)
		if len(data) > 0 && rapid.Bool().Draw(t, "damage") {
			data[rapid.IntRange(0, len(data)-1).Draw(t, "at")] = rapid.Byte().Draw(t, "byte")
		}
		compareCursors(t, data)
	})
}

func FuzzCursorsBodyProtobuf(f *testing.F) {
	data, err := proto.Marshal(&CursorsRequest{Cursors: []*Cursor{{Key: []byte("k"), NextSequence: 1 << 63}, {}}, Force: true})
	require.NoError(f, err)
	f.Add(data)
	f.Add([]byte{0x0a, 0x80})             // a length that is cut
	f.Add([]byte{0x0a, 0x02, 0x08, 0x01}) // a number where a key belongs
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) > MaxCursors { // two bytes a cursor, below the bound
			return
		}
		compareCursors(t, data)
	})
}

func FuzzCursorsBodyJSON(f *testing.F) {
	f.Add([]byte(`{"cursors":[{"key":"aw==","nextSequence":7}],"force":true}`))
	f.Add([]byte(`{"cursors":[{"key":"\/\/8\u003d","nextSequence":18446744073709551615}],"x":[{}]}`))
	f.Add([]byte(`{"cursors":[`))
	f.Fuzz(func(t *testing.T, data []byte) {
		var b CursorsBody
		if b.UnmarshalJSON(data) != nil {
			return
		}
		total := 0
		resp := &CursorsResponse{}
		for _, c := range b.Cursors {
			total += len(c.Key)
			resp.Cursors = append(resp.Cursors, &Cursor{Key: c.Key, NextSequence: c.Next})
		}
		require.LessOrEqual(t, total, len(data))
		// An answer has the form of a request.
		var again CursorsBody
		require.NoError(t, again.UnmarshalJSON(AppendJSON(nil, resp)))
		require.Equal(t, b.Cursors, again.Cursors)
	})
}

func TestTooManyCursors(t *testing.T) {
	most := strings.Repeat("\x0a\x00", MaxCursors)
	var b CursorsBody
	require.NoError(t, b.UnmarshalProtobuf([]byte(most)))
	require.Len(t, b.Cursors, MaxCursors)
	require.ErrorIs(t, b.UnmarshalProtobuf([]byte(most+"\x0a\x00")), ErrTooManyCursors)
}

func TestTooManyConditions(t *testing.T) {
	most := strings.Repeat("\xa2\x06\x00", MaxExpected)
	var b AppendBody
	require.NoError(t, b.UnmarshalProtobuf([]byte(most)))
	require.ErrorIs(t, b.UnmarshalProtobuf([]byte(most+"\xa2\x06\x00")), ErrTooManyExpected)
	most = `{"expectedNext":[{"key":"","sequence":0}` + strings.Repeat(`,{"key":"","sequence":0}`, MaxExpected-1)
	require.NoError(t, b.UnmarshalJSON([]byte(most+"]}")))
	require.ErrorIs(t, b.UnmarshalJSON([]byte(most+`,{"key":"","sequence":0}]}`)), ErrTooManyExpected)
}

func TestConditionsAndProducersAreValidated(t *testing.T) {
	text := func(s string) *string { return &s }
	seq := new(uint64)
	for _, c := range []struct {
		b    AppendBody
		want string
	}{
		{AppendBody{ExpectedNext: []ExpectedNext{{}, {Key: []byte("abc"), Sequence: 1}}}, ""},
		{AppendBody{ExpectedNext: []ExpectedNext{{}, {Key: []byte("abcd")}}}, "expectedNext[1]: key has 4 bytes; at most 3 are allowed"},
		{AppendBody{ProducerID: text("p"), ProducerSeq: seq}, ""},
		{AppendBody{ProducerID: text(strings.Repeat("p", 128)), ProducerSeq: seq}, ""},
		{AppendBody{ProducerID: text(strings.Repeat("p", 129)), ProducerSeq: seq}, "producerId has 129 bytes; it must have 1 to 128"},
		{AppendBody{ProducerID: text(""), ProducerSeq: seq}, "producerId has 0 bytes; it must have 1 to 128"},
		{AppendBody{ProducerID: text("p")}, "producerId without producerSeq"},
		{AppendBody{ProducerSeq: seq}, "producerSeq without producerId"},
	} {
		err := c.b.Validate(3, 4)
		if c.want == "" {
			require.NoError(t, err)
			continue
		}
		require.EqualError(t, err, c.want)
	}
}

func TestConsumersAreValidated(t *testing.T) {
	for _, good := range []string{"c", "mail out", "é", "..", strings.Repeat("c", 128)} {
		require.NoError(t, ValidateConsumer(good))
	}
	for bad, want := range map[string]string{
		"": "consumer has 0 bytes; it must have 1 to 128", strings.Repeat("c", 129): "consumer has 129 bytes; it must have 1 to 128",
		"a/b": "consumer holds a slash", "a\n": "consumer holds a control character", "\u0085": "consumer holds a control character",
		"\xff": "consumer is not UTF-8",
	} {
		require.EqualError(t, ValidateConsumer(bad), want)
	}
}

func BenchmarkCursorsBodyJSON(b *testing.B) {
	resp := &CursorsResponse{}
	for i := range uint64(1000) {
		resp.Cursors = append(resp.Cursors, &Cursor{Key: []byte("some/key/0001"), NextSequence: i})
	}
	data := AppendJSON(nil, resp)
	b.SetBytes(int64(len(data)))
	b.ReportAllocs()
	for b.Loop() {
		var body CursorsBody
		if err := body.UnmarshalJSON(data); err != nil {
			b.Fatal(err)
		}
	}
}
