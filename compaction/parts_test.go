package compaction

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/annalsdb/annals/internal/base"
	"github.com/annalsdb/annals/objstore/fault"
	"github.com/annalsdb/annals/sst"
)

// TestPartsProperty: in however many parts a job is done, the output is the same records: the model's.
func TestPartsProperty(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		f := newFixture(rapid.Uint64().Draw(rt, "seed"), Limits{
			TableBytes: rapid.SampledFrom([]int64{1, 5 << 10, 20 << 10, 1 << 20}).Draw(rt, "table"),
			BlockBytes: rapid.SampledFrom([]int{256, 2 << 10, 32 << 10}).Draw(rt, "block"), ReadAhead: minReadAhead,
		})
		f.tableBytes = rapid.SampledFrom([]int64{1 << 10, 10 << 10, 1 << 30}).Draw(rt, "input table")
		f.blockBytes = rapid.SampledFrom([]int{1, 300, 4 << 10, 32 << 10}).Draw(rt, "input block")
		keys := rapid.SampledFrom([]int{1, 2, 30, 3000}).Draw(rt, "keys")
		hot := rapid.IntRange(0, 100).Draw(rt, "hot")
		size := rapid.SampledFrom([]int{0, 10, 300}).Draw(rt, "size")
		for range rapid.IntRange(1, 8).Draw(rt, "runs") {
			drift := f.rng.IntN(3) * 1000 // keys that come with time
			f.append(t, f.rng.IntN(200), func(int) []byte {
				if f.rng.IntN(100) < hot {
					return []byte("key/hot")
				}
				return fmt.Appendf(nil, "key/%05d", drift+f.rng.IntN(keys))
			}, func(int) []byte { return f.value(f.rng.IntN(size + 1)) })
		}
		f.sealActive()
		job := f.job()
		for _, parts := range []int{1, rapid.IntRange(2, 6).Draw(rt, "parts")} {
			r := f.runner(f.store)
			r.Env, r.Parts = testEnv(uint64(parts)), parts // other names than those before
			res, err := r.Run(t.Context(), job)
			require.NoError(rt, err)
			f.requireRecords(rt, job, res)
		}
	})
}

// parallel is a fixture whose job is worth several parts, and a runner that makes three.
func parallel(t *testing.T, hook fault.Hook) (*fixture, *Runner) {
	f := newFixture(6, small())
	f.tableBytes = 4 << 10
	for range 3 {
		f.some(t, 150, 40, 100)
	}
	r := f.runner(fault.New(f.store, hook))
	r.Parts = 3
	return f, r
}

func TestPartsFaultSweep(t *testing.T) {
	for _, applied := range []bool{false, true} {
		for n := 0; ; n++ {
			rule := fault.FailNth(n, applied, nil)
			f, r := parallel(t, rule.Hook)
			job := f.job()
			res, err := r.Run(t.Context(), job)
			require.NoError(t, err, "fault %d", n)
			require.GreaterOrEqual(t, len(res.Outputs), 3)
			f.requireDone(t, job, res)
			if !rule.Hit() {
				require.Greater(t, n, 20)
				break
			}
		}
	}
}

// A request that fails for good ends all parts, and names every object that may have been written.
func TestPartsFail(t *testing.T) {
	failed := fmt.Errorf("out of order")
	for n := 0; ; n++ {
		var mu sync.Mutex
		var name string
		written := map[string]bool{}
		f, r := parallel(t, func(_ context.Context, op fault.Op) fault.Plan {
			mu.Lock()
			defer mu.Unlock()
			if op.Kind == fault.Put {
				written[op.Name] = true
			}
			if op.Number == n {
				name = op.Name
			}
			if name != "" && op.Name == name {
				return fault.Refuse(failed)
			}
			return fault.Plan{}
		})
		res, err := r.Run(t.Context(), f.job())
		for _, id := range res.Outputs {
			delete(written, id.Name())
		}
		require.Empty(t, written, "objects that are not among the outputs")
		if name == "" {
			require.NoError(t, err)
			require.Greater(t, n, 20)
			return
		}
		require.ErrorIs(t, err, failed)
		require.Nil(t, res.Output)
	}
}

func TestPartsCancel(t *testing.T) {
	for n := 0; ; n++ {
		ctx, cancel := context.WithCancel(t.Context())
		var mu sync.Mutex
		var ended, hit bool
		f, r := parallel(t, func(_ context.Context, op fault.Op) fault.Plan {
			mu.Lock()
			defer mu.Unlock()
			if ended {
				panic("a request after the end")
			}
			if op.Number != n {
				return fault.Plan{}
			}
			hit = true
			return fault.Plan{Before: func(ctx context.Context) error { // never answers
				cancel()
				<-ctx.Done()
				return ctx.Err()
			}}
		})
		_, err := r.Run(ctx, f.job())
		mu.Lock()
		ended = true
		mu.Unlock()
		cancel()
		if !hit {
			require.NoError(t, err)
			require.Greater(t, n, 20)
			return
		}
		require.ErrorIs(t, err, context.Canceled)
	}
}

// F27: what the manifest says of keys is checked too.
func TestF27KeysOutsideOfTheBounds(t *testing.T) {
	f := newFixture(5, small())
	f.some(t, 100, 30, 60)
	f.some(t, 100, 30, 60)
	for _, r := range f.active().Runs {
		r.Tables[0].LowerKey, r.Tables[0].UpperKey = []byte("kx1"), []byte("kx2")
	}
	_, err := f.runner(f.store).Run(t.Context(), f.job())
	require.ErrorIs(t, err, base.ErrCorrupt)
	require.ErrorContains(t, err, "outside the bounds")
}

func TestDivide(t *testing.T) {
	at := func(key string, seq uint64, stored int64) sample {
		return sample{sst.Position{Key: []byte(key), Sequence: seq}, stored}
	}
	pos := func(key string, seq uint64) sst.Position { return sst.Position{Key: []byte(key), Sequence: seq} }
	var even []sample
	for i := range 100 {
		even = append(even, at(fmt.Sprintf("%02d", i), 7, 10))
	}
	for name, c := range map[string]struct {
		samples []sample
		n       int
		want    []sst.Position
	}{
		"nothing":   {nil, 4, nil},
		"one place": {[]sample{at("a", 0, 10)}, 4, nil},
		"even":      {even, 4, []sst.Position{pos("25", 0), pos("50", 0), pos("75", 0)}},
		"one key": {[]sample{at("k", 1, 10), at("k", 5, 10), at("k", 9, 10), at("k", 20, 10)}, 2,
			[]sst.Position{pos("k", 9)}},
		"a key that is a part": {[]sample{at("a", 1, 10), at("k", 1, 50), at("k", 2, 50), at("z", 1, 10)}, 2,
			[]sst.Position{pos("k", 2)}},
		"a key that is small": {[]sample{at("a", 1, 50), at("k", 1, 3), at("k", 2, 3), at("z", 1, 50)}, 2,
			[]sst.Position{pos("k", 0)}},
		"one sample has it all": {[]sample{at("a", 1, 1), at("b", 1, 1000), at("c", 1, 1)}, 4,
			[]sst.Position{pos("b", 0), pos("c", 0)}},
	} {
		t.Run(name, func(t *testing.T) { require.Equal(t, c.want, divide(c.samples, c.n)) })
	}
}

// Parts of a job of some size are about equally large, also when keys come with time and when one key is
// most of it.
func TestPartsAreBalanced(t *testing.T) {
	for name, key := range map[string]func(run, i int) []byte{
		"spread": func(_, i int) []byte { return fmt.Appendf(nil, "%06d", i*7919%10007) },
		"drift":  func(run, i int) []byte { return fmt.Appendf(nil, "%02d%06d", run, i) },
		"hot":    func(_, i int) []byte { return fmt.Appendf(nil, "%06d", max(0, i*7919%10007-9000)) },
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(5, Limits{TableBytes: 1 << 30, ReadAhead: minReadAhead})
			for run := range 8 {
				f.append(t, 3000, func(i int) []byte { return key(run, i) }, func(int) []byte { return f.value(100) })
			}
			job := f.job()
			r := f.runner(f.store)
			r.Parts = 4
			res, err := r.Run(t.Context(), job)
			require.NoError(t, err)
			require.Len(t, res.Output.Tables, 4)
			for _, line := range res.Output.Tables {
				require.InDelta(t, 0.25, float64(line.Bytes)/float64(job.Bytes), 0.06)
			}
			f.requireDone(t, job, res)
		})
	}
}

// The last table of each part may be small; no other is.
func TestTablesOfPartsAreFull(t *testing.T) {
	f := newFixture(5, Limits{TableBytes: 200 << 10, ReadAhead: minReadAhead})
	for range 8 {
		f.some(t, 4000, 1000, 100)
	}
	r := f.runner(f.store)
	r.Parts = 4
	job := f.job()
	res, err := r.Run(t.Context(), job)
	require.NoError(t, err)
	small := 0
	for _, line := range res.Output.Tables {
		if line.Size < 180<<10 {
			small++
		}
	}
	require.Greater(t, len(res.Output.Tables), 4)
	require.LessOrEqual(t, small, 4)
	f.requireDone(t, job, res)
}

// F42: 31 inputs of which each has values of 16 MiB need no more memory than those of small ones,
// but for two of the values.
func TestF42MemoryOfLargeValues(t *testing.T) {
	if testing.Short() {
		t.Skip("it measures memory, and is long")
	}
	const large = 16 << 20
	f := newFixture(9, Limits{})
	noise, half := f.noise(large), f.value(large)
	for run := range 31 {
		f.append(t, 20, func(i int) []byte { return fmt.Appendf(nil, "%02d", (i*7+run)%20) }, func(i int) []byte {
			switch {
			case i == 10 && run < 2:
				return half
			case i == 10:
				return noise
			}
			return f.value(1000)
		})
	}
	f.model = nil
	job := f.job()
	peak := livePeak(t, func(t *testing.T, sample fault.Hook) {
		r := f.runner(fault.New(discard{f.store}, sample))
		r.Parts, r.MaxBufferBytes = 2, 0
		_, err := r.Run(t.Context(), job)
		require.NoError(t, err)
	})
	t.Logf("%d MiB of records in 2 parts: peak %.1f MiB above the start", job.Bytes>>20, float64(peak)/mib)
	require.Less(t, peak, int64(tableMemory+DefaultBufferBytes+2*large+16*mib)) // and the metadata of 31 tables, twice
}

// F28: a key that is larger than all the memory that a compaction may use.
func TestF28MemoryOfOneKey(t *testing.T) {
	if testing.Short() {
		t.Skip("it measures memory, and is long")
	}
	f := newFixture(11, Limits{})
	f.blockBytes = DefaultBlockBytes
	noise := f.noise(1 << 20)
	for range 16 {
		f.append(t, 2500, func(int) []byte { return []byte("k") }, func(i int) []byte {
			at := i * 10_007 % (len(noise) - 10_000) // no two of a block have bytes in common
			return noise[at : at+10_000]
		})
		f.model = nil
	}
	job := f.job()
	require.Greater(t, job.Stored, uint64(320*mib))
	for _, parts := range []int{1, 4} {
		peak := livePeak(t, func(t *testing.T, sample fault.Hook) {
			r := f.runner(fault.New(discard{f.store}, sample))
			r.Parts, r.MaxBufferBytes = parts, 0
			res, err := r.Run(t.Context(), job)
			require.NoError(t, err)
			require.Greater(t, len(res.Output.Tables), 5)
		})
		t.Logf("%d MiB of one key in %d parts: peak %.1f MiB above the start", job.Stored>>20, parts, float64(peak)/mib)
		require.Less(t, peak, int64(tableMemory+DefaultBufferBytes+16*mib))
	}
}
