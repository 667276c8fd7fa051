package server

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/engine"
	"github.com/annalsdb/annals/objstore/mem"
	"github.com/annalsdb/annals/wire"
)

func TestBoundsAreTheLogs(t *testing.T) {
	require.Equal(t, engine.MaxExpected, wire.MaxExpected)
}

// What a request asks for reaches the log.
func TestAppendOptionsReachTheLog(t *testing.T) {
	db := &testDB{DB: openDB(t, mem.New(mem.Options{}), engine.Options{})}
	var got engine.AppendOptions
	db.append = func(_ context.Context, _ []engine.Record, o engine.AppendOptions) (engine.AppendResult, error) {
		got = o
		got.ExpectedNext = append([]engine.KeySequence(nil), o.ExpectedNext...) // the server uses its memory again
		return engine.AppendResult{}, nil
	}
	r := start(t, Options{DB: db})
	protobuf := string(wire.AppendMessage(nil, wire.Protobuf, &wire.AppendRequest{
		ExpectedNext: []*wire.KeySequence{{Key: []byte("k"), Sequence: 7}, {}},
		ProducerId:   text("p"), ProducerSeq: number(1<<64 - 1),
	}))
	for _, c := range []struct{ contentType, body string }{
		{"", `{"expectedNext":[{"key":"aw","sequence":7},{"key":"","sequence":0}],"producerId":"p","producerSeq":18446744073709551615}`},
		{protoType, protobuf},
	} {
		require.Equal(t, 200, r.post(appendPath, c.body, "Content-Type", c.contentType).status)
		require.Equal(t, "p", got.Producer)
		require.Equal(t, uint64(1<<64-1), got.ProducerSequence)
		require.Len(t, got.ExpectedNext, 2)
		require.Equal(t, "k7 0", fmt.Sprintf("%s%d %s%d", got.ExpectedNext[0].Key, got.ExpectedNext[0].Next, got.ExpectedNext[1].Key, got.ExpectedNext[1].Next))
	}
	require.Equal(t, 200, r.post(appendPath, `{"records":[{"key":"","value":""}]}`).status)
	require.Equal(t, engine.AppendOptions{}, got, "nothing is left of the request before")
}

func text(s string) *string   { return &s }
func number(n uint64) *uint64 { return &n }

func TestTooManyConditionsAre400(t *testing.T) {
	r := start(t, Options{})
	got := r.post(appendPath, strings.Repeat("\xa2\x06\x00", wire.MaxExpected+1), "Content-Type", protoType)
	require.Equal(t, 400, got.status)
	require.Equal(t, `{"status":"error","message":"Invalid input: more than 10000 conditions in expectedNext"}`, got.body)
}

func TestConflictsAre409(t *testing.T) {
	for _, c := range []struct {
		err  error
		want string
	}{
		{&engine.ConditionError{Key: []byte("k"), Last: 1<<64 - 1},
			`{"status":"error","message":"the key has a record with sequence 18446744073709551615, at or above the expected one; nothing was appended",` +
				`"key":"aw==","lastSequence":18446744073709551615}`},
		{&engine.ConditionError{},
			`{"status":"error","message":"the key has a record with sequence 0, at or above the expected one; nothing was appended","key":"","lastSequence":0}`},
		{&engine.ProducerError{Producer: "p", Sequence: 9, Last: 7},
			`{"status":"error","message":"producerSeq 9 leaves a gap: nothing was appended; the last one of the producer is 7","lastProducerSeq":7}`},
		{&engine.ProducerError{Producer: "p", Sequence: 9, Last: 100},
			`{"status":"error","message":"producerSeq 9 is too old: it cannot be told whether it was appended; the last one of the producer is 100","lastProducerSeq":100}`},
		{engine.ErrConflict, `{"status":"error","message":"append: the log is not as the append expects (nothing was appended)"}`},
	} {
		db := &testDB{DB: openDB(t, mem.New(mem.Options{}), engine.Options{})}
		db.append = func(context.Context, []engine.Record, engine.AppendOptions) (engine.AppendResult, error) {
			return engine.AppendResult{}, &engine.AppendError{Outcome: engine.NotAppended, Err: c.err}
		}
		r := start(t, Options{DB: db})
		got := r.post(appendPath, `{"records":[{"key":"","value":""}]}`)
		require.Equal(t, 409, got.status)
		require.Equal(t, c.want, got.body)
	}
}

// A repeat is answered as the first append was, also where it has other records.
func TestRepeatsAreAnsweredAlike(t *testing.T) {
	db := &testDB{DB: openDB(t, mem.New(mem.Options{}), engine.Options{})}
	repeated := false
	db.append = func(context.Context, []engine.Record, engine.AppendOptions) (engine.AppendResult, error) {
		return engine.AppendResult{First: 5, Last: 7, Timestamp: testTime, Repeated: repeated}, nil
	}
	r := start(t, Options{DB: db})
	const three = `{"records":[{"key":"","value":""},{"key":"","value":""},{"key":"","value":""}],"producerId":"p","producerSeq":1}`
	first := r.post(appendPath, three)
	require.Equal(t, `{"status":"success","recordsAppended":3,"startSequence":5,"timestampMs":1700000000000}`, first.body)
	repeated = true
	require.Equal(t, first.body, r.post(appendPath, three).body)
	require.Equal(t, first.body, r.post(appendPath, `{"records":[{"key":"","value":""}],"producerId":"p","producerSeq":1}`).body)
	require.Contains(t, r.get("/metrics").body, "\nlog_append_records_total 3\n")
}

// Conditions and producers over HTTP, in the real log.
func TestConditionsOfALog(t *testing.T) {
	store := mem.New(mem.Options{})
	const ok = `{"status":"success","recordsAppended":%d,"startSequence":%d,"timestampMs":%d}`
	appended := func(n, start int) string { return fmt.Sprintf(ok, n, start, testTime) }
	const nothing = `{"status":"success","recordsAppended":0,"startSequence":0,"timestampMs":0}`
	record := `"records":[{"key":"aw","value":"dg"}]`
	steps := []struct {
		body   string
		status int
		want   string
	}{
		{`{` + record + `,"expectedNext":[{"key":"aw","sequence":0}]}`, 200, appended(1, 0)},
		{`{` + record + `,"expectedNext":[{"key":"bA","sequence":0},{"key":"aw","sequence":0}]}`, 409, `"key":"aw==","lastSequence":0}`},
		{`{"expectedNext":[{"key":"aw","sequence":0}]}`, 409, `"key":"aw==","lastSequence":0}`},
		{`{"expectedNext":[{"key":"aw","sequence":1}]}`, 200, nothing},
		{`{` + record + `,"expectedNext":[{"key":"aw","sequence":1}]}`, 200, appended(1, 1)},
		{`{` + record + `,"producerId":"p","producerSeq":41}`, 200, appended(1, 2)},
		{`{` + record + `,"producerId":"p","producerSeq":41}`, 200, appended(1, 2)},
		{`{` + record + `,"producerId":"p","producerSeq":43}`, 409, `"lastProducerSeq":41}`},
		{`{` + record + `,"producerId":"p","producerSeq":42,"expectedNext":[{"key":"aw","sequence":0}]}`, 409, `"key":"aw==","lastSequence":2}`},
		{`{` + record + `,"producerId":"p","producerSeq":42,"expectedNext":[{"key":"aw","sequence":3}]}`, 200, appended(1, 3)},
		// A repeat is looked at before the condition, which would fail now.
		{`{` + record + `,"producerId":"p","producerSeq":42,"expectedNext":[{"key":"aw","sequence":3}]}`, 200, appended(1, 3)},
		{`{` + record + `,"producerId":"p","producerSeq":40}`, 409, `"lastProducerSeq":42}`},
		{`{"producerId":"p","producerSeq":43}`, 400, `(nothing was appended)"}`},
	}
	r := start(t, Options{DB: openDB(t, store, engine.Options{})})
	for _, c := range steps {
		got := r.post(appendPath, c.body)
		require.Equal(t, c.status, got.status, "%s: %s", c.body, got.body)
		require.True(t, strings.HasSuffix(got.body, c.want), got.body)
	}
	// Another writer takes over, and knows the producer.
	r = start(t, Options{DB: openDB(t, store, engine.Options{})})
	require.Equal(t, appended(1, 3), r.post(appendPath, `{`+record+`,"producerId":"p","producerSeq":42}`).body)
	require.Contains(t, r.get("/api/v1/log/count?key=k").body, `"count":4`)
}
