package fuzz

import (
	"errors"
	"slices"
	"strings"

	"github.com/annalsdb/annals/engine"
	"github.com/annalsdb/annals/objstore"
)

// answers is what clients were told.
type answers struct {
	// floor: the sequences below it were acknowledged as durable, or seen at the current writer. Whoever asks
	// the current writer from then on sees them (I2).
	floor   uint64
	durable map[simMarkKey]engine.AppendResult // of producers
	asked   int64                              // record bytes that clients asked to append, without what was refused
}

// simAsked is a call under way, and what was known when it was sent.
type simAsked struct {
	call     *simCall
	floor    uint64 // of answers
	frontier uint64 // of the process
	first    uint64
	cursors  int // the version of the consumer's cursors that the process had shown

	delivered int               // records of a follow that were looked at
	next      map[string]uint64 // by key: where the follow goes on
}

// began implements simOracle.
func (o *oracle) began(c *simCall) {
	defer o.enter()()
	a := &simAsked{call: c, floor: o.answers.floor, next: map[string]uint64{}}
	o.look(c.proc)
	if seen := o.procs[c.proc.id]; seen != nil {
		a.frontier, a.first, a.cursors = seen.frontier, seen.first, seen.cursors[c.consumer]
	}
	o.calls[c.id] = a
	if c.kind == simFollow {
		o.follows = append(o.follows, a)
	}
	switch c.kind {
	case simAppend:
		for i := range c.records {
			v := o.valueOf(string(c.records[i].Value))
			v.calls = append(v.calls, c)
		}
		o.answers.asked += sizeOf(c.records)
		if c.append.Producer != "" {
			o.small.names[c.append.Producer] = true
		}
	case simSetCursors:
		o.small.wanted(c)
	}
}

// valueOf returns what is known of a value; of one that nobody asked for, nothing.
func (o *oracle) valueOf(value string) *simValue {
	v := o.values[value]
	if v == nil {
		v = &simValue{}
		o.values[value] = v
	}
	return v
}

// ended implements simOracle.
func (o *oracle) ended(c *simCall) {
	defer o.enter()()
	a := o.calls[c.id]
	if a == nil {
		o.broke("call %d of process %d ended and had not begun", c.id, c.proc.id)
		return
	}
	delete(o.calls, c.id)
	o.look(c.proc)
	if c.err != nil {
		o.checkError(c)
	}
	switch c.kind {
	case simAppend:
		o.appended(c)
	case simScan:
		o.scanned(a)
	case simCount:
		o.counted(a)
	case simKeys:
		o.listed(a)
	case simSetCursors, simDeleteCursors, simCursors:
		o.small.ended(a)
	case simFlush:
		o.flushed(a)
	case simFollow:
		o.followed(a)
		o.follows = slices.DeleteFunc(o.follows, func(f *simAsked) bool { return f == a })
	}
}

// flushed looks at the answer of a flush: what was acknowledged or seen before it began is in runs.
func (o *oracle) flushed(a *simAsked) {
	c := a.call
	end := o.head.state.GetFlushedEnd()
	if left := between(o.log.records, engine.Between(end, a.floor)); c.err == nil && o.current(c.proc) && len(left) > 0 {
		o.broke("I4: process %d says that all is flushed; that is what is below %d, and sequence %d was there", c.proc.id, end, left[0].seq)
	}
}

// checkError looks at an error that a client got: some cannot be, whatever happens.
func (o *oracle) checkError(c *simCall) {
	if why := impossible(c.err); why != "" && !(c.proc.cut && why == "I8") {
		o.broke("%s: call %d of process %d ends with: %w", why, c.id, c.proc.id, c.err)
	}
	ofKey := c.kind == simScan || c.kind == simCount || c.kind == simFollow
	if errors.Is(c.err, engine.ErrOutOfRange) && (c.proc.role != simReplica || ofKey && c.proc.keys.Contains(c.key)) {
		o.broke("I4: call %d of process %d for key %q ends with: %w", c.id, c.proc.id, c.key, c.err)
	}
	if errors.Is(c.err, engine.ErrConflict) && c.kind != simAppend {
		o.broke("I4: call %d of process %d, which is no append, ends with: %w", c.id, c.proc.id, c.err)
	}
	if errors.Is(c.err, engine.ErrInvalid) || errors.Is(c.err, engine.ErrTooLarge) && sizeOf(c.records) <= c.proc.opts.MaxUnflushedBytes {
		o.broke("I9: call %d of process %d ends with: %w", c.id, c.proc.id, c.err)
	}
}

func sizeOf(recs []engine.Record) (n int64) {
	for i := range recs {
		n += int64(recs[i].Size())
	}
	return n
}

// impossible returns the invariant that an error of a process breaks; "" for one that may be: the process was fenced, closed or cut
// off, its view is stale, the store failed. Nothing in the bucket is ever damaged here, and nothing that is needed is missing.
func impossible(err error) string {
	switch {
	case errors.Is(err, engine.ErrCorrupt):
		return "I8"
	case errors.Is(err, objstore.ErrNotFound) && !strings.Contains(err.Error(), "head could not be read"):
		return "I7"
	}
	return ""
}
