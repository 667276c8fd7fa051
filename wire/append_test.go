package wire

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"
)

func kv(k, v string) KeyValue { return KeyValue{Key: []byte(k), Value: []byte(v)} }

func TestAppendBodyJSON(t *testing.T) {
	yes, no, id, seq := true, false, "p", uint64(18446744073709551615)
	for _, c := range []struct {
		name, in string
		want     AppendBody
	}{
		{"one record", `{"records":[{"key":"aw==","value":"dg=="}]}`, AppendBody{Records: []KeyValue{kv("k", "v")}}},
		{"padding left out", `{"records":[{"key":"aw","value":"dmFs"}]}`, AppendBody{Records: []KeyValue{kv("k", "val")}}},
		{"empty key and value", `{"records":[{"key":"","value":""}]}`, AppendBody{Records: []KeyValue{kv("", "")}}},
		{"missing", `{"records":[{"value":"dg"},{"key":"aw"},{}]}`,
			AppendBody{Records: []KeyValue{{Value: []byte("v")}, {Key: []byte("k")}, {}}}},
		{"null is missing", `{"records":[{"key":null,"value":null}]}`, AppendBody{Records: []KeyValue{{}}}},
		{"no records", `{}`, AppendBody{}},
		{"null fields", ` { "records" : null , "awaitDurable":null,"producerId":null,"producerSeq":null,"expectedNext":null}`, AppendBody{}},
		{"unknown fields", `{"x":{"records":[1]},"records":[{"y":[{}],"key":"aw","Key":"AA","value":""}],"Records":5}`,
			AppendBody{Records: []KeyValue{kv("k", "")}}},
		{"durable", `{"awaitDurable":true}`, AppendBody{AwaitDurable: &yes}},
		{"not durable", `{"awaitDurable":false,"records":[]}`, AppendBody{AwaitDurable: &no}},
		{"escapes in names and texts", `{"\u0072ecords":[{"key":"\/\/8\u003d","value":"Pz\/\/"}]}`,
			AppendBody{Records: []KeyValue{kv("\xff\xff", "??\xff")}}},
		{"later parts", `{"expectedNext":[{"key":"aw","sequence":7}],"producerId":"p","producerSeq":18446744073709551615}`,
			AppendBody{ExpectedNext: []ExpectedNext{{Key: []byte("k"), Sequence: 7}}, ProducerID: &id, ProducerSeq: &seq}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var b AppendBody
			require.NoError(t, b.UnmarshalJSON([]byte(c.in)))
			requireEqualBody(t, &c.want, &b)
		})
	}
}

func requireEqualBody(t require.TestingT, want, got *AppendBody) {
	require.Equal(t, len(want.Records), len(got.Records))
	for i := range want.Records {
		require.Equal(t, want.Records[i], got.Records[i], "record %d", i)
	}
	require.Equal(t, want.AwaitDurable, got.AwaitDurable)
	require.Equal(t, want.ExpectedNext, got.ExpectedNext)
	require.Equal(t, want.ProducerID, got.ProducerID)
	require.Equal(t, want.ProducerSeq, got.ProducerSeq)
}

func TestAppendBodyJSONErrors(t *testing.T) {
	for _, c := range []struct{ name, in, want string }{
		{"empty", ``, "the body is empty"},
		{"spaces", `  `, "the body is empty"},
		{"text", `hello`, "at byte 0: invalid character 'h' at start of value"},
		{"cut", `{"records":[`, "unexpected EOF"},
		{"array", `[{"records":[]}]`, "an object is expected, not an array"},
		{"null", `null`, "an object is expected, not null"},
		{"records an object", `{"records":{}}`, "/records: an array is expected, not an object"},
		{"record an array", `{"records":[["aw","dg"]]}`, "/records/0: an object is expected, not an array"},
		{"record null", `{"records":[{"key":"","value":""},null]}`, "/records/1: an object is expected, not null"},
		{"key a number", `{"records":[{"key":1}]}`, "/records/0/key: a base64 string is expected, not a number"},
		{"key an array", `{"records":[{"key":[1]}]}`, "/records/0/key: a base64 string is expected, not an array"},
		{"not base64", `{"records":[{"key":"a b"}]}`, "/records/0/key: not base64"},
		{"URL-safe", `{"records":[{"key":"_-8="}]}`, "/records/0/key: not base64"},
		{"one character", `{"records":[{"key":"A"}]}`, "/records/0/key: not base64"},
		{"half the padding", `{"records":[{"key":"aw="}]}`, "/records/0/key: not base64"},
		{"too much padding", `{"records":[{"key":"aw==="}]}`, "/records/0/key: not base64"},
		{"text behind padding", `{"records":[{"key":"aw==aw=="}]}`, "/records/0/key: not base64"},
		{"stray bits", `{"records":[{"key":"ax=="}]}`, "/records/0/key: not base64"},
		{"stray bits without padding", `{"records":[{"key":"ax"}]}`, "/records/0/key: not base64"},
		{"line break", `{"records":[{"key":"YWJj\nZGVm"}]}`, "/records/0/key: base64 with line breaks"},
		{"carriage return", `{"records":[{"value":"YWJj\r"}]}`, "/records/0/value: base64 with line breaks"},
		{"repeated field", `{"records":[],"records":[]}`, `(/records): repeated field`},
		{"repeated key", `{"records":[{"key":"","key":""}]}`, `(/records/0/key): repeated field`},
		{"repeated through an escape", `{"records":[{"key":"","\u006bey":""}]}`, "repeated field"},
		{"repeated unknown field", `{"x":1,"x":2}`, `(/x): repeated field`},
		{"awaitDurable a string", `{"awaitDurable":"true"}`, "/awaitDurable: true or false is expected, not a string"},
		{"awaitDurable a number", `{"awaitDurable":1}`, "/awaitDurable: true or false is expected, not a number"},
		{"producerSeq a fraction", `{"producerSeq":1.5}`, "/producerSeq: an integer from 0 to 2^64-1 is expected"},
		{"producerSeq an exponent", `{"producerSeq":1e3}`, "/producerSeq: an integer"},
		{"producerSeq negative", `{"producerSeq":-1}`, "/producerSeq: an integer"},
		{"producerSeq too large", `{"producerSeq":18446744073709551616}`, "/producerSeq: an integer"},
		{"producerSeq a string", `{"producerSeq":"1"}`, "/producerSeq: a number is expected, not a string"},
		{"producerId a number", `{"producerId":1}`, "/producerId: a string is expected, not a number"},
		{"expectedNext incomplete", `{"expectedNext":[{"key":"aw"}]}`, "key and sequence are required"},
		{"two values", `{}{}`, "more than one JSON value"},
		{"rubbish behind", `{}x`, "invalid character 'x'"},
		{"not UTF-8", "{\"x\":\"\xff\"}", "invalid UTF-8"},
		{"trailing comma", `{"records":[],}`, "at byte"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var b AppendBody
			err := b.UnmarshalJSON([]byte(c.in))
			require.ErrorContains(t, err, c.want)
			require.NotContains(t, err.Error(), "jsontext")
		})
	}
}

func TestAppendBodyValidate(t *testing.T) {
	for _, c := range []struct {
		name string
		recs []KeyValue
		want string
	}{
		{"good", []KeyValue{kv("", ""), kv("abc", "abcd")}, ""},
		{"no key", []KeyValue{kv("", ""), {Value: []byte("v")}}, "record[1]: key is required"},
		{"no value", []KeyValue{{Key: []byte("v")}}, "record[0]: value is required"},
		{"neither", []KeyValue{{}}, "record[0]: key is required"},
		{"long key", []KeyValue{kv("abcd", "")}, "record[0]: key has 4 bytes; at most 3 are allowed"},
		{"long value", []KeyValue{kv("", "abcde")}, "record[0]: value has 5 bytes; at most 4 are allowed"},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := (&AppendBody{Records: c.recs}).Validate(3, 4)
			if c.want == "" {
				require.NoError(t, err)
				return
			}
			require.EqualError(t, err, c.want)
		})
	}
}

// drawRequest draws any AppendRequest.
func drawRequest(t *rapid.T) *AppendRequest {
	m := &AppendRequest{}
	optional := func(label string) []byte {
		if !rapid.Bool().Draw(t, "has "+label) {
			return nil
		}
		return append([]byte{}, rapid.SliceOfN(rapid.Byte(), 0, 20).Draw(t, label)...)
	}
	for range rapid.IntRange(0, 5).Draw(t, "records") {
		m.Records = append(m.Records, &Record{Key: optional("key"), Value: optional("value")})
	}
	if rapid.Bool().Draw(t, "has await") {
		m.AwaitDurable = proto.Bool(rapid.Bool().Draw(t, "await"))
	}
	for range rapid.IntRange(0, 2).Draw(t, "expected") {
		m.ExpectedNext = append(m.ExpectedNext, &KeySequence{Key: optional("key"), Sequence: rapid.Uint64().Draw(t, "sequence")})
	}
	if rapid.Bool().Draw(t, "has producer") {
		m.ProducerId = proto.String(rapid.StringN(0, 10, -1).Draw(t, "producer"))
		m.ProducerSeq = proto.Uint64(rapid.Uint64().Draw(t, "producer seq"))
	}
	return m
}

// bodyOf says what the decoder should make of a message.
func bodyOf(m *AppendRequest) *AppendBody {
	b := &AppendBody{AwaitDurable: m.AwaitDurable, ProducerID: m.ProducerId, ProducerSeq: m.ProducerSeq}
	for _, r := range m.Records {
		b.Records = append(b.Records, KeyValue{Key: r.Key, Value: r.Value})
	}
	for _, e := range m.ExpectedNext {
		b.ExpectedNext = append(b.ExpectedNext, ExpectedNext{Key: e.Key, Sequence: e.Sequence})
	}
	return b
}

// normalize makes an absent and an empty key of a condition the same: the
// message does not tell them apart.
func (b *AppendBody) normalize() *AppendBody {
	for i := range b.ExpectedNext {
		if len(b.ExpectedNext[i].Key) == 0 {
			b.ExpectedNext[i].Key = nil
		}
	}
	return b
}

func TestAppendBodyProtobufAgainstGeneratedCode(t *testing.T) {
	var reused AppendBody
	rapid.Check(t, func(t *rapid.T) {
		data, err := proto.Marshal(drawRequest(t))
		require.NoError(t, err)
		// Damage a byte now and then: the two must also agree on what they refuse.
		if len(data) > 0 && rapid.Bool().Draw(t, "damage") {
			data[rapid.IntRange(0, len(data)-1).Draw(t, "at")] = rapid.Byte().Draw(t, "byte")
		}
		compareWithGenerated(t, &reused, data)
	})
}

func compareWithGenerated(t require.TestingT, b *AppendBody, data []byte) {
	m := &AppendRequest{}
	wantErr := proto.Unmarshal(data, m)
	err := b.UnmarshalProtobuf(data)
	if wantErr != nil {
		require.Error(t, err, "generated code says %v", wantErr)
		return
	}
	require.NoError(t, err)
	requireEqualBody(t, bodyOf(m).normalize(), b.normalize())
}

func FuzzAppendBodyProtobuf(f *testing.F) {
	for _, m := range []*AppendRequest{
		{},
		{Records: []*Record{{Key: []byte("k"), Value: []byte("v")}, {Key: []byte{}, Value: []byte{}}, {}}},
		{AwaitDurable: proto.Bool(true), ProducerId: proto.String("p"), ProducerSeq: proto.Uint64(1)},
		{ExpectedNext: []*KeySequence{{Key: []byte("k"), Sequence: 1 << 63}}},
	} {
		data, err := proto.Marshal(m)
		require.NoError(f, err)
		f.Add(data)
	}
	f.Add([]byte{0x0a, 0x80})                   // a length that is cut
	f.Add([]byte{0x0b, 0x0c})                   // a group where a message belongs
	f.Add([]byte{0x08, 0x01})                   // a number where a message belongs
	f.Add([]byte{0x0a, 0x02, 0x08, 0x01})       // a number where a key belongs
	f.Add([]byte{0x00})                         // field number 0
	f.Add([]byte{0xaa, 0x06, 0x01, 0xff})       // a producer that is not UTF-8
	f.Add([]byte{0x0a, 0x04, 0x0a, 0, 0x0a, 0}) // a key twice
	f.Fuzz(func(t *testing.T, data []byte) {
		compareWithGenerated(t, &AppendBody{}, data)
	})
}

func FuzzAppendBodyJSON(f *testing.F) {
	for _, s := range []string{
		`{"records":[{"key":"aw==","value":"dg=="}],"awaitDurable":true}`,
		`{"records":[{"key":"aw","value":null},{}],"awaitDurable":null}`,
		`{"records":[{"key":"\/\/8\u003d","value":""}],"x":[[[{}]]]}`,
		`{"expectedNext":[{"key":"aw","sequence":7}],"producerId":"p","producerSeq":18446744073709551615}`,
		`{"records":[{"key":"YWJj\nZGVm"}]}`, `{"records":[`, `[]`, `{}{}`, `{"records":[],"records":[]}`, ``,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		before := string(data)
		var b AppendBody
		if err := b.UnmarshalJSON(data); err != nil {
			return
		}
		require.Equal(t, before, string(data), "the body is left as it was")
		total := 0
		for _, r := range b.Records {
			total += len(r.Key) + len(r.Value)
		}
		require.LessOrEqual(t, total, len(data))
		// What was decoded survives an encoding in the canonical form.
		var again AppendBody
		require.NoError(t, again.UnmarshalJSON(appendRequestJSON(&b)))
		requireEqualBody(t, &b, &again)
	})
}

// appendRequestJSON encodes a request, as a client would.
func appendRequestJSON(b *AppendBody) []byte {
	var out []byte
	field := func(name string, v []byte) {
		if v == nil {
			return
		}
		if out[len(out)-1] != '{' {
			out = append(out, ',')
		}
		out = append(out, `"`+name+`":`...)
		out = appendBytes(out, v)
	}
	out = append(out, `{"records":[`...)
	for i, r := range b.Records {
		if i > 0 {
			out = append(out, ',')
		}
		out = append(out, '{')
		field("key", r.Key)
		field("value", r.Value)
		out = append(out, '}')
	}
	out = append(out, ']')
	if b.AwaitDurable != nil {
		out = append(out, `,"awaitDurable":`...)
		out = appendBool(out, *b.AwaitDurable)
	}
	if b.ExpectedNext != nil {
		out = append(out, `,"expectedNext":[`...)
		for i, e := range b.ExpectedNext {
			if i > 0 {
				out = append(out, ',')
			}
			out = append(out, '{')
			field("key", e.Key)
			out = append(out, `,"sequence":`...)
			out = appendUint(out, e.Sequence)
			out = append(out, '}')
		}
		out = append(out, ']')
	}
	if b.ProducerID != nil {
		out = append(out, `,"producerId":`...)
		out = appendString(out, *b.ProducerID)
	}
	if b.ProducerSeq != nil {
		out = append(out, `,"producerSeq":`...)
		out = appendUint(out, *b.ProducerSeq)
	}
	return append(out, '}')
}

func TestAppendBodyIsReusable(t *testing.T) {
	var b AppendBody
	require.NoError(t, b.UnmarshalJSON([]byte(`{"records":[{"key":"aw","value":"dg"}],"awaitDurable":true,"producerId":"p"}`)))
	require.NoError(t, b.UnmarshalProtobuf(nil))
	requireEqualBody(t, &AppendBody{}, &b)
	require.NoError(t, b.UnmarshalJSON([]byte(`{"records":[{"key":"aw","value":"dg"}]}`)))
	b.Release(1 << 10)
	require.Empty(t, b.Records)
	require.Equal(t, KeyValue{}, b.Records[:1][0], "nothing keeps the old body alive")
	b.Release(0)
	require.Zero(t, cap(b.Records))
	require.Zero(t, cap(b.arena))
}

func TestAppendBodyKeepsNeighboursApart(t *testing.T) {
	var b AppendBody
	require.NoError(t, b.UnmarshalJSON([]byte(`{"records":[{"key":"aw","value":"dg"}]}`)))
	_ = append(b.Records[0].Key, "overwritten"...)
	require.Equal(t, "v", string(b.Records[0].Value))
}

func TestDeepJSONIsRefused(t *testing.T) {
	var b AppendBody
	require.Error(t, b.UnmarshalJSON([]byte(`{"x":`+strings.Repeat("[", 1<<20))))
}

func TestTooManyRecords(t *testing.T) {
	most := strings.Repeat("\x0a\x00", MaxRecords)
	var b AppendBody
	require.NoError(t, b.UnmarshalProtobuf([]byte(most)))
	require.ErrorIs(t, b.UnmarshalProtobuf([]byte(most+"\x0a\x00")), ErrTooManyRecords)
	most = `{"records":[` + strings.Repeat("{},", MaxRecords-1) + "{}"
	require.NoError(t, b.UnmarshalJSON([]byte(most+"]}")))
	require.ErrorIs(t, b.UnmarshalJSON([]byte(most+",{}]}")), ErrTooManyRecords)
}

// benchmarkRequest is a batch of 100 records of 1 KiB.
func benchmarkRequest() *AppendRequest {
	m := &AppendRequest{}
	for range 100 {
		m.Records = append(m.Records, &Record{Key: []byte("some/key/0001"), Value: []byte(strings.Repeat("v", 1024))})
	}
	return m
}

func BenchmarkAppendBodyProtobuf(b *testing.B) {
	data, err := proto.Marshal(benchmarkRequest())
	require.NoError(b, err)
	b.SetBytes(int64(len(data)))
	b.ReportAllocs()
	var body AppendBody
	for b.Loop() {
		if err := body.UnmarshalProtobuf(data); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkAppendBodyJSON(b *testing.B) {
	data := appendRequestJSON(bodyOf(benchmarkRequest()))
	b.SetBytes(int64(len(data)))
	b.ReportAllocs()
	var body AppendBody
	for b.Loop() {
		if err := body.UnmarshalJSON(data); err != nil {
			b.Fatal(err)
		}
	}
}
