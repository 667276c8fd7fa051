package compaction

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/internal/base"
	"github.com/annalsdb/annals/manifest"
	"github.com/annalsdb/annals/objstore"
	"github.com/annalsdb/annals/objstore/fault"
)

// Segments become groups of 1, 8 and 64, with the oldest dropped on the way: the lists
// and the masks of all keys are right after each step.
func TestGroupsAgainstModel(t *testing.T) {
	for seed := range uint64(2) {
		g := newGrouped(100 + seed)
		const segments = 90
		for range segments {
			g.someSegment(t)
			g.settleGroups(t)
			switch n := g.live(); {
			case n == 1 || n == 8 || n == 63 || n == 64 || n%17 == 0:
				g.requireGroups(t)
			}
		}
		require.Equal(t, segments, g.live())
		require.Equal(t, uint32(64), g.s.Groups[0].Segments)
		require.Len(t, g.s.Groups, 1+1+2)
		// Retention: into the large group, past it, into the next one.
		for _, upTo := range []uint32{5, 40, 63, 64, 67, 80} {
			g.dropReal(t, upTo)
			require.Equal(t, segments-int(upTo), g.live())
			g.requireGroups(t)
		}
		for range 70 { // what was trimmed is regrouped
			g.someSegment(t)
			g.settleGroups(t)
		}
		g.requireGroups(t)
		require.Less(t, len(g.s.Groups), 16)
	}
}

// A group that was trimmed goes into the next one without what was dropped.
func TestRegroupLeavesOutWhatWasDropped(t *testing.T) {
	g := newGrouped(1)
	for range 8 {
		g.someSegment(t)
		g.settleGroups(t)
	}
	require.Len(t, g.s.Groups, 1)
	g.dropReal(t, 5)
	for range 8 {
		g.someSegment(t)
		g.settleGroups(t)
	}
	require.Len(t, g.s.Groups, 2)
	job := newGroupJob(g.s.Groups, nil)
	require.Equal(t, "group segments 6 to 16", job.String()[:22])
	res, err := g.runner(g.store).Run(t.Context(), job)
	require.NoError(t, err)
	require.NoError(t, res.Edit.Apply(g.s))
	g.requireValid(t)
	g.requireGroups(t)
	x := g.index(t, g.s.Groups[0])
	require.Equal(t, 11, x.Len())
	for key, in := range g.keys { // keys of dropped segments only are gone
		if in[len(in)-1] <= 5 {
			ids, _ := g.lookup(t, g.s.Groups[0], x, []byte(key))
			require.Empty(t, ids)
		}
	}
}

// Groups and the segments behind them may become one group at once.
func TestGroupsAndSegmentsAtOnce(t *testing.T) {
	g := newGrouped(2)
	for range 3 {
		g.someSegment(t)
		g.settleGroups(t)
	}
	for range 4 {
		g.someSegment(t)
	}
	res, err := g.runner(g.store).Run(t.Context(), newGroupJob(g.s.Groups[1:], g.s.Segments[:4]))
	require.NoError(t, err)
	require.NoError(t, res.Edit.Apply(g.s))
	g.requireValid(t)
	require.Len(t, g.s.Groups, 2)
	require.Len(t, g.s.Segments, 1)
	g.requireGroups(t)
}

func TestGroupRefusesWrongJobs(t *testing.T) {
	g := newGrouped(3)
	for range 3 {
		g.someSegment(t)
		g.settleGroups(t)
	}
	g.someSegment(t)
	g.someSegment(t)
	groups, segments := g.s.Groups, g.s.Segments
	two := manifest.Segment{Id: 9, Sealed: true, Runs: []*manifest.Run{{}, {}}}
	for what, job := range map[string]Job{
		"nothing to group":              {Kind: Group},
		"nothing to":                    newGroupJob(groups[:1], nil),
		"does not begin where the one":  newGroupJob([]*manifest.Group{groups[0], groups[2]}, nil),
		"segment 5 does not begin":      newGroupJob(groups, segments[1:2]),
		"is not sealed or has 0 runs":   newGroupJob(groups, segments),
		"segment 9 is not sealed or ha": {Kind: Group, Segments: []*manifest.Segment{&two}},
	} {
		res, err := g.runner(g.store).Run(t.Context(), job)
		require.ErrorContains(t, err, what)
		require.Empty(t, res.Outputs)
	}
}

// Few keys in memory: as many passes as it takes, and the very same index.
func TestGroupInPasses(t *testing.T) {
	var passes [2]int
	var bodies [2][]byte
	for i, buffer := range []int64{1 << 20, 8 * minPassHashes} {
		g := newGrouped(4)
		g.tableBytes = 20 << 10
		g.segment(t, 9000, func(i int) []byte { return fmt.Appendf(nil, "key %d", i*7919%6007) })
		r := g.runner(g.store)
		r.MaxBufferBytes = buffer
		counter := new(fault.Counter)
		r.Store = fault.New(g.store, counter.Hook)
		res, err := r.Run(t.Context(), Plan(g.s, g.l)[0])
		require.NoError(t, err)
		require.NoError(t, res.Edit.Apply(g.s))
		g.requireGroups(t)
		require.Equal(t, uint64(6007), g.s.Groups[0].Keys)
		passes[i] = counter.Counts().Get / int(g.s.Groups[0].Tables)
		bodies[i] = g.object(t, res.Outputs[0])
	}
	require.Equal(t, bodies[0], bodies[1])
	require.Equal(t, 1, passes[0])
	require.GreaterOrEqual(t, passes[1], 6007/minPassHashes)
	require.LessOrEqual(t, passes[1], 2*6007/minPassHashes+2)
}

// Keys whose hashes all lie close together: the pass that they do not fit into ends early.
func TestGroupOfUnevenHashes(t *testing.T) {
	g := newGrouped(5)
	n := 0
	g.segment(t, 5000, func(int) []byte {
		for {
			n++
			if k := fmt.Appendf(nil, "%d", n); manifest.HashKey(k) < 1<<32 { // one of 256
				return k
			}
		}
	})
	r := g.runner(g.store)
	r.MaxBufferBytes = 8 * minPassHashes
	res, err := r.Run(t.Context(), Plan(g.s, g.l)[0])
	require.NoError(t, err)
	require.NoError(t, res.Edit.Apply(g.s))
	g.requireGroups(t)
	require.Equal(t, uint64(5000), g.s.Groups[0].Keys)
}

// A segment with too many keys gets an index without any, in one pass that only counts. What
// is made of it knows as much.
func TestGroupOfTooManyKeys(t *testing.T) {
	g := newGrouped(6)
	g.segment(t, 3000, func(i int) []byte { return fmt.Appendf(nil, "key %d", i) })
	counter := new(fault.Counter)
	task := &task{r: g.runner(fault.New(g.store, counter.Hook)), job: Plan(g.s, g.l)[0], res: &Result{}}
	task.limits = g.l.checked()
	gr := grouping{task: task}
	gr.addSegment(g.s.Segments[0])
	s := &countedStream{directoryStream: gr.streams[0].(*directoryStream)}
	gr.streams[0] = s
	body, line, ref, err := gr.build(t.Context())
	require.NoError(t, err)
	task.running.Wait()
	require.Equal(t, len(g.s.Segments[0].Runs[0].Tables), counter.Counts().Get)
	require.Zero(t, line.Keys)
	_, err = g.store.Put(t.Context(), ref.Name(), body, objstore.PutOptions{IfAbsent: true})
	require.NoError(t, err)
	edit := manifest.Regroup{Epoch: testEpoch, Output: line, Segments: []manifest.SegmentRef{{ID: 1, Run: g.s.Segments[0].Runs[0].Id}}}
	require.NoError(t, edit.Edit().Apply(g.s))
	require.Equal(t, uint64(3000), g.index(t, line).Segment(0).Keys)

	for range 7 {
		g.someSegment(t)
	}
	g.settleGroups(t)
	require.Len(t, g.s.Groups, 1)
	x := g.index(t, g.s.Groups[0])
	for key, in := range g.keys {
		ids, exact := g.lookup(t, g.s.Groups[0], x, []byte(key))
		if in[0] != 1 {
			in = append([]uint32{1}, in...)
			require.False(t, exact)
		}
		require.Equal(t, in, ids, "key %q", key)
	}
}

// countedStream is a directoryStream that thinks that ten keys are too many.
type countedStream struct{ *directoryStream }

func (s *countedStream) begin(b *manifest.IndexBuilder, streams int) {
	s.directoryStream.begin(b, streams)
	s.most = 10
}

// Requests are exact: for a group of 1 the metadata of each table, for a regrouping the tail of
// each index and its shards in chunks.
func TestGroupRequests(t *testing.T) {
	g := newGrouped(7)
	g.tableBytes = 1 << 40
	for range 8 {
		g.segment(t, 3000, func(i int) []byte { return fmt.Appendf(nil, "key %d", g.rng.IntN(1<<30)) })
	}
	run := func(groups, segments, puts int) (*Result, fault.Counts) {
		counter := new(fault.Counter)
		job := newGroupJob(g.s.Groups[:groups], g.s.Segments[:segments])
		r := g.runner(fault.New(g.store, counter.Hook))
		res, err := r.Run(t.Context(), job)
		require.NoError(t, err)
		require.NoError(t, res.Edit.Apply(g.s))
		c := counter.Counts()
		require.Equal(t, puts, c.Put)
		require.Equal(t, res.Gets, uint64(c.Get))
		require.Equal(t, res.Puts, uint64(c.Put))
		require.Equal(t, int64(res.BytesIn), c.BytesGot)
		require.Equal(t, int64(res.BytesOut), c.BytesPut)
		return res, c
	}
	for range 8 {
		line := g.s.Segments[0].Runs[0].Tables[0]
		_, c := run(0, 1, 1)
		require.Equal(t, fault.Counts{Put: 1, Get: 1}, c.Requests())
		require.Equal(t, int64(line.Size-line.MetaOffset), c.BytesGot, "no data block")
	}
	var read int64
	for _, line := range g.s.Groups {
		read += min(int64(line.IndexSize), manifest.IndexTailBytes) + int64(line.Shards)*int64(line.ShardBytes)
	}
	_, c := run(8, 0, 1)
	require.Equal(t, fault.Counts{Put: 1, Get: 16}, c.Requests())
	require.Equal(t, read, c.BytesGot)
}

// cases are a group of 1 and a regrouping.
func groupCases(t testing.TB, seed uint64) map[string]func() (*grouped, Job) {
	return map[string]func() (*grouped, Job){
		"group of 1": func() (*grouped, Job) {
			g := newGrouped(seed)
			g.someSegment(t)
			return g, Plan(g.s, g.l)[0]
		},
		"regroup": func() (*grouped, Job) {
			g := newGrouped(seed)
			for range 8 {
				g.someSegment(t)
			}
			for len(g.s.Groups) < 8 {
				g.next(t)
			}
			return g, Plan(g.s, g.l)[0]
		},
	}
}

// F27, F37: input that cannot be read, is short or is wrong fails the job.
func TestF27BadGroupInput(t *testing.T) {
	third := func() func(fault.Op) bool {
		var mu sync.Mutex
		n := 0
		return func(op fault.Op) bool {
			mu.Lock()
			defer mu.Unlock()
			n++
			return n > 2
		}
	}
	for name, c := range map[string]struct {
		hook func() fault.Hook
		want error
	}{
		"reads fail":     {func() fault.Hook { return fault.OnKind(fault.Get, fault.Always(fault.Refuse(io.ErrUnexpectedEOF))) }, io.ErrUnexpectedEOF},
		"silently short": {func() fault.Hook { return fault.OnKind(fault.Get, fault.Always(fault.Truncate(100))) }, base.ErrCorrupt},
		"a wrong byte": {func() fault.Hook {
			return fault.On(third(), fault.OnKind(fault.Get, fault.Always(fault.FlipByte(30))))
		}, base.ErrCorrupt},
		"gone": {func() fault.Hook {
			return fault.On(third(), fault.OnKind(fault.Get, fault.Always(fault.Refuse(objstore.ErrNotFound))))
		}, objstore.ErrNotFound},
		"another size": {func() fault.Hook {
			return fault.OnKind(fault.Get, fault.Always(fault.Plan{Mangle: func(o *objstore.Object) error { o.Size++; return nil }}))
		}, base.ErrCorrupt},
		"uploads fail": {func() fault.Hook { return fault.OnKind(fault.Put, fault.Always(fault.Lose(io.ErrClosedPipe))) }, nil}, // it is there
		"uploads never arrive": {func() fault.Hook {
			return fault.OnKind(fault.Put, fault.Always(fault.Refuse(io.ErrClosedPipe)))
		}, io.ErrClosedPipe},
	} {
		for kind, build := range groupCases(t, 8) {
			t.Run(name+", "+kind, func(t *testing.T) {
				g, job := build()
				res, err := g.runner(fault.New(g.store, c.hook())).Run(t.Context(), job)
				g.requireNoOrphan(t, res)
				if c.want == nil {
					require.NoError(t, err)
					require.NoError(t, res.Edit.Apply(g.s))
					g.requireGroups(t)
					return
				}
				require.ErrorIs(t, err, c.want)
				require.Nil(t, res.Edit.Apply)
				require.Nil(t, res.Regroup.Output)
			})
		}
	}
}

// F27: a manifest that says something else than the tables and indexes that it names.
func TestF27WrongGroupLines(t *testing.T) {
	for name, change := range map[string]func(g *grouped){
		"a record more":          func(g *grouped) { g.s.Segments[0].Runs[0].Tables[0].Records++ },
		"a key more":             func(g *grouped) { g.s.Segments[0].Runs[0].Tables[0].Keys++ },
		"another table's id":     func(g *grouped) { tb := g.s.Segments[0].Runs[0].Tables; tb[0].Ref = tb[1].Ref },
		"tables out of order":    func(g *grouped) { tb := g.s.Segments[0].Runs[0].Tables; tb[0], tb[1] = tb[1], tb[0] },
		"group: records":         func(g *grouped) { g.s.Groups[1].Records++ },
		"group: keys":            func(g *grouped) { g.s.Groups[1].Keys-- },
		"group: shards":          func(g *grouped) { g.s.Groups[1].Shards *= 2 },
		"group: bytes of shards": func(g *grouped) { g.s.Groups[1].ShardBytes++ },
		"group: size":            func(g *grouped) { g.s.Groups[1].IndexSize-- },
		"group: segments":        func(g *grouped) { g.s.Groups[1].LastSegment++ },
		"group: another's index": func(g *grouped) { g.s.Groups[1].Index = g.s.Groups[0].Index },
	} {
		t.Run(name, func(t *testing.T) {
			g := newGrouped(9)
			for range 3 {
				g.segment(t, 400, func(i int) []byte { return fmt.Appendf(nil, "k%03d", g.rng.IntN(300)) })
			}
			g.next(t)
			g.next(t)
			require.Greater(t, len(g.s.Segments[0].Runs[0].Tables), 1)
			change(g)
			res, err := g.runner(g.store).Run(t.Context(), newGroupJob(g.s.Groups, g.s.Segments[:1]))
			require.ErrorIs(t, err, base.ErrCorrupt)
			require.Empty(t, res.Outputs)
			require.Nil(t, res.Edit.Apply)
		})
	}
	g := newGrouped(9)
	g.someSegment(t)
	job := newGroupJob(nil, g.s.Segments[:1])
	job.Bytes++
	_, err := g.runner(g.store).Run(t.Context(), job)
	require.ErrorContains(t, err, "the manifest counts")
}

// One fault at each request, applied or not, changes nothing: requests are repeated, and
// a refused PUT is read back.
func TestGroupFaultSweep(t *testing.T) {
	for kind, build := range groupCases(t, 10) {
		for _, cause := range []error{nil, objstore.ErrConflict, objstore.ErrPrecondition} {
			for _, applied := range []bool{false, true} {
				for n := 0; ; n++ {
					g, job := build()
					rule := fault.FailNth(n, applied, cause)
					res, err := g.runner(fault.New(g.store, rule.Hook)).Run(t.Context(), job)
					require.NoError(t, err, "%s: fault %d", kind, n)
					g.requireNoOrphan(t, res)
					require.NoError(t, res.Edit.Apply(g.s))
					if !rule.Hit() {
						g.requireGroups(t)
						require.Greater(t, n, 4)
						break
					}
					if n%5 == 0 {
						g.requireGroups(t)
					}
				}
			}
		}
	}
}

// Cancelling at any request ends the run with its context's error, and nothing runs on.
func TestGroupCancel(t *testing.T) {
	for _, build := range groupCases(t, 11) {
		for n, done := 0, false; !done; n++ {
			g, job := build()
			ctx, cancel := context.WithCancelCause(t.Context())
			var mu sync.Mutex
			var ended, hit bool
			store := fault.New(g.store, func(_ context.Context, op fault.Op) fault.Plan {
				mu.Lock()
				defer mu.Unlock()
				require.False(t, ended, "a request after the end")
				if op.Number != n {
					return fault.Plan{}
				}
				hit = true
				return fault.Plan{Before: func(ctx context.Context) error { // never answers
					cancel(errors.New("stop"))
					<-ctx.Done()
					return ctx.Err()
				}}
			})
			res, err := g.runner(store).Run(ctx, job)
			mu.Lock()
			ended, done = true, !hit
			mu.Unlock()
			cancel(nil)
			if done {
				require.NoError(t, err)
				require.Greater(t, n, 4)
			} else {
				require.ErrorIs(t, err, context.Canceled)
				require.Nil(t, res.Edit.Apply)
				g.requireNoOrphan(t, res)
			}
		}
	}
}

// F22, F24: a process dies between the upload and the commit. What it left is an orphan that its
// epoch makes sweepable; the job is done again under another name, and the late commit of the
// first, or of its twin, is refused.
func TestGroupUploadedAndNotCommitted(t *testing.T) {
	for _, build := range groupCases(t, 12) {
		g, job := build()
		lost, err := g.runner(g.store).Run(t.Context(), job)
		require.NoError(t, err)
		require.Len(t, lost.Outputs, 1)
		require.NotEmpty(t, g.object(t, lost.Outputs[0]))
		id := lost.Outputs[0]
		require.Equal(t, base.ObjectID{Kind: base.KindIndex, Role: base.RoleCompactor, Epoch: testEpoch, ULID: id.ULID}, id)
		require.NotContains(t, manifest.NamedObjects(g.s), id)

		res, err := g.runner(g.store).Run(t.Context(), Plan(g.s, g.l)[0])
		require.NoError(t, err)
		require.NotEqual(t, lost.Outputs, res.Outputs)
		require.NoError(t, res.Edit.Apply(g.s))
		g.requireGroups(t)
		require.ErrorIs(t, lost.Edit.Apply(g.s), manifest.ErrGone)
		g.s.Compactor.Epoch++
		require.ErrorIs(t, lost.Edit.Apply(g.s), manifest.ErrFenced)
	}
}

// F23: retention trims an input while the job runs: the drop wins.
func TestF23DropDuringRegroup(t *testing.T) {
	g, job := groupCases(t, 13)["regroup"]()
	res, err := g.runner(g.store).Run(t.Context(), job)
	require.NoError(t, err)
	g.dropReal(t, 1)
	require.ErrorIs(t, res.Edit.Apply(g.s), manifest.ErrGone)
}
