package wal

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/internal/base"
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
