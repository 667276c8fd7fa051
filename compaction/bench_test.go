package compaction

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"runtime"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/internal/base"
)

// cost measures what a benchmark's loop costs per byte of keys and values.
type cost struct {
	b     *testing.B
	bytes float64 // of one iteration
	cpu   float64
	mem   runtime.MemStats
}

func newCost(b *testing.B, bytes uint64) *cost {
	c := &cost{b: b, bytes: float64(bytes)}
	runtime.GC()
	b.SetBytes(int64(bytes))
	runtime.ReadMemStats(&c.mem)
	c.cpu = cpuSeconds()
	b.ResetTimer()
	return c
}

// report adds megabytes per second of processor time, the collector's included, and
// bytes allocated for each byte.
func (c *cost) report() {
	used := cpuSeconds() - c.cpu
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	total := c.bytes * float64(c.b.N)
	c.b.ReportMetric(total/1e6/used, "MB/cpu-s")
	c.b.ReportMetric(float64(m.TotalAlloc-c.mem.TotalAlloc)/total, "alloc-B/B")
}

// cpuSeconds is the processor time that the process has used.
func cpuSeconds() float64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return float64(u.Utime.Nano()+u.Stime.Nano()) / 1e9
}

// sized returns the full size of a benchmark's data; with -short, when one iteration shows that the
// benchmark still works, a small one.
func sized(full, short int) int {
	if testing.Short() {
		return short
	}
	return full
}

// load is what a benchmark compacts: as many runs as a full segment has when it is sealed, each a
// fraction of a memtable's size over the same fraction of the keys, so that keys, runs and
// blocks have the same proportions.
type load struct {
	name     string
	runs     int
	runBytes int
	keys     int
	size     int // of a value
	value    func(rng *rand.Rand, b []byte)
}

var loads = []load{
	{"many-keys", 31, 8 << 20, 125_000, 176, halfRandom},
	{"few-keys", 31, 8 << 20, 5_000, 176, halfRandom},
	{"half-constant", 31, 8 << 20, 125_000, 176, halfConstant},
	{"text", 31, 8 << 20, 125_000, 176, text},
	{"one-key", 31, 8 << 20, 1, 176, halfRandom},
	{"large-values", 31, 8 << 20, 10_000, 4000, halfRandom},
}

// halfRandom makes bytes that compress about 2 to 1: every second 16 of them are zero.
func halfRandom(rng *rand.Rand, b []byte) {
	for i := 0; i < len(b); i++ {
		b[i] = 0
	}
	for i := 0; i+16 <= len(b); i += 32 {
		binary.LittleEndian.PutUint64(b[i:], rng.Uint64())
		binary.LittleEndian.PutUint64(b[i+8:], rng.Uint64())
	}
}

// halfConstant makes bytes that compress about 2 to 1: the second half is constant.
func halfConstant(rng *rand.Rand, b []byte) {
	for i := range b {
		if b[i] = 'x'; i < len(b)/2 {
			b[i] = byte(rng.Uint32())
		}
	}
}

// text makes bytes like those of a JSON event with two ids in it.
func text(rng *rand.Rand, b []byte) {
	verbs := []string{"click", "view", "purchase", "login", "scroll"}
	s := fmt.Appendf(nil, `{"event":"%s","user_id":%d,"session":"%016x","ts":%d,"ip":"10.%d.%d.%d","score":%.4f,"trace":"%016x%016x`,
		verbs[rng.IntN(len(verbs))], rng.Uint32(), rng.Uint64(), 1_700_000_000_000+rng.Int64N(1e9),
		rng.IntN(256), rng.IntN(256), rng.IntN(256), rng.Float64(), rng.Uint64(), rng.Uint64())
	for n := copy(b, s); n < len(b); n++ {
		b[n] = ' '
	}
}

func (l load) key(i int) []byte {
	return fmt.Appendf(nil, "user/%016x", uint64(i)*0x9E3779B97F4A7C15)
}

// shortPart is by what a load is divided with -short.
const shortPart = 32

// records is how many a run has.
func (l load) records() int { return sized(l.runBytes, l.runBytes/shortPart) / (l.size + 21) }

// build writes the runs and returns the job that merges them.
func (l load) build(b *testing.B) (*fixture, Job) {
	f := newFixture(10, Limits{})
	f.blockBytes = DefaultBlockBytes
	n, keys := l.records(), max(1, sized(l.keys, l.keys/shortPart))
	for range l.runs {
		values := make([]byte, n*l.size)
		f.append(b, n, func(int) []byte { return l.key(f.rng.IntN(keys)) }, func(i int) []byte {
			v := values[i*l.size : (i+1)*l.size]
			l.value(f.rng, v)
			return v
		})
		f.model = nil
	}
	return f, f.job()
}

// BenchmarkRelieve merges runs of the active segment. Store requests cost no more than a copy of what
// they read.
func BenchmarkRelieve(b *testing.B) { benchmark(b, Relieve) }

// BenchmarkConsolidate merges the same runs when the segment is sealed.
func BenchmarkConsolidate(b *testing.B) { benchmark(b, Consolidate) }

func benchmark(b *testing.B, kind Kind) {
	for _, l := range loads {
		for _, parts := range []int{1, 2} {
			b.Run(fmt.Sprintf("%s/parts=%d", l.name, parts), func(b *testing.B) {
				f, job := l.build(b)
				job.Kind = kind
				r := f.runner(discard{f.store})
				r.Env, r.MaxBufferBytes, r.Parts = base.SystemEnv(), 0, parts
				c := newCost(b, job.Bytes)
				var out uint64
				for b.Loop() {
					res, err := r.Run(b.Context(), job)
					require.NoError(b, err)
					out = res.BytesOut
				}
				c.report()
				b.ReportMetric(float64(job.Bytes)/float64(out), "ratio")
			})
		}
	}
}

// BenchmarkMemory copies the records of the first load once, key by key as they were written: what
// this machine's memory can do at this moment, to compare runs of the other benchmark with.
func BenchmarkMemory(b *testing.B) {
	l := loads[0]
	rng := rand.New(rand.NewPCG(1, 1))
	records := make([][]byte, l.records()*l.runs)
	all := make([]byte, len(records)*(l.size+21))
	for i, at := range rng.Perm(len(records)) {
		records[i] = all[at*(l.size+21):][:l.size+21]
	}
	out := make([]byte, 0, DefaultBlockBytes)
	c := newCost(b, uint64(len(all)))
	for b.Loop() {
		for _, rec := range records {
			if len(out)+len(rec) > cap(out) {
				out = out[:0]
			}
			out = append(out, rec...)
		}
	}
	c.report()
}
