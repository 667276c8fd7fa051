package metered

import (
	"context"
	"sync/atomic"
)

// Requests counts the calls of one operation of a program: those that were made with the
// context of Attribute. All methods may be called from any goroutine.
type Requests struct {
	outer *Requests // of the context that Attribute was given; nil: none
	calls [NumOps]atomic.Uint64
	bytes [NumOps]atomic.Uint64
}

// attribution is the key of a context's Requests.
type attribution struct{}

// Attribute returns a context whose calls are counted apart, and the counts, which are those of
// contexts derived from it too, whatever Store they are made of.
//
// What several operations share is counted for the one that began it: a read that
// others wait for too is made with the context of the first. An operation that waits for somebody else's read has none
// then, and the sum over all operations is what was sent.
//
//	ctx, asked := metered.Attribute(ctx)
//	... db.Scan(ctx, key, options) ...
//	gets := asked.Calls(metered.Get)
func Attribute(ctx context.Context) (context.Context, *Requests) {
	r := &Requests{}
	r.outer, _ = ctx.Value(attribution{}).(*Requests)
	return context.WithValue(ctx, attribution{}, r), r
}

// Calls returns the number of calls. Unlike those of Stats they count when they are made: an
// operation that asked twice, and took the first answer, has asked twice. Some may still be made
// when the operation has its result: of what it looked ahead for and does not want.
func (r *Requests) Calls(op Op) uint64 { return r.calls[op].Load() }

// Bytes returns the bytes of the bodies of calls that have succeeded: written by Put, read
// by Get.
func (r *Requests) Bytes(op Op) uint64 { return r.bytes[op].Load() }

// begin counts a call. Like all of the following it does nothing for nobody.
func (r *Requests) begin(op Op) {
	for ; r != nil; r = r.outer {
		r.calls[op].Add(1)
	}
}

// unsent takes a call back: nothing was sent.
func (r *Requests) unsent(op Op) {
	for ; r != nil; r = r.outer {
		r.calls[op].Add(^uint64(0))
	}
}

// moved counts the bytes of a call.
func (r *Requests) moved(op Op, bytes int) {
	for ; r != nil; r = r.outer {
		r.bytes[op].Add(uint64(bytes))
	}
}
