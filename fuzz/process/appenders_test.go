package process

import (
	"context"
	"errors"

	"github.com/annalsdb/annals/client"
)

// maxBatch is the most records of one append.
const maxBatch = 6

// batch returns records of several keys of a kind.
func (a *actor) batch(kind string, n *int) []client.Record {
	recs := make([]client.Record, 1+a.rng.IntN(maxBatch))
	for i := range recs {
		recs[i] = client.Record{Key: []byte(a.key(kind)), Value: a.value(*n)}
		*n++
	}
	return recs
}

// appendPlain appends batches, without knowing anything of the log. A few are acknowledged from memory.
func (w *world) appendPlain(ctx context.Context, i int) {
	a, values := w.newActor("plain", i), 0
	a.loop(ctx, func(ctx context.Context) (bool, error) {
		n, err := a.writer(ctx)
		if err != nil {
			return false, err
		}
		o := client.AppendOptions{Ack: client.AckDurable}
		if a.rng.IntN(20) == 0 {
			o.Ack = client.AckMemory
		}
		_, answer, err := a.append(ctx, n, a.batch(plainKeys, &values), o)
		return answer == nil, err
	})
}

// appendIf appends under conditions: that keys have nothing behind what it knows. It competes with
// others of its kind. Now and then it only asks.
func (w *world) appendIf(ctx context.Context, i int) {
	a, values := w.newActor("if", i), 0
	next := make(map[string]uint64)
	a.loop(ctx, func(ctx context.Context) (bool, error) {
		n, err := a.writer(ctx)
		if err != nil {
			return false, err
		}
		var recs []client.Record
		o := client.AppendOptions{Ack: client.AckDurable}
		first := a.rng.IntN(keysOf)
		for k := range 1 + a.rng.IntN(2) {
			key := keyName(ifKeys, w.round(), (first+k)%keysOf)
			o.ExpectedNext = append(o.ExpectedNext, client.KeySequence{Key: []byte(key), Next: next[key]})
			recs = append(recs, client.Record{Key: []byte(key), Value: a.value(values)})
			values++
		}
		if a.rng.IntN(8) == 0 {
			recs = nil
		}
		res, answer, err := a.append(ctx, n, recs, o)
		var conflict *client.ConflictError
		switch {
		case answer == nil:
			for i, r := range recs {
				next[string(r.Key)] = res.Start + uint64(i) + 1
			}
		case errors.As(answer, &conflict):
			next[string(conflict.Key)] = conflict.LastSequence + 1
			return true, err
		}
		return answer == nil, err
	})
}

// appendOnce appends with a producer's numbers: it repeats each batch, at whichever writer, until
// it is acknowledged.
func (w *world) appendOnce(ctx context.Context, i int) {
	a, values := w.newActor("once", i), 0
	o := client.AppendOptions{Ack: client.AckDurable, Producer: a.name}
	var recs []client.Record // of the number that is not acknowledged
	a.loop(ctx, func(ctx context.Context) (bool, error) {
		n, err := a.writer(ctx)
		if err != nil {
			return false, err
		}
		if recs == nil {
			recs = a.batch(onceKeys, &values)
		}
		_, answer, err := a.append(ctx, n, recs, o)
		if answer == nil {
			if a.rng.IntN(10) > 0 { // else it is sent again, though it was acknowledged
				o.ProducerSequence++
				recs = nil
			}
			return true, err
		}
		return false, err
	})
}
