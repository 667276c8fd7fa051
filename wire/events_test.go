package wire

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestFramings(t *testing.T) {
	const object = `{"key":"aw==","sequence":7,"timestampMs":1700000000000,"value":"dg==","nextSequence":8}`
	const end = `{"status":"error","message":"why"}`
	rec := &StreamRecord{Key: []byte("k"), Sequence: 7, TimestampMs: 1700000000000, Value: []byte("v")}
	for _, c := range []struct {
		f                   Framing
		contentType         string
		record, cursor, end string
	}{
		{Events, "text/event-stream", "id: 8\ndata: " + object + "\n\n", ":\nid: 9\n\n", "event: end\ndata: " + end + "\n\n"},
		{PlainEvents, "text/event-stream", "data: " + object + "\n\n", "event: cursor\ndata: {\"nextSequence\":9}\n\n", "event: end\ndata: " + end + "\n\n"},
		{Lines, "application/x-ndjson", object + "\n", "{\"nextSequence\":9}\n", end + "\n"},
	} {
		require.Equal(t, c.contentType, c.f.ContentType())
		require.Equal(t, c.record, string(c.f.AppendRecord(nil, rec)))
		require.Equal(t, c.cursor, string(c.f.AppendCursor(nil, 9)))
		require.Equal(t, c.end, string(c.f.AppendEnd(nil, &ErrorBody{Status: StatusError, Message: "why"})))
	}
}

// What is written is one line of JSON that the general library reads too.
func TestStreamItemRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := StreamRecord{
			Key:         append([]byte{}, rapid.SliceOf(rapid.Byte()).Draw(t, "key")...),
			Sequence:    rapid.Uint64Max(1<<64-2).Draw(t, "sequence"),
			TimestampMs: rapid.Int64().Draw(t, "timestamp"),
			Value:       append([]byte{}, rapid.SliceOf(rapid.Byte()).Draw(t, "value")...),
		}
		for _, f := range []Framing{Events, PlainEvents, Lines} {
			out := f.AppendRecord(nil, &want)
			require.LessOrEqual(t, len(out), want.SizeOf())
			line := strings.TrimRight(string(out), "\n")
			line = line[strings.Index(line, "{"):]
			require.NotContains(t, line, "\n")
			var got StreamItem
			require.NoError(t, got.UnmarshalJSON([]byte(line)))
			require.Equal(t, StreamItem{StreamRecord: want, Next: want.Sequence + 1}, got)
			var general map[string]any
			require.NoError(t, json.Unmarshal([]byte(line), &general))
			require.Len(t, general, 5)
		}
	})
}

func TestStreamItems(t *testing.T) {
	for body, want := range map[string]StreamItem{
		`{"nextSequence":7}`:                                  {Next: 7},
		`{"nextSequence":7,"added":{"later":[]}}`:             {Next: 7},
		`{"status":"error","message":"gone"}`:                 {End: &ErrorBody{Status: "error", Message: "gone"}},
		`{"key":"","value":"","sequence":1,"nextSequence":2}`: {StreamRecord: StreamRecord{Key: []byte{}, Value: []byte{}, Sequence: 1}, Next: 2},
	} {
		var got StreamItem
		require.NoError(t, got.UnmarshalJSON([]byte(body)), body)
		require.Equal(t, want, got, body)
	}
	for body, want := range map[string]string{
		``: "empty", `{}`: "nextSequence is required", `7`: "an object is expected", `{"nextSequence":7}{}`: "more than one",
		`{"key":"aw","nextSequence":7}`:        "sequence and value of a record are required",
		`{"nextSequence":1,"timestampMs":1.5}`: "an integer of 64 bits",
		`{"nextSequence":1`:                    "unexpected EOF",
	} {
		var got StreamItem
		require.ErrorContains(t, got.UnmarshalJSON([]byte(body)), want, body)
	}
}

func FuzzStreamItem(f *testing.F) {
	f.Add([]byte(`{"key":"aw==","sequence":7,"timestampMs":1700000000000,"value":"dg==","nextSequence":8}`))
	f.Add([]byte(`{"nextSequence":7}`))
	f.Add([]byte(`{"status":"error","message":"gone"}`))
	f.Add([]byte(`{"key":null`))
	f.Fuzz(func(t *testing.T, data []byte) {
		var item StreamItem
		if item.UnmarshalJSON(data) != nil || item.Key == nil {
			return
		}
		require.LessOrEqual(t, len(item.Key)+len(item.Value), len(data))
		var again StreamItem
		require.NoError(t, again.UnmarshalJSON(Lines.AppendRecord(nil, &item.StreamRecord)))
		require.Equal(t, item.StreamRecord, again.StreamRecord)
	})
}

func BenchmarkAppendRecord(b *testing.B) {
	rec := &StreamRecord{Key: []byte("some/key/0001"), Sequence: 1 << 40, TimestampMs: 1700000000000, Value: bytes.Repeat([]byte("v"), 1024)}
	var out []byte
	b.SetBytes(1024)
	b.ReportAllocs()
	for b.Loop() {
		out = Events.AppendRecord(out[:0], rec)
	}
}

func BenchmarkStreamItem(b *testing.B) {
	rec := &StreamRecord{Key: []byte("some/key/0001"), Sequence: 1 << 40, TimestampMs: 1700000000000, Value: bytes.Repeat([]byte("v"), 1024)}
	line := Lines.AppendRecord(nil, rec)
	b.SetBytes(1024)
	b.ReportAllocs()
	var item StreamItem
	for b.Loop() {
		if err := item.UnmarshalJSON(line); err != nil {
			b.Fatal(err)
		}
	}
}
