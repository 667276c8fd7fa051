package bench

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"
)

// A value of a numbered load begins with a tag of the run and a number that counts the records of its key in this
// run, so that a reader knows what it must find: 0, 1, 2, ..., each once and in this order.
const (
	tagBytes    = 4
	numberBytes = tagBytes + 4
)

// numberedLoad appends numbered records. Each appender has the keys of its own residue and one batch under way, so
// that the numbers of a key rise as its sequences do.
type numberedLoad struct {
	o       PollOptions
	tag     uint32
	values  *Values
	written []uint32 // by key: how many records it got; each belongs to its appender
	parts   []*appender
	start   uint64        // the sequence of the first record
	end     atomic.Uint64 // behind the last record that was appended

	appended func(end uint64) // is told where the log ended, after each append
	retried  atomic.Uint64
	unknown  atomic.Bool // an append failed, or its outcome is unknown: nobody knows any more what numbers are there
}

// appender makes and appends the batches of one residue.
type appender struct {
	residue  uint64
	rnd      *rand.Rand
	arrivals *rand.Rand
	pick     *KeyPicker
	recs     []Record
	keys     []byte
	values   []byte
	n        uint64 // records made
}

// newNumberedLoad appends the first record: so it knows where the log ended.
func newNumberedLoad(ctx context.Context, r *Run, o PollOptions) (*numberedLoad, error) {
	l := &numberedLoad{
		o: o, tag: uint32(time.Now().UnixNano()), values: NewValues(o.ValueOptions, r.Rand(streamPollValues)),
		written: make([]uint32, o.Keys), parts: make([]*appender, min(uint64(o.Appenders), o.Keys)),
	}
	for i := range l.parts {
		a := &appender{
			residue: uint64(i), rnd: r.Rand(streamPollAppenders + 2*uint64(i)), arrivals: r.Rand(streamPollAppenders + 2*uint64(i) + 1),
			recs: make([]Record, o.Records), keys: make([]byte, 0, o.Records*KeySize),
		}
		a.pick = NewKeyPicker(o.KeyOptions, a.rnd)
		l.parts[i] = a
	}
	first := l.number(nil, 0, l.values.Next(l.parts[0].rnd))
	seq, err := r.Target.Append(ctx, []Record{{Key: AppendKey(nil, 0), Value: first}}, Durable)
	if err != nil {
		return nil, fmt.Errorf("append the first record: %w", err)
	}
	l.start = seq
	l.end.Store(seq + 1)
	return l, nil
}

// residueClass returns how many of the numbers below n leave that residue.
func residueClass(n, residue, modulus uint64) uint64 { return (n + modulus - 1 - residue) / modulus }

// key returns the key of a consumer.
func (l *numberedLoad) key(consumer uint32) []byte {
	return AppendKey(make([]byte, 0, KeySize), uint64(consumer))
}

// number appends a value for the next record of a key to dst. Sizes below that of a number are raised to it.
func (l *numberedLoad) number(dst []byte, key uint64, value []byte) []byte {
	dst = binary.BigEndian.AppendUint32(dst, l.tag)
	dst = binary.BigEndian.AppendUint32(dst, l.written[key])
	l.written[key]++
	return append(dst, value[min(numberBytes, len(value)):]...)
}

// read returns the number that a value carries, or false if another run wrote it.
func (l *numberedLoad) read(value []byte) (uint32, bool) {
	if len(value) < numberBytes || binary.BigEndian.Uint32(value) != l.tag {
		return 0, false
	}
	return binary.BigEndian.Uint32(value[tagBytes:]), true
}

// make makes the next batch of an appender, and its key and value bytes: of keys that are drawn or, in order, one after
// the other. It is valid until the next call.
func (l *numberedLoad) make(a *appender, records int, inOrder bool) (recs []Record, size int64) {
	a.keys, a.values = a.keys[:0], a.values[:0]
	parts := uint64(len(l.parts))
	for i := range records {
		key := a.n%residueClass(l.o.Keys, a.residue, parts)*parts + a.residue
		if !inOrder {
			key = a.pick.Pick(a.n*parts+a.residue)/parts*parts + a.residue
		}
		if key >= l.o.Keys {
			key -= parts
		}
		a.n++
		from, at := len(a.keys), len(a.values)
		a.keys = AppendKey(a.keys, key)
		a.values = l.number(a.values, key, l.values.Next(a.rnd))
		rec := &a.recs[i]
		rec.Key, rec.Value = a.keys[from:len(a.keys):len(a.keys)], a.values[at:len(a.values):len(a.values)]
		size += int64(rec.Size())
	}
	return a.recs[:records], size
}

// preloadRecords is the size of a batch of the preload.
const preloadRecords = 100

// append appends a batch. After a failure nobody knows what the numbers of its keys are.
func (l *numberedLoad) append(ctx context.Context, t Target, recs []Record, ack Ack) error {
	first, retries, err := AppendRetrying(ctx, t, recs, ack)
	l.retried.Add(retries)
	if err != nil {
		l.unknown.Store(true)
		return err
	}
	l.landed(first + uint64(len(recs)))
	return nil
}

// landed notes that the log has been appended to.
func (l *numberedLoad) landed(end uint64) {
	for known := l.end.Load(); known < end && !l.end.CompareAndSwap(known, end); known = l.end.Load() {
	}
	l.appended(end)
}

// run appends at its share of the rate.
func (l *numberedLoad) run(ctx context.Context, r *Run, part int, to *Recorder) Pace {
	a := l.parts[part]
	rate := l.o.Rate / float64(l.o.Bytes()) / float64(len(l.parts))
	load := Load{Schedule: NewSchedule(rate, l.o.Arrivals, a.arrivals), Workers: 1, Recorder: to}
	return r.Loop(ctx, load, func(ctx context.Context, _ Op) (Done, error) {
		recs, size := l.make(a, l.o.Records, false)
		return Done{len(recs), size}, l.append(ctx, r.Target, recs, l.o.Ack)
	})
}

// preload appends records as fast as the log takes them, of one key after the other.
func (l *numberedLoad) preload(ctx context.Context, r *Run) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var done atomic.Uint64
	var appending sync.WaitGroup
	for _, a := range l.parts {
		appending.Go(func() {
			// Its part of them, so that as many records as keys are one of each.
			left := residueClass(l.o.Preload, a.residue, uint64(len(l.parts)))
			for left > 0 && ctx.Err() == nil {
				n := min(left, preloadRecords, uint64(l.o.Records))
				left -= n
				recs, _ := l.make(a, int(n), true)
				if err := l.append(ctx, r.Target, recs, Memory); err != nil {
					cancel(fmt.Errorf("preload: %w", err))
					return
				}
				r.Progress("preload: %d of %d records", done.Add(n), l.o.Preload)
			}
		})
	}
	appending.Wait()
	if err := context.Cause(ctx); err != nil {
		return err
	}
	return l.settle(ctx, r)
}

// settle appends one more record and waits until it is durable: then all before it are, and readable.
func (l *numberedLoad) settle(ctx context.Context, r *Run) error {
	recs, _ := l.make(l.parts[0], 1, false)
	return l.append(ctx, r.Target, recs, Durable)
}
