package wire

import (
	"encoding/json"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"
)

func appendBool(dst []byte, v bool) []byte   { return strconv.AppendBool(dst, v) }
func appendUint(dst []byte, v uint64) []byte { return strconv.AppendUint(dst, v, 10) }

func TestFormatOf(t *testing.T) {
	for _, c := range []struct {
		header []string
		want   Format
	}{
		{nil, JSON},
		{[]string{""}, JSON},
		{[]string{"*/*"}, JSON},
		{[]string{"application/json"}, JSON},
		{[]string{"application/protobuf"}, Protobuf},
		{[]string{"Application/Protobuf; charset=x"}, Protobuf},
		{[]string{"application/json, application/protobuf;q=0.5"}, Protobuf},
		{[]string{"application/json", "application/protobuf"}, Protobuf},
		{[]string{"application/protobuf+json"}, JSON},
		{[]string{"application/protobuf, application/protobuf+json"}, JSON},
		{[]string{"application/x-protobuf"}, JSON},
	} {
		require.Equal(t, c.want, FormatOf(c.header), "%q", c.header)
	}
	require.Equal(t, "application/json", JSON.ContentType())
	require.Equal(t, "application/protobuf", Protobuf.ContentType())
}

func TestJSONGolden(t *testing.T) {
	for _, c := range []struct {
		m    proto.Message
		want string
	}{
		{&AppendResponse{Status: StatusSuccess, RecordsAppended: 2, StartSequence: 18446744073709551615, TimestampMs: 1700000000000},
			`{"status":"success","recordsAppended":2,"startSequence":18446744073709551615,"timestampMs":1700000000000}`},
		{&AppendResponse{Status: StatusSuccess}, `{"status":"success","recordsAppended":0,"startSequence":0,"timestampMs":0}`},
		{&KeysResponse{Status: StatusSuccess}, `{"status":"success","keys":[]}`},
		{&KeysResponse{Status: StatusSuccess, Keys: []*Key{{}, {Key: []byte("a")}}, NextKey: []byte("a")},
			`{"status":"success","keys":[{"key":""},{"key":"YQ=="}],"nextKey":"YQ=="}`},
		{&KeysResponse{Status: StatusSuccess, Keys: []*Key{{}}, NextKey: []byte{}}, `{"status":"success","keys":[{"key":""}],"nextKey":""}`},
		{&SegmentsResponse{Status: StatusSuccess}, `{"status":"success","segments":[]}`},
		{&SegmentsResponse{Status: StatusSuccess, Segments: []*Segment{
			{Id: 1, LastId: proto.Uint32(3), StartTimeMs: -5, EndSeq: proto.Uint64(7), Sealed: true, Records: 7, Bytes: 9, Runs: 3}, {Id: 2, StartSeq: 7}}},
			`{"status":"success","segments":[` +
				`{"id":1,"lastId":3,"startSeq":0,"startTimeMs":-5,"endSeq":7,"sealed":true,"records":7,"bytes":9,"runs":3},` +
				`{"id":2,"startSeq":7,"startTimeMs":0,"sealed":false,"records":0,"bytes":0,"runs":0}]}`},
		{&CountResponse{Status: StatusSuccess}, `{"status":"success","count":0}`},
		{&CursorsResponse{Status: StatusSuccess}, `{"status":"success","cursors":[]}`},
		{&CursorsResponse{Status: StatusSuccess, Cursors: []*Cursor{{}, {Key: []byte("a"), NextSequence: 1<<64 - 1}}, NextKey: []byte{}},
			`{"status":"success","cursors":[{"key":"","nextSequence":0},{"key":"YQ==","nextSequence":18446744073709551615}],"nextKey":""}`},
		{&DeleteCursorsResponse{Status: StatusSuccess}, `{"status":"success"}`},
		{&ConsumersResponse{Status: StatusSuccess}, `{"status":"success","consumers":[]}`},
		{&ConsumersResponse{Status: StatusSuccess, Consumers: []*Consumer{{Consumer: `a"b`}, {Consumer: "é"}}, NextConsumer: proto.String("é")},
			`{"status":"success","consumers":[{"consumer":"a\"b"},{"consumer":"é"}],"nextConsumer":"é"}`},
		{&CountResponse{Status: StatusSuccess, Count: 1 << 63}, `{"status":"success","count":9223372036854775808}`},
	} {
		got := AppendMessage([]byte("x"), JSON, c.m)
		require.Equal(t, "x"+c.want, string(got))
		require.True(t, json.Valid(got[1:]))

		back := c.m.ProtoReflect().New().Interface()
		require.NoError(t, proto.Unmarshal(AppendMessage(nil, Protobuf, c.m), back))
		require.True(t, proto.Equal(c.m, back))
	}
	require.Panics(t, func() { AppendJSON(nil, &Key{}) })
}

func TestErrorBody(t *testing.T) {
	for _, c := range []struct {
		e    ErrorBody
		want string
	}{
		{ErrorBody{Status: StatusError, Message: `a "quoted" <name>`}, `{"status":"error","message":"a \"quoted\" <name>"}`},
		{ErrorBody{Status: StatusError, Message: "late", Outcome: "unknown"}, `{"status":"error","message":"late","outcome":"unknown"}`},
		{ErrorBody{Status: StatusError, Message: "m", Key: []byte{}, LastSequence: proto.Uint64(0)}, `{"status":"error","message":"m","key":"","lastSequence":0}`},
		{ErrorBody{Status: StatusError, Message: "m", Key: []byte("k"), LastSequence: proto.Uint64(1<<64 - 1)},
			`{"status":"error","message":"m","key":"aw==","lastSequence":18446744073709551615}`},
		{ErrorBody{Status: StatusError, Message: "m", LastProducerSeq: proto.Uint64(7)}, `{"status":"error","message":"m","lastProducerSeq":7}`},
		{ErrorBody{Status: StatusError, Message: "key \xff\n"}, "{\"status\":\"error\",\"message\":\"key \uFFFD\\n\"}"},
	} {
		got := c.e.AppendJSON(nil)
		require.Equal(t, c.want, string(got))
		back, err := ParseErrorBody(got)
		require.NoError(t, err)
		require.Equal(t, strings.ToValidUTF8(c.e.Message, "\uFFFD"), back.Message)
		c.e.Message = back.Message
		require.Equal(t, c.e, back)
	}
	_, err := ParseErrorBody([]byte("<html>"))
	require.ErrorContains(t, err, "decode error answer")
}

// encodeScan runs the encoder over a message.
func encodeScan(dst []byte, f Format, m *ScanResponse) []byte {
	var e ScanEncoder
	e.Begin(dst, f, m.Key)
	for _, v := range m.Values {
		before := len(e.buf)
		e.Add(v.Sequence, v.TimestampMs, v.Value)
		if n := len(e.buf) - before; n > e.SizeOf(len(v.Value)) {
			panic("SizeOf is too small")
		}
	}
	return e.End(m.NextSequence, m.GetFirstSequence())
}

func TestScanEncoderGolden(t *testing.T) {
	m := &ScanResponse{
		Key: []byte{0xff}, NextSequence: 9, FirstSequence: proto.Uint64(0),
		Values: []*Value{{}, {Sequence: 8, Value: []byte("val"), TimestampMs: -1}},
	}
	require.Equal(t, `{"status":"success","key":"/w==","values":[`+
		`{"sequence":0,"value":"","timestampMs":0},{"sequence":8,"value":"dmFs","timestampMs":-1}],`+
		`"nextSequence":9,"firstSequence":0}`, string(encodeScan(nil, JSON, m)))
	require.Equal(t, `{"status":"success","key":"","values":[],"nextSequence":0,"firstSequence":3}`,
		string(encodeScan(nil, JSON, &ScanResponse{FirstSequence: proto.Uint64(3)})))
}

func drawScan(t *rapid.T) *ScanResponse {
	bytes := rapid.SliceOfN(rapid.Byte(), 0, 200)
	m := &ScanResponse{
		Status: StatusSuccess, Key: append([]byte{}, bytes.Draw(t, "key")...),
		NextSequence: rapid.Uint64().Draw(t, "next"), FirstSequence: proto.Uint64(rapid.Uint64().Draw(t, "first")),
	}
	for range rapid.IntRange(0, 5).Draw(t, "values") {
		m.Values = append(m.Values, &Value{
			Sequence: rapid.Uint64().Draw(t, "sequence"), TimestampMs: rapid.Int64().Draw(t, "timestamp"), Value: bytes.Draw(t, "value"),
		})
	}
	return m
}

func TestScanEncoderAgainstGeneratedCode(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := drawScan(t)
		var back ScanResponse
		require.NoError(t, proto.Unmarshal(encodeScan(nil, Protobuf, m), &back))
		require.True(t, proto.Equal(m, &back), "%v\n%v", m, &back)
	})
}

func TestScanEncoderAgainstJSONLibrary(t *testing.T) {
	type value struct {
		Sequence    uint64
		Value       []byte
		TimestampMs int64
	}
	type scan struct {
		Status                      string
		Key                         []byte
		Values                      []value
		NextSequence, FirstSequence uint64
	}
	rapid.Check(t, func(t *rapid.T) {
		m := drawScan(t)
		want := scan{Status: m.Status, Key: m.Key, NextSequence: m.NextSequence, FirstSequence: *m.FirstSequence, Values: []value{}}
		for _, v := range m.Values {
			want.Values = append(want.Values, value{v.Sequence, append([]byte{}, v.Value...), v.TimestampMs})
		}
		var got scan
		require.NoError(t, json.Unmarshal(encodeScan(nil, JSON, m), &got))
		require.Equal(t, want, got)
	})
}

func TestDecodeQueryBase64(t *testing.T) {
	for _, c := range []struct {
		in, want string
		ok       bool
	}{
		{"", "", true}, {"aw==", "k", true}, {"aw", "k", true},
		{"_-8", "\xff\xef", true}, {"/+8=", "\xff\xef", true}, {"/ 8=", "\xff\xef", true}, {"_ 8", "\xff\xef", true},
		{"ax", "", false}, {"a", "", false}, {"aw=", "", false}, {"a\nw=", "", false}, {"aw==\n", "", false}, {"é", "", false},
	} {
		got, err := DecodeQueryBase64(c.in)
		require.Equal(t, c.ok, err == nil, "%q: %v", c.in, err)
		if c.ok {
			require.Equal(t, []byte(c.want), got, "%q", c.in)
		}
	}
}

func FuzzDecodeQueryBase64(f *testing.F) {
	for _, s := range []string{"", "aw==", "aw", "_-8", "/ 8=", "a\nw="} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got, err := DecodeQueryBase64(s)
		if err != nil {
			return
		}
		again, err := DecodeQueryBase64(strings.Trim(string(appendBytes(nil, got)), `"`))
		require.NoError(t, err)
		require.Equal(t, got, again)
	})
}

// FuzzErrorBody: what parses is written and read again to the same.
func FuzzErrorBody(f *testing.F) {
	f.Add([]byte(`{"status":"error","message":"why","outcome":"unknown"}`))
	f.Add([]byte(`{"status":"error","message":"m","key":"aw==","lastSequence":18446744073709551615,"lastProducerSeq":0}`))
	f.Add([]byte(`{"message":"\ud800","key":null}`))
	f.Add([]byte(`<html>`))
	f.Fuzz(func(t *testing.T, data []byte) {
		e, err := ParseErrorBody(data)
		if err != nil {
			return
		}
		require.LessOrEqual(t, len(e.Key), len(data))
		again, err := ParseErrorBody(e.AppendJSON(nil))
		require.NoError(t, err)
		if e.LastSequence == nil || len(e.Key) == 0 { // the key goes with it, and is never missing then
			require.Empty(t, again.Key)
			e.Key, again.Key = nil, nil
		}
		require.Equal(t, e, again)
	})
}

func benchmarkScan(b *testing.B, f Format) {
	value := []byte(strings.Repeat("v", 1024))
	var buf []byte
	b.ReportAllocs()
	for b.Loop() {
		var e ScanEncoder
		e.Begin(buf[:0], f, []byte("some/key/0001"))
		for i := range uint64(100) {
			e.Add(i+1<<32, 1700000000000, value)
		}
		buf = e.End(1<<32+100, 0)
	}
	b.SetBytes(int64(len(buf)))
}

func BenchmarkScanEncoderProtobuf(b *testing.B) { benchmarkScan(b, Protobuf) }
func BenchmarkScanEncoderJSON(b *testing.B)     { benchmarkScan(b, JSON) }
