package engine

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/internal/base"
	"github.com/annalsdb/annals/manifest"
	"github.com/annalsdb/annals/objstore/dir"
	"github.com/annalsdb/annals/state"
	"github.com/annalsdb/annals/wal"
)

// BenchmarkReplicaLag measures how long it takes from a record's being durable to its being delivered by
// a replica in the same process, on a directory: about half of PollInterval (100 ms) in the middle, and little more
// than all of it at most.
func BenchmarkReplicaLag(b *testing.B) {
	store, err := dir.Open(b.TempDir())
	require.NoError(b, err)
	db, err := Open(b.Context(), store, Options{FlushInterval: 2 * time.Millisecond})
	require.NoError(b, err)
	defer func() { require.NoError(b, db.Close(context.Background())) }()
	reader, err := OpenReader(b.Context(), store, ReaderOptions{PollInterval: 100 * time.Millisecond})
	require.NoError(b, err)
	defer func() { require.NoError(b, reader.Close(context.Background())) }()
	f, err := reader.Follow(b.Context(), Stream{Key: []byte("k")})
	require.NoError(b, err)
	defer f.Close()

	durable := make(chan time.Time, 1<<20) // of each record, in order
	lags := make(chan []time.Duration)
	go func() {
		var all []time.Duration
		for range f.All() {
			arrived := time.Now()
			at, ok := <-durable
			if !ok {
				break
			}
			all = append(all, arrived.Sub(at))
		}
		lags <- all
	}()
	for b.Loop() {
		_, err := db.Append(b.Context(), []Record{record("k", "v")}, AppendOptions{})
		require.NoError(b, err)
		durable <- time.Now()
		time.Sleep(time.Duration(rand.Int64N(int64(10 * time.Millisecond)))) // at any time within a poll
	}
	close(durable)
	_, err = db.Append(b.Context(), []Record{record("k", "the last")}, AppendOptions{})
	require.NoError(b, err)
	all := <-lags
	slices.Sort(all)
	for _, p := range []int{50, 99} {
		b.ReportMetric(float64(all[min(len(all)*p/100, len(all)-1)].Microseconds())/1e3, fmt.Sprintf("ms/p%d", p))
	}
	b.ReportMetric(float64(b.Elapsed().Milliseconds())/float64(b.N), "ms/append")
}

// BenchmarkReplicaApply applies WAL objects of 1,000 records of 100 bytes.
func BenchmarkReplicaApply(b *testing.B) {
	for _, keys := range []KeyRange{{}, {Start: []byte("key 5")}} {
		b.Run(fmt.Sprint("keys ", keys), func(b *testing.B) { benchmarkApply(b, keys) })
	}
}

func benchmarkApply(b *testing.B, keys KeyRange) {
	const objects, records = 200, 1000
	store := newStore()
	db, err := Open(b.Context(), store, Options{})
	require.NoError(b, err)
	require.NoError(b, db.Close(context.Background()))
	snap, err := manifest.Load(b.Context(), store, base.SystemEnv(), tree)
	require.NoError(b, err)
	var read []*wal.Object
	recs := make([]Record, records)
	for i := range recs {
		recs[i] = record(fmt.Sprintf("key %02d", i%100), strings.Repeat("v", 94))
	}
	var reader *Reader
	restart := func() {
		if reader != nil {
			require.NoError(b, reader.Close(context.Background()))
		}
		reader = newReader(store, ReaderOptions{Keys: keys}.withDefaults(), snap)
		reader.small.replace(state.New(state.Limits{}))
	}
	restart()
	at := reader.cursor
	for i := range uint64(objects) {
		h := wal.Header{Identity: reader.ident, Epoch: at.Epoch, ID: at.ID + i, Segment: 1, First: i * records, PrevEnd: i * records}
		builder := wal.NewBuilder(h, nil)
		builder.AddBatch(h.First, 1, recs)
		o, err := wal.Decode("object", reader.ident, h.Epoch, h.ID, builder.Finish())
		require.NoError(b, err)
		read = append(read, o)
	}
	b.SetBytes(records * 100)
	for i := 0; b.Loop(); i++ {
		if i == objects {
			b.StopTimer()
			restart()
			b.StartTimer()
			i = 0
		}
		applied, err := reader.apply(read[i])
		if err != nil || !applied {
			b.Fatal(applied, err)
		}
	}
	require.NoError(b, reader.Close(context.Background()))
}
