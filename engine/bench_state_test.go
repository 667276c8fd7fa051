package engine

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// BenchmarkMillionCursors moves 10,000 of a million cursors of one consumer, then flushes: what the state objects take, what of them
// a flush writes, and how long the next open takes.
func BenchmarkMillionCursors(b *testing.B) {
	cursors := sized(1_000_000, 2*MaxCursors)
	store := newStore()
	o := Options{FlushInterval: time.Millisecond}
	db, err := Open(b.Context(), store, o)
	require.NoError(b, err)
	set := func(from int, next uint64) {
		list := make([]Cursor, MaxCursors)
		for i := range list {
			list[i] = Cursor{Key: fmt.Appendf(nil, "%016x", uint64((from+i)%cursors)*0x9E3779B97F4A7C15), Next: next + uint64(i)}
		}
		_, err := db.SetCursors(b.Context(), "consumer", list, CursorOptions{})
		require.NoError(b, err)
	}
	for i := 0; i < cursors; i += MaxCursors {
		set(i, uint64(i))
	}
	require.NoError(b, db.Flush(b.Context()))
	before := db.Status()
	n := 0
	for b.Loop() {
		set(n*7*MaxCursors, uint64(cursors+n))
		require.NoError(b, db.Flush(b.Context()))
		n++
	}
	s := db.Status()
	b.ReportMetric(float64(s.StateBytes)/float64(cursors), "heap-bytes/cursor")
	b.ReportMetric(float64(before.StateSize)/float64(cursors), "stored-bytes/cursor")
	b.ReportMetric(float64(s.StateObjectBytes-before.StateObjectBytes)/float64(n)/MaxCursors, "written-bytes/moved")
	db.crash()
	began := time.Now()
	db, err = Open(b.Context(), store, o)
	require.NoError(b, err)
	b.ReportMetric(time.Since(began).Seconds()*1000, "open-ms")
	db.crash()
}

// BenchmarkConditionalAppend appends one record of memory, with and without what it expects and a producer.
func BenchmarkConditionalAppend(b *testing.B) {
	for name, with := range map[string]func(o *AppendOptions, key []byte, n uint64){
		"plain":     func(*AppendOptions, []byte, uint64) {},
		"condition": func(o *AppendOptions, key []byte, n uint64) { o.ExpectedNext = []KeySequence{{key, n}} },
		"producer":  func(o *AppendOptions, _ []byte, n uint64) { o.Producer, o.ProducerSequence = "p", n },
	} {
		b.Run(name, func(b *testing.B) {
			db, err := Open(b.Context(), newStore(), Options{Ack: Memory, FlushInterval: 10 * time.Millisecond})
			require.NoError(b, err)
			defer db.crash()
			rec := record("key", "some value of a record")
			next := uint64(0)
			b.ReportAllocs()
			for b.Loop() {
				var o AppendOptions
				with(&o, rec.Key, next)
				res, err := db.Append(b.Context(), []Record{rec}, o)
				if err != nil {
					b.Fatal(err)
				}
				next = res.Last + 1
			}
		})
	}
}
