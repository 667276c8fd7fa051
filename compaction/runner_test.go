package compaction

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/internal/base"
	"github.com/annalsdb/annals/manifest"
	"github.com/annalsdb/annals/objstore"
	"github.com/annalsdb/annals/objstore/fault"
)

func small() Limits {
	return Limits{TableBytes: 20 << 10, BlockBytes: 2 << 10, ReadAhead: minReadAhead}
}

func TestRun(t *testing.T) {
	for name, c := range map[string]struct {
		limits     Limits
		tableBytes int64
		build      func(f *fixture)
		tables     int // at least
	}{
		"one run": {small(), 1 << 20, func(f *fixture) { f.some(t, 100, 10, 50) }, 1},
		"runs, tables and gaps": {small(), 10 << 10, func(f *fixture) {
			f.append(t, 0, nil, nil)
			for range 8 {
				f.some(t, 1000, 50, 60)
				f.append(t, 0, nil, nil)
			}
		}, 5},
		"gaps only": {small(), 1 << 20, func(f *fixture) {
			f.append(t, 0, nil, nil)
			f.append(t, 0, nil, nil)
		}, 0},
		"segments": {small(), 10 << 10, func(f *fixture) {
			for range 5 {
				f.some(t, 500, 200, 60)
				f.sealActive()
			}
		}, 2},
		"many runs of few records": {small(), 1 << 20, func(f *fixture) {
			for range 64 {
				f.some(t, 3, 5, 10)
			}
		}, 1},
		"a key in every second record (F28)": {small(), 30 << 10, func(f *fixture) {
			for range 4 {
				f.append(t, 600, func(i int) []byte {
					if i%2 == 0 {
						return []byte("m")
					}
					return fmt.Appendf(nil, "%c%d", "az"[i/2%2], i)
				}, func(int) []byte { return f.value(300) })
			}
		}, 12},
		"one key only (F28)": {small(), 30 << 10, func(f *fixture) {
			for range 4 {
				f.append(t, 400, func(int) []byte { return nil }, func(int) []byte { return f.value(300) })
			}
		}, 12},
		"huge values among small ones (F42)": {small(), 1 << 30, func(f *fixture) {
			for range 3 {
				f.append(t, 60, func(i int) []byte { return fmt.Appendf(nil, "%02d", i%7) }, func(i int) []byte {
					if i%20 == 3 {
						return f.value(1 << 20)
					}
					return f.value(10)
				})
			}
		}, 7},
		"keys that differ late": {small(), 10 << 10, func(f *fixture) {
			for range 3 {
				f.append(t, 300, func(int) []byte {
					return append(bytes.Repeat([]byte{0xFF}, f.rng.IntN(40)), byte(f.rng.IntN(3)))
				}, func(int) []byte { return f.value(100) })
			}
		}, 3},
		"default limits": {Limits{}, 1 << 20, func(f *fixture) {
			for range 3 {
				f.some(t, 3000, 500, 200)
			}
		}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(1, c.limits)
			f.tableBytes = c.tableBytes
			c.build(f)
			f.requireValid(t)
			job := f.job()
			res, err := f.runner(f.store).Run(t.Context(), job)
			require.NoError(t, err)
			require.GreaterOrEqual(t, len(res.Outputs), c.tables)
			for i, line := range res.Output.Tables {
				largest := int64(1 << 20) // a value and what goes with it
				if !strings.Contains(name, "huge") {
					largest = 8 << 10
				}
				require.LessOrEqual(t, int64(line.Size), f.l.checked().TableBytes*9/8+largest, "table %d", i)
			}
			f.requireDone(t, job, res)
		})
	}
}

// TestCompressionByKind: the same records take more bytes while their segment is active than
// when it is sealed, and merging what is sealed leaves them as they are.
func TestCompressionByKind(t *testing.T) {
	f := newFixture(1, Limits{})
	for range 4 {
		f.append(t, 500, func(int) []byte { return fmt.Appendf(nil, "k%04d", f.rng.IntN(200)) }, func(int) []byte {
			v := make([]byte, 176)
			text(f.rng, v)
			return v
		})
	}
	job := f.job()
	stored := map[Kind]uint64{}
	for _, kind := range []Kind{Relieve, Consolidate, Merge} {
		job.Kind = kind
		res, err := f.runner(f.store).Run(t.Context(), job)
		require.NoError(t, err)
		f.requireRecords(t, job, res)
		stored[kind] = res.BytesOut
	}
	require.Greater(t, stored[Relieve], stored[Consolidate]*5/4)
	require.Equal(t, stored[Consolidate], stored[Merge])
}

// A table ends where a key ends, unless a key goes on for too long.
func TestTablesAreCutAtKeys(t *testing.T) {
	f := newFixture(2, Limits{TableBytes: 20 << 10, BlockBytes: 1 << 10})
	for range 4 {
		f.some(t, 2000, 300, 40)
	}
	res, err := f.runner(f.store).Run(t.Context(), f.job())
	require.NoError(t, err)
	require.Greater(t, len(res.Outputs), 3)
	var last []byte
	for i, line := range res.Output.Tables {
		p := openTable(t, f.store, line).Properties()
		require.True(t, i == 0 || !bytes.Equal(last, p.FirstKey), "key %q is in two tables", last)
		last = p.LastKey
	}
}

// Requests are exact: per input table one for the metadata and the data in chunks.
func TestRequests(t *testing.T) {
	f := newFixture(3, Limits{ReadAhead: 64 << 10})
	for range 4 {
		f.some(t, 1500, 100, 200)
	}
	job := f.job()
	want := uint64(0)
	for _, r := range job.Inputs {
		require.Len(t, r.Tables, 1)
		want += 1 + (r.Tables[0].MetaOffset+minChunk-1)/minChunk
	}
	require.Greater(t, want, uint64(8), "more than one chunk a table")
	counter := new(fault.Counter)
	res, err := f.runner(fault.New(f.store, counter.Hook)).Run(t.Context(), job)
	require.NoError(t, err)
	require.Equal(t, fault.Counts{Put: 1, Get: int(want)}, counter.Counts().Requests())
	require.Equal(t, int64(job.Stored), counter.Counts().BytesGot, "each byte is read once")
	require.Equal(t, want, res.Gets)
	require.Equal(t, uint64(1), res.Puts)
}

// F27, F37: input that cannot be read, is short or is wrong fails the job.
func TestF27BadInput(t *testing.T) {
	isData := func(op fault.Op) bool { return op.Kind == fault.Get && op.GetOptions.Offset > 0 }
	for name, c := range map[string]struct {
		hook fault.Hook
		want error
	}{
		"reads fail":        {fault.OnKind(fault.Get, fault.Always(fault.Refuse(io.ErrUnexpectedEOF))), io.ErrUnexpectedEOF},
		"later reads fail":  {fault.On(isData, fault.Always(fault.Refuse(io.ErrUnexpectedEOF))), io.ErrUnexpectedEOF},
		"silently short":    {fault.OnKind(fault.Get, fault.Always(fault.Truncate(100))), base.ErrCorrupt},
		"a wrong byte":      {fault.On(isData, fault.Always(fault.FlipByte(777))), base.ErrCorrupt},
		"gone":              {fault.OnKind(fault.Get, fault.Always(fault.Refuse(objstore.ErrNotFound))), objstore.ErrNotFound},
		"gone in the midst": {fault.On(isData, fault.Always(fault.Refuse(objstore.ErrNotFound))), objstore.ErrNotFound},
		"another size": {fault.OnKind(fault.Get, fault.Always(fault.Plan{Mangle: func(o *objstore.Object) error {
			o.Size++
			return nil
		}})), base.ErrCorrupt},
		"uploads fail":         {fault.OnKind(fault.Put, fault.Always(fault.Lose(io.ErrClosedPipe))), nil}, // they are there
		"uploads never arrive": {fault.OnKind(fault.Put, fault.Always(fault.Refuse(io.ErrClosedPipe))), io.ErrClosedPipe},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(4, small())
			f.tableBytes = 150 << 10
			for range 3 {
				f.some(t, 1500, 100, 200)
			}
			res, err := f.runner(fault.New(f.store, c.hook)).Run(t.Context(), f.job())
			require.NotNil(t, res)
			if c.want == nil {
				require.NoError(t, err)
				return
			}
			require.ErrorIs(t, err, c.want)
			require.Nil(t, res.Output)
			require.Nil(t, res.Edit.Apply)
			page, lerr := f.store.List(t.Context(), base.ObjectPrefix(0, base.KindSST), "", 0)
			require.NoError(t, lerr)
			names := map[string]bool{}
			for _, id := range res.Outputs {
				names[id.Name()] = true
			}
			for _, e := range page.Entries {
				id, _ := base.ParseObjectName(e.Name)
				require.True(t, id.Role == base.RoleWriter || names[e.Name], "%s is not among the outputs", e.Name)
			}
		})
	}
}

// F27: a manifest that says something else than its tables.
func TestF27WrongManifest(t *testing.T) {
	for name, change := range map[string]func(r []*manifest.Run){
		"a record more":       func(r []*manifest.Run) { r[1].Tables[0].Records++ },
		"bytes":               func(r []*manifest.Run) { r[1].Tables[0].Bytes++ },
		"timestamps":          func(r []*manifest.Run) { r[1].Tables[0].LastTimestampMs++ },
		"metadata elsewhere":  func(r []*manifest.Run) { r[1].Tables[0].MetaOffset-- },
		"another table's id":  func(r []*manifest.Run) { r[1].Tables[0].Ref = r[1].Tables[1].Ref },
		"tables out of order": func(r []*manifest.Run) { r[1].Tables[0], r[1].Tables[1] = r[1].Tables[1], r[1].Tables[0] },
		"a narrower run":      func(r []*manifest.Run) { r[1].End -= 10; r[2].Start = r[1].End },
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(5, small())
			f.tableBytes = 8 << 10
			for range 3 {
				f.some(t, 500, 30, 60)
			}
			require.GreaterOrEqual(t, len(f.active().Runs[1].Tables), 2)
			change(f.active().Runs)
			res, err := f.runner(f.store).Run(t.Context(), f.job())
			require.ErrorIs(t, err, base.ErrCorrupt)
			require.Nil(t, res.Output)
		})
	}

	f := newFixture(5, small())
	f.some(t, 50, 3, 6)
	f.some(t, 50, 3, 6)
	job := f.job()
	job.Records--
	_, err := f.runner(f.store).Run(t.Context(), job)
	require.ErrorContains(t, err, "the manifest counts 99 records, 100 were read and 100 written")
	job.Inputs[0], job.Inputs[1] = job.Inputs[1], job.Inputs[0]
	_, err = f.runner(f.store).Run(t.Context(), job)
	require.ErrorContains(t, err, "does not begin where")
	_, err = f.runner(f.store).Run(t.Context(), Job{})
	require.ErrorContains(t, err, "no inputs")
}

// F27: of a key, a later run has an earlier timestamp. Each table is fine, and so is each run.
func TestF27TimestampsThatGoBack(t *testing.T) {
	f := newFixture(8, small())
	f.some(t, 100, 3, 60)
	f.timeOff = -1000
	f.some(t, 100, 3, 60)
	res, err := f.runner(f.store).Run(t.Context(), f.job())
	require.ErrorIs(t, err, base.ErrCorrupt)
	require.ErrorContains(t, err, "follows record")
	require.Nil(t, res.Output)
}

// One fault at each request, applied or not, changes nothing: requests are repeated, and
// a refused PUT is read back.
func TestFaultSweep(t *testing.T) {
	for _, err := range []error{nil, objstore.ErrConflict, objstore.ErrPrecondition} {
		for _, applied := range []bool{false, true} {
			for n := 0; ; n++ {
				f := newFixture(6, small())
				f.tableBytes = 3 << 10
				for range 3 {
					f.some(t, 120, 40, 100)
				}
				rule := fault.FailNth(n, applied, err)
				job := f.job()
				res, err := f.runner(fault.New(f.store, rule.Hook)).Run(t.Context(), job)
				require.NoError(t, err, "fault %d", n)
				f.requireDone(t, job, res)
				if !rule.Hit() {
					require.Greater(t, n, 10)
					break
				}
			}
		}
	}
}

func TestAnotherObjectHasTheName(t *testing.T) {
	f := newFixture(7, small())
	f.some(t, 100, 10, 100)
	job := f.job()
	store := fault.New(f.store, fault.OnKind(fault.Put, func(ctx context.Context, op fault.Op) fault.Plan {
		return fault.Plan{Before: func(ctx context.Context) error {
			body := bytes.Clone(op.Body)
			body[len(body)/2]++
			_, err := f.store.Put(ctx, op.Name, body, objstore.PutOptions{IfAbsent: true})
			return err
		}}
	}))
	_, err := f.runner(store).Run(t.Context(), job)
	require.ErrorIs(t, err, base.ErrCorrupt)
}

// Cancelling at any request ends the run with its context's error, and nothing runs on.
func TestCancel(t *testing.T) {
	for n := 0; ; n++ {
		f := newFixture(8, small())
		f.tableBytes = 5 << 10
		for range 3 {
			f.some(t, 300, 40, 100)
		}
		ctx, cancel := context.WithCancelCause(t.Context())
		cause := errors.New("stop")
		var mu sync.Mutex
		var ended, hit bool
		store := fault.New(f.store, func(_ context.Context, op fault.Op) fault.Plan {
			mu.Lock()
			defer mu.Unlock()
			require.False(t, ended, "a request after the end")
			if op.Number != n {
				return fault.Plan{}
			}
			hit = true
			return fault.Plan{Before: func(ctx context.Context) error { // never answers
				cancel(cause)
				<-ctx.Done()
				return ctx.Err()
			}}
		})
		res, err := f.runner(store).Run(ctx, f.job())
		mu.Lock()
		ended = true
		mu.Unlock()
		cancel(nil)
		if !hit {
			require.NoError(t, err)
			require.Greater(t, n, 10)
			return
		}
		require.ErrorIs(t, err, context.Canceled)
		require.Nil(t, res.Output)
	}
}

// discard takes the outputs and forgets them.
type discard struct{ objstore.Store }

func (discard) Put(context.Context, string, []byte, objstore.PutOptions) (objstore.PutResult, error) {
	return objstore.PutResult{}, nil
}

// The memory of a run does not depend on the size of its input.
func TestMemoryIsBounded(t *testing.T) {
	if testing.Short() {
		t.Skip("it measures memory, and is long")
	}
	l := Limits{TableBytes: 1 << 20, ReadAhead: 64 << 10}
	peak := func(records int) (most int64, input uint64) {
		f := newFixture(9, l)
		f.tableBytes = 1 << 20
		values := make([][]byte, 64)
		for i := range values {
			values[i] = f.value(1000)
		}
		for range 16 {
			f.append(t, records, func(i int) []byte { return fmt.Appendf(nil, "%06d", i*7919%5000) },
				func(i int) []byte { return values[i%len(values)] })
		}
		f.model = nil
		job := f.job()
		most = livePeak(t, func(t *testing.T, sample fault.Hook) {
			r := f.runner(fault.New(discard{f.store}, sample))
			r.MaxBufferBytes = 2 << 20
			_, err := r.Run(t.Context(), job)
			require.NoError(t, err)
		})
		return most, job.Bytes
	}
	most, input := peak(1500)
	t.Logf("%d MiB of records: peak %.1f MiB above the start", input>>20, float64(most)/mib)
	// 2 MiB of input, two tables of 1 MiB, 16 times the metadata and a block.
	require.Less(t, most, int64(8*mib))
	require.Greater(t, input, uint64(20*mib))
}
