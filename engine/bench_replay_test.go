package engine

import (
	"context"
	"math"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/annalsdb/annals/objstore"
	"github.com/annalsdb/annals/objstore/mem"
)

// What public measurements say of S3: the time to the first byte of a GET is about log-normal,
// and one request moves so many bytes a second.
const (
	distantP50     = 15 * time.Millisecond
	distantP99     = 90 * time.Millisecond
	distantBytes   = 90e6   // a second
	standardNormal = 2.3263 // its 99th percentile
)

// distant is a store that answers GETs as S3 does.
type distant struct {
	objstore.Store

	mu  sync.Mutex
	rnd *rand.Rand // guarded by mu
}

func (s *distant) Get(ctx context.Context, name string, o objstore.GetOptions) (objstore.Object, error) {
	s.mu.Lock()
	normal := s.rnd.NormFloat64()
	s.mu.Unlock()
	sigma := math.Log(float64(distantP99)/float64(distantP50)) / standardNormal
	first := time.Duration(float64(distantP50) * math.Exp(sigma*normal))
	obj, err := s.Store.Get(ctx, name, o)
	body := time.Duration(float64(len(obj.Body)) / distantBytes * float64(time.Second))
	select {
	case <-time.After(first + body):
		return obj, err
	case <-ctx.Done():
		return objstore.Object{}, ctx.Err()
	}
}

// BenchmarkReplay reads one key of a log that was just opened from its beginning, on a store that is
// as far away as S3: 256 MiB that one run holds, the same in 16 runs, and 1 MiB in 16 runs. It reports
//
//   - stored-MB/s: stored bytes of the key a second, against the 90 MB/s of one request, and MB/s: bytes of its records;
//   - data-gets and meta-gets: requests for records and for the rest, and runs;
//   - first-ms: until the first record.
func BenchmarkReplay(b *testing.B) {
	for _, c := range []struct {
		name  string
		bytes int
		runs  int
		page  int64 // MaxBytes of a scan that is then begun again at its cursor; 0: one scan
	}{
		{"large/runs=1", 256 << 20, 1, 0},
		{"large/runs=16", 256 << 20, 16, 0},
		{"large/runs=1/pages", 256 << 20, 1, 8 << 20},
		{"small/runs=16", 1 << 20, 16, 0},
	} {
		b.Run(c.name, func(b *testing.B) {
			store := &traffic{Store: mem.New(mem.Options{})}
			stored, runs := fillReplay(b, store, c.bytes, c.runs)
			b.ResetTimer()
			for b.Loop() {
				benchmarkReplay(b, store, c.bytes, c.page)
			}
			seconds := b.Elapsed().Seconds() / float64(b.N)
			b.ReportMetric(float64(stored)/1e6/seconds, "stored-MB/s")
			b.ReportMetric(float64(c.bytes)/1e6/seconds, "MB/s")
			b.ReportMetric(float64(runs), "runs")
		})
	}
}

var replayKey = []byte("replay")

const replayValue = 4 << 10

// fillReplay writes the key, and a tenth as much of others, to so many runs. It returns about
// how many stored bytes are the key's.
func fillReplay(b *testing.B, store *traffic, bytes, runs int) (stored int64, held int) {
	options := Options{FlushInterval: 2 * time.Millisecond, MemtableBytes: 1 << 30, MaxUnflushedBytes: 1 << 30, DisableCompaction: runs > 1}
	if runs == 1 { // sealed, it is consolidated
		options.SegmentBytes = int64(bytes)
	}
	db, err := Open(b.Context(), store, options)
	if err != nil {
		b.Fatal(err)
	}
	defer db.Close(b.Context())
	rnd := rand.New(rand.NewPCG(3, 3))
	var recs []Record
	for i := range bytes / replayValue {
		recs = append(recs, Record{Key: replayKey, Value: halfRandom(rnd, replayValue)})
		if i%10 == 0 {
			recs = append(recs, Record{Key: benchKey(i), Value: halfRandom(rnd, replayValue)})
		}
		if perRun := bytes / replayValue / runs; (i+1)%100 == 0 || (i+1)%perRun == 0 {
			if _, err := db.Append(b.Context(), recs, AppendOptions{Ack: Memory}); err != nil {
				b.Fatal(err)
			}
			if recs = recs[:0]; (i+1)%perRun == 0 {
				if err := db.Flush(b.Context()); err != nil {
					b.Fatal(err)
				}
			}
		}
	}
	if runs == 1 {
		settle(b, db)
	}
	_, stored = store.learn(b, db)
	return stored * 10 / 11, db.Status().Runs
}

func benchmarkReplay(b *testing.B, store *traffic, bytes int, page int64) {
	b.StopTimer()
	db, err := Open(b.Context(), store, Options{DisableCompaction: true})
	if err != nil {
		b.Fatal(err)
	}
	defer db.Close(context.Background())
	db.tables.store = &distant{Store: store, rnd: rand.New(rand.NewPCG(4, 4))}
	b.StartTimer()
	n, from := 0, uint64(0)
	var first time.Duration
	data, meta := store.gets(func() {
		began := time.Now()
		for more := true; more; {
			it := db.Scan(b.Context(), replayKey, From(from), ScanOptions{MaxBytes: page})
			more = false
			for rec := range it.All() {
				if n == 0 {
					first = time.Since(began)
				}
				n += len(rec.Value)
				more = page > 0
			}
			if from = it.Next(); it.Err() != nil {
				b.Fatal(it.Err())
			}
		}
	})
	b.StopTimer()
	if n != bytes {
		b.Fatalf("read %d bytes of %d", n, bytes)
	}
	b.ReportMetric(float64(data), "data-gets")
	b.ReportMetric(float64(meta), "meta-gets")
	b.ReportMetric(first.Seconds()*1000, "first-ms")
	b.StartTimer()
}
