package engine

import (
	"context"
	"runtime"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/annalsdb/annals/internal/base"
	"github.com/annalsdb/annals/objstore"
)

// BenchmarkOpenTerabyte opens a log of a terabyte of 64 MiB tables, 1.8 TB of records, with a million keys, and reads a key
// that it does not have: in memory, and over a store as slow as S3. Only its metadata is there. It reports
//
//   - p50 and max of the opens, and the round trips to the store that one takes;
//   - the bytes of the MANIFEST, and of the indexes of groups, which an open does not read;
//   - the heap that an open log holds, and the most memory that this process has had: the store with all indexes too.
func BenchmarkOpenTerabyte(b *testing.B) {
	l := newTerabyte(b, base.SystemEnv(), sized(1_000_000, 10_000))
	for _, bench := range []struct {
		name  string
		store objstore.Store
	}{{"memory", l.store}, {"s3sim", l.overS3(1)}} {
		b.Run("store="+bench.name, func(b *testing.B) { l.benchmark(b, bench.store) })
	}
}

func (l *terabyte) benchmark(b *testing.B, store objstore.Store) {
	s := &trail{Store: store}
	var opens, reads []time.Duration
	var held int64
	trips := 0
	for b.Loop() {
		b.StopTimer()
		before, at := liveHeap(), s.trips()
		b.StartTimer()
		began := time.Now()
		db := l.open(b, s)
		opens = append(opens, time.Since(began))
		b.StopTimer()
		trips = s.trips() - at
		held = max(held, liveHeap()-before)
		began = time.Now()
		it := db.Scan(b.Context(), []byte("nobody"), All(), ScanOptions{})
		for range it.All() {
			b.Fatal("a record of nobody's")
		}
		if it.Err() != nil {
			b.Fatal(it.Err())
		}
		reads = append(reads, time.Since(began))
		if err := db.Close(context.Background()); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
	slices.Sort(opens)
	slices.Sort(reads)
	head, err := l.store.Head(b.Context(), base.ManifestName(tree))
	if err != nil {
		b.Fatal(err)
	}
	ms := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1e3 }
	b.ReportMetric(ms(opens[len(opens)/2]), "open-p50-ms")
	b.ReportMetric(ms(opens[len(opens)-1]), "open-max-ms")
	b.ReportMetric(float64(trips), "trips")
	b.ReportMetric(ms(reads[len(reads)/2]), "absent-read-p50-ms")
	b.ReportMetric(float64(l.tables), "tables")
	b.ReportMetric(float64(head.Size), "manifest-bytes")
	b.ReportMetric(float64(l.index)/1e6, "index-MB")
	b.ReportMetric(float64(held)/1e6, "held-MB")
	b.ReportMetric(peakResident()/1e6, "process-peak-MB")
}

// liveHeap is what is in use.
func liveHeap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// peakResident returns the most memory that the process has had, in bytes.
func peakResident() float64 {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	if runtime.GOOS == "darwin" { // bytes there, KiB elsewhere
		return float64(u.Maxrss)
	}
	return float64(u.Maxrss) * 1024
}
