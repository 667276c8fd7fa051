package fuzz

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/engine"
	"github.com/annalsdb/annals/objstore"
	"github.com/annalsdb/annals/objstore/fault"
	"github.com/annalsdb/annals/objstore/mem"
)

// stage lets real processes run on a store, with an oracle that is told of all that they do, as the simulation tells it. It chooses
// nothing: operations are applied when they are sent.
type stage struct {
	t   *testing.T
	mem *mem.Store
	o   *oracle

	mu    sync.Mutex
	procs []*simProcess
	calls int
	step  int
}

func newStage(t *testing.T) *stage {
	store := mem.New(mem.Options{})
	return &stage{t: t, mem: store, o: newSimOracle(store).(*oracle), step: 1}
}

// told is a process's way to the store.
type told struct {
	*mem.Store
	s *stage
	p *simProcess
}

// Put implements objstore.Store.
func (s told) Put(ctx context.Context, name string, body []byte, o objstore.PutOptions) (res objstore.PutResult, err error) {
	err = s.do(fault.Op{Kind: fault.Put, Name: name, Body: body, PutOptions: o}, func() error {
		res, err = s.Store.Put(ctx, name, body, o)
		return err
	})
	return res, err
}

// Delete implements objstore.Store.
func (s told) Delete(ctx context.Context, names []string) error {
	return s.do(fault.Op{Kind: fault.Delete, Name: names[0], Names: names}, func() error { return s.Store.Delete(ctx, names) })
}

func (s told) do(op fault.Op, apply func() error) error {
	s.s.mu.Lock()
	defer s.s.mu.Unlock()
	if s.p.dead {
		return errNetwork
	}
	s.s.o.sent(s.p, op)
	err := apply()
	s.s.o.applied(s.p, op, err)
	return err
}

// process adds a process.
func (s *stage) process(role simRole) *simProcess {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := &simProcess{id: len(s.procs) + 1, role: role, began: s.step}
	s.procs = append(s.procs, p)
	return p
}

// open opens the log as a new writer.
func (s *stage) open(o engine.Options) *simProcess {
	s.t.Helper()
	p := s.process(simWriter)
	o.Env = simEnv()
	p.opts, p.stale = o, o.StaleAfter
	if p.stale == 0 {
		p.stale = engine.DefaultStaleAfter
	}
	db, err := engine.Open(s.t.Context(), told{s.mem, s, p}, o)
	require.NoError(s.t, err)
	p.db, p.log, p.epoch = db, db, db.Head().GetWriter().GetEpoch()
	s.serves(p)
	s.t.Cleanup(func() { s.kill(p) })
	return p
}

// replica opens the log to read it.
func (s *stage) replica(o engine.ReaderOptions) *simProcess {
	s.t.Helper()
	p := s.process(simReplica)
	o.Env = simEnv()
	p.keys, p.stale = o.Keys, o.StaleAfter
	r, err := engine.OpenReader(s.t.Context(), told{s.mem, s, p}, o)
	require.NoError(s.t, err)
	p.log = r
	s.serves(p)
	s.t.Cleanup(func() { _ = r.Close(context.Background()) })
	return p
}

func (s *stage) serves(p *simProcess) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.o.opened(p)
}

// kill ends a writer: nothing that it does has any effect any more.
func (s *stage) kill(p *simProcess) {
	s.mu.Lock()
	p.dead = true
	s.mu.Unlock()
	kill(p.db)
}

// settle ends a step.
func (s *stage) settle() {
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.o.step(s.step, s.procs)
	s.step++
}

// call makes a call of a client: do carries it out and sets the answer.
func (s *stage) call(p *simProcess, c simCall, do func(*simCall)) *simCall {
	s.mu.Lock()
	s.calls++
	c.id, c.proc, c.began = s.calls, p, s.step
	s.o.began(&c)
	s.mu.Unlock()
	do(&c)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.step++
	s.o.now = s.step
	c.ended = s.step
	s.o.ended(&c)
	return &c
}

func (s *stage) append(p *simProcess, o engine.AppendOptions, recs ...engine.Record) *simCall {
	ack := o.Ack
	if ack == engine.Default {
		ack = max(p.opts.Ack, engine.Durable)
	}
	return s.call(p, simCall{kind: simAppend, records: recs, append: o, ack: ack}, func(c *simCall) {
		c.res, c.err = p.db.Append(s.t.Context(), recs, o)
	})
}

func (s *stage) scan(p *simProcess, key string, r engine.Range, o engine.ScanOptions) *simCall {
	return s.call(p, simCall{kind: simScan, key: []byte(key), rng: r, scan: o}, func(c *simCall) {
		it := p.log.Scan(s.t.Context(), c.key, r, o)
		c.recs = slices.Collect(it.All())
		c.next, c.err, c.first = it.Next(), it.Err(), p.log.FirstSequence()
	})
}

func (s *stage) count(p *simProcess, key string, r engine.Range) *simCall {
	return s.call(p, simCall{kind: simCount, key: []byte(key), rng: r}, func(c *simCall) {
		c.count, c.err = p.log.Count(s.t.Context(), c.key, r)
	})
}

func (s *stage) keys(p *simProcess, o engine.KeysOptions) *simCall {
	return s.call(p, simCall{kind: simKeys, page: o}, func(c *simCall) {
		page, err := p.log.Keys(s.t.Context(), o)
		c.keys, c.more, c.err = page.Keys, page.More, err
	})
}

func (s *stage) setCursors(p *simProcess, consumer string, force bool, cursors ...engine.Cursor) *simCall {
	return s.call(p, simCall{kind: simSetCursors, consumer: consumer, force: force, cursors: cursors}, func(c *simCall) {
		c.found, c.err = p.db.SetCursors(s.t.Context(), consumer, cursors, engine.CursorOptions{Force: force})
	})
}

func (s *stage) deleteCursor(p *simProcess, consumer, key string) *simCall {
	return s.call(p, simCall{kind: simDeleteCursors, consumer: consumer, key: []byte(key)}, func(c *simCall) {
		c.err = p.db.DeleteCursors(s.t.Context(), consumer, c.key)
	})
}

func (s *stage) cursors(p *simProcess, consumer string) *simCall {
	return s.call(p, simCall{kind: simCursors, consumer: consumer}, func(c *simCall) {
		page, err := p.log.Cursors(s.t.Context(), consumer, engine.CursorsOptions{})
		c.found, c.err = page.Cursors, err
	})
}

func (s *stage) flush(p *simProcess) *simCall {
	return s.call(p, simCall{kind: simFlush}, func(c *simCall) { c.err = p.db.Flush(s.t.Context()) })
}

// value makes a value that no other record has.
func (s *stage) value(key string) engine.Record {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls++
	return engine.Record{Key: []byte(key), Value: fmt.Appendf(nil, "v%d-%s", s.calls, key)}
}

// batch makes a record of each key.
func (s *stage) batch(keys ...string) (recs []engine.Record) {
	for _, key := range keys {
		recs = append(recs, s.value(key))
	}
	return recs
}
