package fuzz

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/annalsdb/annals/engine"
	"github.com/annalsdb/annals/internal/base"
	"github.com/annalsdb/annals/manifest"
	"github.com/annalsdb/annals/objstore"
	"github.com/annalsdb/annals/objstore/fault"
	walfile "github.com/annalsdb/annals/wal"
)

// forge is a small log that the engine made, and what is needed to tell its oracle of things that never happened. The log:
// sequences 0 to 2 (keys a, b, a) in a run of the sealed segment 1, 3 and 4 (a, b) in a run of segment 2, 5 and 6 (a, a: one batch) in
// object (1, 3) of the WAL.
type forge struct {
	*stage
	p    *simProcess // of epoch 1, which the oracle takes for alive; the engine's is dead
	show *shown      // what p shows
}

// shown is what a process shows of the log.
type shown struct {
	engine.LogReader
	frontier, first uint64
}

func (s *shown) Frontier() uint64      { return s.frontier }
func (s *shown) FirstSequence() uint64 { return s.first }

func newForge(t *testing.T) *forge {
	s := newStage(t)
	o := options()
	o.SegmentBytes, o.SegmentMinBytes = 1<<20, 1
	o.SegmentInterval = time.Second
	o.Retention, o.RetentionInterval = time.Hour, time.Hour
	w := s.open(o)
	s.append(w, engine.AppendOptions{}, s.batch("a", "b", "a")...)
	time.Sleep(2 * time.Second) // the segment is sealed
	s.append(w, engine.AppendOptions{}, s.batch("a", "b")...)
	require.NoError(t, s.flush(w).err)
	s.append(w, engine.AppendOptions{}, s.batch("a", "a")...)
	s.settle()
	s.kill(w)
	f := &forge{stage: s, show: &shown{frontier: 7}}
	f.p = &simProcess{id: 100, role: simWriter, epoch: 1, opts: o, log: f.show}
	s.o.opened(f.p)
	require.NoError(t, s.o.err())
	require.Equal(t, uint64(5), s.o.head.state.GetFlushedEnd())
	require.Len(t, s.o.head.state.GetSegments(), 2)
	return f
}

// forgery is something that must not happen.
type forgery struct {
	name string
	want string // of the oracle's error
	make func(*forge)
}

func catches(t *testing.T, forgeries []forgery) {
	for _, c := range forgeries {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newForge(t)
				c.make(f)
				require.ErrorContains(t, f.o.err(), c.want)
			})
		})
	}
}

// ask begins an append.
func (f *forge) ask(o engine.AppendOptions, recs ...engine.Record) *simCall {
	f.calls++
	c := &simCall{id: f.calls, proc: f.p, kind: simAppend, began: f.step, records: recs, append: o, ack: max(o.Ack, engine.Durable)}
	f.o.began(c)
	return c
}

// answer ends it.
func (f *forge) answer(c *simCall, first, last uint64, err error) {
	f.step++
	c.ended = f.step
	if err == nil {
		c.res = engine.AppendResult{First: first, Last: last, Timestamp: time.Now().UnixMilli()}
	}
	c.err = err
	f.o.ended(c)
}

// ended is a call of another kind, from its beginning to its end.
func (f *forge) ended(c simCall) {
	f.calls++
	c.id, c.began, c.ended = f.calls, f.step, f.step+1
	if c.proc == nil {
		c.proc = f.p
	}
	res, next, recs, count, keys, found, err := c.res, c.next, c.recs, c.count, c.keys, c.found, c.err
	c.res, c.next, c.recs, c.count, c.keys, c.found, c.err = engine.AppendResult{}, 0, nil, 0, nil, nil, nil
	f.o.began(&c)
	f.step++
	c.res, c.next, c.recs, c.count, c.keys, c.found, c.err = res, next, recs, count, keys, found, err
	f.o.ended(&c)
}

// object makes a WAL object of epoch 1 that follows the one before it.
func (f *forge) object(id uint64, first uint64, change func(*walfile.Header), fill ...func(*walfile.Builder)) []byte {
	e := f.o.log.epochs[1]
	h := walfile.Header{
		Identity: f.o.log.identity(), Writer: e.owner, Epoch: 1, ID: id, Segment: 2, First: first, PrevEnd: f.o.log.end,
	}
	if before := e.sent[id-1]; before != nil {
		h.PrevEnd = before.End
	}
	if change != nil {
		change(&h)
	}
	b := walfile.NewBuilder(h, nil)
	for _, add := range fill {
		add(b)
	}
	return b.Finish()
}

// records is a batch at a sequence.
func records(first uint64, recs ...engine.Record) func(*walfile.Builder) {
	return func(b *walfile.Builder) { b.AddBatch(first, time.Now().UnixMilli(), recs) }
}

// send is a PUT of a WAL object on its way.
func (f *forge) send(id uint64, body []byte) fault.Op {
	op := fault.Op{
		Kind: fault.Put, Name: base.WALName(0, 1, id), Body: body,
		PutOptions: objstore.PutOptions{IfAbsent: true, SinglePart: true},
	}
	f.o.sent(f.p, op)
	return op
}

// land is a PUT of a WAL object that arrives.
func (f *forge) land(id uint64, body []byte) { f.o.applied(f.p, f.send(id, body), nil) }

// batch lands a batch that a client asked for.
func (f *forge) landBatch(id, first uint64, o engine.AppendOptions, recs ...engine.Record) *simCall {
	c := f.ask(o, recs...)
	f.land(id, f.object(id, first, nil, records(first, recs...)))
	return c
}

// version puts a MANIFEST that follows the one in force.
func (f *forge) version(change func(*manifest.State)) {
	s := proto.CloneOf(f.o.head.state)
	s.Version++
	s.CommitId = append([]byte(nil), s.CommitId...)
	s.CommitId[0]++
	change(s)
	f.o.applied(f.p, fault.Op{Kind: fault.Put, Name: manifestName, Body: manifest.EncodeState(s)}, nil)
}

// takeover lets another writer take the epoch.
func (f *forge) takeover() {
	f.version(func(s *manifest.State) {
		require.NoError(f.t, manifest.OpenWriter(s.GetWriter().GetEpoch(), [16]byte{9}).Apply(s))
	})
}
