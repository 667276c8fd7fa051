package fuzz

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/cespare/xxhash/v2"

	"github.com/annalsdb/annals/engine"
	"github.com/annalsdb/annals/objstore"
)

// maxSimCalls bounds the calls that wait for their answers at the same time.
const maxSimCalls = 8

// simKeyNames are the keys of records. The empty key is one, and one is a prefix of others.
var simKeyNames = []string{"a", "", "ab", "b", "a\x00", "zz"}

// simProducer is an idempotent producer: a client that repeats an append under its number until it knows the outcome.
type simProducer struct {
	name   string
	number uint64
	batch  []engine.Record // of the append whose outcome is unknown, nil if there is none
	busy   int             // calls under way that ask for it
}

// startCall lets a client ask something of a process that serves. It reports whether there was one.
func (w *simWorld) startCall(d *dice) bool {
	serving := slices.DeleteFunc(w.alive(), func(p *simProcess) bool { return p.log == nil || p.stall || p.closing })
	if len(serving) == 0 || len(w.calls) >= maxSimCalls {
		return false
	}
	p := serving[d.below(len(serving))]
	if p.db == nil && d.permille(600) { // writers get more
		p = serving[d.below(len(serving))]
	}
	w.lastCall++
	c := &simCall{id: w.lastCall, proc: p, began: w.step}
	weights := []int{
		simAppend: 300, simScan: 60, simCount: 20, simKeys: 20, simSetCursors: 25, simDeleteCursors: 5, simCursors: 15,
		simFlush: 10, simFollow: 15,
	}
	if p.db == nil {
		weights[simAppend], weights[simSetCursors], weights[simDeleteCursors], weights[simFlush] = 0, 0, 0, 0
		weights[simCursors] = 40
	}
	c.kind = simKind(d.weighted(weights))
	ctx, cancel := context.WithCancel(context.Background())
	c.cancel = cancel
	ask := w.fillCall(c, d)
	w.note(p, "call", c.kind.String(), xxhash.Sum64String(c.asked()), "")
	w.calls = append(w.calls, c)
	w.oracle.began(c)
	w.count("call: " + c.kind.String())
	w.launch(p, func() {
		ask(ctx, c)
		w.mu.Lock()
		defer w.mu.Unlock()
		w.finished = append(w.finished, c)
	})
	return true
}

// fillCall draws what is asked and returns the function that asks it.
func (w *simWorld) fillCall(c *simCall, d *dice) func(context.Context, *simCall) {
	c.key = w.key(d)
	c.consumer = oneOf(d, "c1", "c2")
	switch c.kind {
	case simAppend:
		w.fillAppend(c, d)
		return askAppend
	case simScan, simCount:
		c.rng = w.rangeOf(d)
		if c.kind == simCount {
			return askCount
		}
		c.scan = engine.ScanOptions{Limit: oneOf(d, 0, 0, 1, 5), Last: oneOf(d, 0, 0, 0, 1, 4)}
		return askScan
	case simKeys:
		c.page = engine.KeysOptions{Prefix: []byte(oneOf(d, "", "a", "zz")), Limit: oneOf(d, 0, 1, 3)}
		return askKeys
	case simSetCursors:
		for range 1 + d.below(2) {
			c.cursors = append(c.cursors, engine.Cursor{Key: w.key(d), Next: uint64(d.below(100))})
		}
		c.force = d.permille(200)
		return askSetCursors
	case simDeleteCursors:
		return askDeleteCursors
	case simCursors:
		return askCursors
	case simFlush:
		return askFlush
	default:
		c.rng = engine.From(w.rangeOf(d).Start)
		return w.askFollow
	}
}

func (w *simWorld) key(d *dice) []byte { return []byte(simKeyNames[d.below(w.profile.keys)]) }

// rangeOf draws a range of sequences, about those that there are.
func (w *simWorld) rangeOf(d *dice) engine.Range {
	near := func() uint64 { return w.highest - min(w.highest, uint64(d.below(40))) }
	switch d.below(4) {
	case 0:
		return engine.All()
	case 1:
		return engine.From(near())
	case 2:
		start := near()
		return engine.Between(start, start+uint64(d.below(20)))
	default:
		return engine.From(uint64(d.below(10)))
	}
}

// fillAppend draws a batch. Its values name it.
func (w *simWorld) fillAppend(c *simCall, d *dice) {
	for i := range 1 + d.early(5) {
		value := fmt.Sprintf("v%d.%d", c.id, i)
		value += strings.Repeat("-", d.early(w.profile.largest))
		c.records = append(c.records, engine.Record{Key: w.key(d), Value: []byte(value)})
	}
	c.append.Ack = oneOf(d, engine.Default, engine.Default, engine.Durable, engine.Memory)
	switch d.below(6) {
	case 0, 1: // what the caller knows, or thinks that it knows
		key := c.records[0].Key
		c.append.ExpectedNext = []engine.KeySequence{{Key: key, Next: w.known[string(key)]}}
		if d.permille(200) {
			c.append.ExpectedNext[0].Next = uint64(d.below(20))
		}
	case 2:
		pr := &w.producers[d.below(len(w.producers))]
		if pr.busy > 1 || pr.busy == 1 && (pr.batch == nil || !d.permille(300)) { // some do not wait for an answer before they try again
			break
		}
		if pr.batch == nil {
			pr.batch = c.records
		}
		if pr.busy++; pr.busy > 1 {
			w.count("producer tries again before it has an answer")
		}
		c.records, c.append.Producer, c.append.ProducerSequence = pr.batch, pr.name, pr.number
	}
	c.ack = c.append.Ack
	if c.ack == engine.Default {
		c.ack = c.proc.opts.Ack
	}
}

func askAppend(ctx context.Context, c *simCall) {
	c.res, c.err = c.proc.db.Append(ctx, c.records, c.append)
}

func askScan(ctx context.Context, c *simCall) {
	it := c.proc.log.Scan(ctx, c.key, c.rng, c.scan)
	for rec := range it.All() {
		c.recs = append(c.recs, rec)
	}
	c.err, c.next, c.first = it.Err(), it.Next(), c.proc.log.FirstSequence()
}

func askCount(ctx context.Context, c *simCall) {
	c.count, c.err = c.proc.log.Count(ctx, c.key, c.rng)
	c.first = c.proc.log.FirstSequence()
}

func askKeys(ctx context.Context, c *simCall) {
	page, err := c.proc.log.Keys(ctx, c.page)
	c.keys, c.more, c.err = page.Keys, page.More, err
	c.first = c.proc.log.FirstSequence()
}

func askSetCursors(ctx context.Context, c *simCall) {
	c.found, c.err = c.proc.db.SetCursors(ctx, c.consumer, c.cursors, engine.CursorOptions{Force: c.force})
}

func askDeleteCursors(ctx context.Context, c *simCall) {
	c.err = c.proc.db.DeleteCursors(ctx, c.consumer, c.key)
}

func askCursors(ctx context.Context, c *simCall) {
	page, err := c.proc.log.Cursors(ctx, c.consumer, engine.CursorsOptions{})
	c.found, c.err = page.Cursors, err
}

func askFlush(ctx context.Context, c *simCall) { c.err = c.proc.db.Flush(ctx) }

// askFollow takes records in as they come, until the caller or the log ends it.
func (w *simWorld) askFollow(ctx context.Context, c *simCall) {
	f, err := c.proc.log.Follow(ctx, engine.Stream{Key: c.key, From: c.rng.Start})
	if err != nil {
		c.err = err
		return
	}
	defer f.Close()
	// One commit wakes many followers. Those that must read tables do so one after another, as the world says.
	turn := func(ctx context.Context) (func(), error) {
		mine := make(chan struct{})
		c.proc.env.Go(fmt.Sprintf("follower %06d reads", c.id), func() { close(mine) })
		select {
		case <-mine:
			return func() {}, nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	for {
		recs, err := f.Next(engine.FollowRead{Log: turn})
		w.mu.Lock()
		if !c.proc.killed {
			c.recs = append(c.recs, recs...)
		}
		w.mu.Unlock()
		if err != nil {
			c.err = err
			return
		}
	}
}

// endCalls takes in the answers that came since the last event, and returns them. Callers hold mu.
func (w *simWorld) endCalls() []*simCall {
	ended := w.finished
	w.finished = nil
	slices.SortFunc(ended, func(a, b *simCall) int { return a.id - b.id })
	ended = slices.DeleteFunc(ended, func(c *simCall) bool {
		c.cancel()
		w.learn(c)
		return c.proc.killed // nobody hears it
	})
	for _, c := range ended {
		c.ended = w.step
		w.calls = slices.DeleteFunc(w.calls, func(o *simCall) bool { return o == c })
		w.trace.add(w.step, w.calm, c.proc.id, "answer", c.kind.String(), xxhash.Sum64String(c.answered()), kindOf(c.err))
	}
	return ended
}

// learn is what clients remember of an answer. Callers hold mu.
func (w *simWorld) learn(c *simCall) {
	if c.kind != simAppend {
		return
	}
	heard := !c.proc.killed
	if heard && c.err == nil {
		w.highest = max(w.highest, c.res.Last)
		for _, r := range c.records {
			w.known[string(r.Key)] = c.res.Last + 1
		}
	}
	if conflict := (*engine.ConditionError)(nil); heard && errors.As(c.err, &conflict) {
		w.known[string(conflict.Key)] = conflict.Last + 1
	}
	for i := range w.producers {
		pr := &w.producers[i]
		if c.append.Producer != pr.name {
			continue
		}
		pr.busy--
		if c.append.ProducerSequence != pr.number { // the answer to another try came first
			continue
		}
		refused := (*engine.ProducerError)(nil)
		switch {
		case !heard:
		case c.err == nil:
			pr.batch, pr.number = nil, pr.number+1
		case errors.As(c.err, &refused):
			pr.batch, pr.number = nil, refused.Last+1
		}
	}
}

// simErrors are the errors that a call may have, as far as the trace tells them apart: of several requests of one call
// that fail at the same time any may be the one that the text is about.
var simErrors = []error{
	context.Canceled, context.DeadlineExceeded, errSimDead, engine.ErrFenced, engine.ErrClosed, engine.ErrOverloaded, engine.ErrConflict,
	engine.ErrStale, engine.ErrCorrupt, engine.ErrOutOfRange, objstore.ErrNotFound, objstore.ErrUnavailable, errSimReset,
}

// kindOf tells the kind of an error.
func kindOf(err error) string {
	if err == nil {
		return ""
	}
	outcome := ""
	if failed := (*engine.AppendError)(nil); errors.As(err, &failed) {
		outcome = ", " + failed.Outcome.String()
	}
	for _, known := range simErrors {
		if errors.Is(err, known) {
			return known.Error() + outcome
		}
	}
	return err.Error()
}

// asked describes what was asked, for the trace.
func (c *simCall) asked() string {
	return fmt.Sprint(c.records, c.append, c.key, c.rng, c.scan, c.page, c.consumer, c.cursors, c.force)
}

// answered describes the answer, for the trace.
func (c *simCall) answered() string {
	var recs []uint64
	for _, r := range c.recs {
		recs = append(recs, r.Sequence, xxhash.Sum64(bytes.Join([][]byte{r.Key, r.Value}, []byte{0})))
	}
	return fmt.Sprint(c.res, recs, c.next, c.first, c.count, c.keys, c.more, c.found)
}

var simKindNames = [...]string{"append", "scan", "count", "keys", "set cursors", "delete cursors", "cursors", "flush", "follow"}

// String returns the kind's name.
func (k simKind) String() string { return simKindNames[k] }
