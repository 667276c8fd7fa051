package wal

import (
	"bytes"
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/internal/base"
	"github.com/annalsdb/annals/objstore"
	"github.com/annalsdb/annals/objstore/mem"
)

// benchRecords returns 100 records of 1 KiB.
func benchRecords() (recs []base.Record, size int64) {
	for i := range 100 {
		r := base.Record{Key: fmt.Appendf(nil, "user/%08d", i)}
		r.Value = bytes.Repeat([]byte{byte(i)}, 1024-len(r.Key))
		size += int64(r.Size())
		recs = append(recs, r)
	}
	return recs, size
}

func BenchmarkAddBatch(b *testing.B) {
	recs, size := benchRecords()
	b.SetBytes(size)
	b.ReportAllocs()
	buf := make([]byte, 0, 9<<20)
	builder := NewBuilder(goldenHeader, buf)
	for b.Loop() {
		if builder.Size() >= 8<<20 {
			builder = NewBuilder(goldenHeader, buf)
		}
		builder.AddBatch(builder.End(), 1, recs)
	}
}

// benchObject returns a record object of about 8 MiB, not finished.
func benchObject() *Builder {
	recs, _ := benchRecords()
	builder := NewBuilder(goldenHeader, nil)
	for builder.Size() < 8<<20 {
		builder.AddBatch(builder.End(), 1, recs)
	}
	return builder
}

func BenchmarkFinish(b *testing.B) {
	builder := benchObject()
	b.SetBytes(int64(builder.Size()))
	for b.Loop() {
		again := *builder
		again.Finish()
	}
}

func BenchmarkDecode(b *testing.B) {
	body := benchObject().Finish()
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	for b.Loop() {
		o, err := decodeGolden(body)
		require.NoError(b, err)
		n := 0
		for e := range o.Entries() {
			for r := range e.Batch.Records() {
				n += len(r.Value)
			}
		}
		require.NotZero(b, n)
	}
}

// benchEpoch returns record objects of about 1 MiB, ids from 1 on, one behind the other.
func benchEpoch(n int) (bodies [][]byte, size int64) {
	recs, _ := benchRecords()
	next := uint64(100)
	for id := uint64(1); id <= uint64(n); id++ {
		b := NewBuilder(Header{Identity: testIdent, Writer: testWriter, Epoch: testEpoch, ID: id, Segment: 1, PrevEnd: next, First: next}, nil)
		for b.Size() < 1<<20 {
			b.AddBatch(b.End(), 1, recs)
		}
		next = b.End()
		bodies = append(bodies, b.Finish())
		size += int64(len(bodies[id-1]))
	}
	return bodies, size
}

// BenchmarkReplay reads an epoch of 32 objects of 1 MiB up to its fence.
func BenchmarkReplay(b *testing.B) {
	const objects = 32
	store := mem.New(mem.Options{})
	bodies, size := benchEpoch(objects)
	for i, body := range append(bodies, EncodeFence(testIdent, testEpoch, objects+1, testEpoch+1)) {
		putObject(b, store, uint64(i+1), body)
	}
	b.SetBytes(size)
	b.ReportAllocs()
	for b.Loop() {
		chain, n := Chain{Started: true, End: 100}, 0
		_, err := Replay(b.Context(), store, testEnv(1), testIdent, testEpoch, 1, &chain, func(*Object, int64) error {
			n++
			return nil
		})
		if err != nil || n != objects {
			b.Fatal(n, err)
		}
	}
}

// BenchmarkUpload uploads objects of 1 MiB to a store that answers at once, eight at the same time, until all are durable in
// order. The store keeps none of them.
func BenchmarkUpload(b *testing.B) {
	const objects = 32
	bodies, _ := benchEpoch(objects)
	b.ReportAllocs()
	for b.Loop() {
		durable, space := make(chan uint64, objects), make(chan struct{}, 1)
		u := NewUploader(UploaderOptions{
			Store: sink{mem.New(mem.Options{})}, Env: base.SystemEnv(), Ident: testIdent, Epoch: testEpoch, Writer: testWriter, InFlight: 8,
			OnDurable: func(d Durable) { durable <- d.ID },
			OnFailed:  func(err error) { b.Error(err) },
			OnSpace: func() {
				select {
				case space <- struct{}{}:
				default:
				}
			},
		})
		for i, body := range bodies {
			for !u.CanSubmit() {
				<-space
			}
			u.Submit(uint64(i+1), body)
		}
		for last := uint64(0); last < objects; {
			last = <-durable
		}
		u.Stop()
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*objects), "ns/object")
}

// sink forgets what is put into it.
type sink struct{ objstore.Store }

func (sink) Put(context.Context, string, []byte, objstore.PutOptions) (objstore.PutResult, error) {
	return objstore.PutResult{}, nil
}
