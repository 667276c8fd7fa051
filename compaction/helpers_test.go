package compaction

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/internal/base"
	"github.com/annalsdb/annals/manifest"
)

// testEnv has repeatable randomness and waits no longer than it must.
func testEnv(seed uint64) *base.Env {
	env := base.SystemEnv()
	var mu sync.Mutex
	rng := rand.New(rand.NewPCG(seed, 1))
	env.Random = func(p []byte) {
		mu.Lock()
		defer mu.Unlock()
		for i := range p {
			p[i] = byte(rng.Uint32())
		}
	}
	env.AfterFunc = func(_ time.Duration, f func()) func() bool { return time.AfterFunc(0, f).Stop }
	return env
}

// tree is a state that tests add flushes and seals to, without any object.
type tree struct {
	s     *manifest.State
	l     Limits
	ids   uint64
	jobs  map[Kind]int
	moved map[Kind]uint64              // bytes rewritten; of groups, entries of indexes
	parts map[string][]*manifest.Group // the live segments of each group, a line each
	// keysOf returns the keys of an index of the segments first to last; nil: none.
	keysOf func(first, last uint32) uint64
}

const testEpoch = 4

func newTree(l Limits) *tree {
	t := &tree{l: l, jobs: map[Kind]int{}, moved: map[Kind]uint64{}, parts: map[string][]*manifest.Group{}}
	t.s = &manifest.State{
		FormatVersion: manifest.FormatVersion, LogId: t.id(), CommitId: t.id(),
		Writer:    &manifest.Owner{Epoch: 1, Id: t.id()},
		Compactor: &manifest.Owner{Epoch: testEpoch, Id: t.id()},
		Position:  &manifest.Position{Epoch: 1, Id: 1},
		SeqLimit:  1 << 60, LastTimestampMs: 1 << 50,
		Segments: []*manifest.Segment{{Id: 1}},
	}
	return t
}

func (t *tree) id() []byte {
	t.ids++
	return binary.BigEndian.AppendUint64(make([]byte, 8), t.ids)
}

func (t *tree) active() *manifest.Segment { return t.s.Segments[len(t.s.Segments)-1] }

// line describes a table of one key with the sequences [start, end).
func (t *tree) line(role base.Role, start, end, bytes uint64) *manifest.Table {
	id := base.ObjectID{Kind: base.KindSST, Role: role, Epoch: testEpoch, Segment: 1, ULID: base.ULID(t.id())}
	return &manifest.Table{
		Ref: manifest.RefOf(id), Size: bytes/2 + 100, MetaOffset: 50, LowerKey: []byte("k"), UpperKey: []byte("k"),
		FirstSequence: start, LastSequence: end - 1, Records: end - start, Keys: 1, Bytes: bytes,
	}
}

// flush adds a run; one of 0 bytes covers a gap and has no tables.
func (t *tree) flush(bytes uint64) {
	start := t.s.FlushedEnd
	end := start + 10
	r := &manifest.Run{Id: t.id(), Start: start, End: end}
	if bytes > 0 {
		r.Tables = []*manifest.Table{t.line(base.RoleWriter, start, end, bytes)}
	}
	t.active().Runs = append(t.active().Runs, r)
	t.s.FlushedEnd = end
}

// seal ends the active segment at a store time.
func (t *tree) seal(at time.Duration) {
	g := t.active()
	g.Sealed, g.EndSequence, g.SealTimeMs = true, t.s.FlushedEnd, at.Milliseconds()
	t.s.Segments = append(t.s.Segments, &manifest.Segment{Id: g.Id + 1, FirstSequence: t.s.FlushedEnd})
}

// apply does a job by the numbers.
func (t *tree) apply(tb require.TestingT, j Job) {
	if j.Kind == Group {
		t.applyGroup(tb, j)
		return
	}
	var ids [][]byte
	for _, r := range j.Inputs {
		ids = append(ids, r.Id)
	}
	first, last := j.Inputs[0], j.Inputs[len(j.Inputs)-1]
	out := &manifest.Run{Id: t.id()}
	if j.Records > 0 {
		line := t.line(base.RoleCompactor, first.Start, last.End, j.Bytes)
		line.Records, line.Size = j.Records, max(j.Stored, 60)
		line.FirstSequence = math.MaxUint64
		line.LastSequence = 0
		for _, r := range j.Inputs {
			for _, in := range r.Tables {
				line.FirstSequence = min(line.FirstSequence, in.FirstSequence)
				line.LastSequence = max(line.LastSequence, in.LastSequence)
			}
		}
		out.Tables = []*manifest.Table{line}
	}
	edit := manifest.Compaction{Epoch: testEpoch, First: j.First, Last: j.Last, Inputs: ids, Output: out}.Edit()
	require.NoError(tb, edit.Apply(t.s), j.String())
	t.s.Obsolete = nil // collected
	t.jobs[j.Kind]++
	t.moved[j.Kind] += j.Bytes
}

// settle plans and applies until there is nothing to do, and returns the number of
// jobs.
func (t *tree) settle(tb require.TestingT) int {
	for n := 0; ; {
		jobs := Plan(t.s, t.l)
		if len(jobs) == 0 {
			return n
		}
		for _, j := range jobs {
			t.apply(tb, j)
		}
		n += len(jobs)
		require.Less(tb, n, 100_000, "the planner does not come to an end")
	}
}

func (t *tree) requireValid(tb testing.TB) { require.NoError(tb, manifest.Validate(t.s)) }

const (
	kib = 1 << 10
	mib = 1 << 20
	gib = 1 << 30
)
