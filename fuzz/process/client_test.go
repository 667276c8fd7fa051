package process

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/annalsdb/annals/client"
	"github.com/annalsdb/annals/fuzz/history"
)

// Bounds of one request.
const (
	appendWithin = 5 * time.Second // above the server's own
	readWithin   = 4 * time.Second
)

// roundLasts is how long keys are new: then others come, so that no key's history grows without an end, and there are
// ever more of them.
const roundLasts = 5 * time.Second

// actor is one client. It does one thing after the other.
type actor struct {
	w    *world
	name string
	rng  *rand.Rand
	seen map[string]uint64 // by key: where a read goes on
}

func (w *world) newActor(kind string, i int) *actor {
	name := fmt.Sprintf("%s-%d", kind, i)
	stream := uint64(len(kind))<<32 + uint64(kind[0])<<16 + uint64(i)
	return &actor{w: w, name: name, rng: rand.New(rand.NewPCG(w.seed, stream)), seen: make(map[string]uint64)}
}

// kinds of keys, by those who append to them.
const (
	plainKeys = "plain"
	ifKeys    = "if"
	onceKeys  = "once"
)

// keysOf is how many keys of a kind there are in a round.
const keysOf = 5

// round returns the number of the current round.
func (w *world) round() int { return int(time.Since(w.tormented) / roundLasts) }

func keyName(kind string, round, i int) string { return fmt.Sprintf("%s/%04d/%d", kind, round, i) }

// key returns a key of a kind of the current round.
func (a *actor) key(kind string) string { return keyName(kind, a.w.round(), a.rng.IntN(keysOf)) }

// value returns a value that nobody else has.
func (a *actor) value(n int) []byte {
	v := fmt.Sprintf("%s/%d", a.name, n)
	size := a.rng.IntN(300)
	if a.rng.IntN(10) == 0 {
		size = a.rng.IntN(8 << 10)
	}
	return append(append([]byte(v), ' '), bytes.Repeat([]byte{byte('a' + n%26)}, size)...)
}

// writer returns the server to append to: mostly the newest writer, now and then one that may have been
// passed, as clients do that have not heard of it. It waits for one.
func (a *actor) writer(ctx context.Context) (*node, error) {
	var all []*node
	err := a.w.await(ctx, func() bool {
		all = all[:0]
		for _, n := range a.w.those(history.Writer) {
			if n.serves() {
				all = append(all, n)
			}
		}
		return len(all) > 0
	})
	if err != nil {
		return nil, err
	}
	if a.rng.IntN(6) > 0 {
		for _, n := range all {
			if n.front.epoch > all[0].front.epoch {
				all[0] = n
			}
		}
		return all[0], nil
	}
	return all[a.rng.IntN(len(all))], nil
}

// reader returns a server to read from: a writer or a replica.
func (a *actor) reader(ctx context.Context) (*node, error) {
	if a.rng.IntN(3) == 0 {
		var all []*node
		for _, n := range a.w.those(history.Replica) {
			if n.serves() {
				all = append(all, n)
			}
		}
		if len(all) > 0 {
			return all[a.rng.IntN(len(all))], nil
		}
	}
	return a.writer(ctx)
}

// think waits between requests, longer after a failure.
func (a *actor) think(ctx context.Context, failed bool) {
	most := 8 * time.Millisecond
	if failed {
		most = 60 * time.Millisecond
	}
	t := time.NewTimer(time.Duration(a.rng.Int64N(int64(most))))
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// begin takes down that a request is about to be sent.
func (a *actor) begin(n *node, op history.Operation) (*history.Call, error) {
	op.Client, op.Process = a.name, n.id
	a.w.counts.operations.Add(1)
	return a.w.history.Begin(op)
}

// full ends the run in peace: the history has all that it can hold.
var errFull = errors.New("the history is full")

// loop has an actor do things until ctx ends. do reports whether it failed; an error ends the run.
func (a *actor) loop(ctx context.Context, do func(ctx context.Context) (ok bool, err error)) {
	for ctx.Err() == nil {
		ok, err := do(ctx)
		switch {
		case errors.Is(err, history.ErrFull):
			a.w.stop(errFull)
			return
		case err != nil && ctx.Err() == nil:
			a.w.failf("%s: %w", a.name, err)
			return
		}
		a.think(ctx, !ok)
	}
}

// text is how records are taken down.
func text(recs []client.Record) []history.KeyValue {
	var all []history.KeyValue
	for _, r := range recs {
		all = append(all, history.KeyValue{Key: history.Text(r.Key), Value: history.Text(r.Value)})
	}
	return all
}

// append appends a batch, and takes down what came of it. The error that it returns
// second is the answer's.
func (a *actor) append(ctx context.Context, n *node, recs []client.Record, o client.AppendOptions) (res client.AppendResult, answer, err error) {
	op := &history.Append{Records: text(recs), Memory: o.Ack == client.AckMemory, Producer: o.Producer, Number: o.ProducerSequence}
	for _, e := range o.ExpectedNext {
		op.ExpectedNext = append(op.ExpectedNext, history.KeySequence{Key: history.Text(e.Key), Sequence: e.Next})
	}
	call, err := a.begin(n, history.Operation{Append: op})
	if err != nil {
		return client.AppendResult{}, nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, appendWithin)
	defer cancel()
	res, answer = n.front.client.Append(ctx, recs, o)
	outcome := history.OK
	var conflict *client.ConflictError
	var number *client.SequenceError
	switch {
	case answer == nil:
		call.Append.First, call.Append.Timestamp = res.Start, res.Timestamp
		if o.Ack != client.AckMemory {
			a.w.counts.acknowledged.Add(int64(len(recs)))
		}
	case client.NotAppended(answer):
		outcome = history.Refused
		if errors.As(answer, &conflict) {
			call.Append.Conflict = &history.KeySequence{Key: history.Text(conflict.Key), Sequence: conflict.LastSequence}
		}
		if errors.As(answer, &number) {
			call.Append.LastNumber = &number.Last
		}
	default:
		outcome = history.Unknown
	}
	if err := call.End(outcome, answer); err != nil {
		return res, answer, err
	}
	return res, answer, a.unexpected(answer)
}

// unexpected returns an error for answers that no disturbance excuses: requests that the server takes for wrong, and
// what it takes for damage or a bug.
func (a *actor) unexpected(answer error) error {
	var e *client.Error
	if !errors.As(answer, &e) {
		return nil
	}
	damage := e.Status == 500 && (strings.Contains(e.Message, "Internal error") || strings.Contains(e.Message, "corrupt") || strings.Contains(e.Message, "not found"))
	switch e.Status {
	case 400, 404, 405, 413, 415, 421, 507:
		damage = true
	}
	if damage {
		return fmt.Errorf("unexpected answer: %w", answer)
	}
	return nil
}
