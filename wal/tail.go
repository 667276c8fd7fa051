package wal

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/annalsdb/annals/internal/base"
	"github.com/annalsdb/annals/objstore"
)

const (
	// maxTailWindow bounds the ids that one look asks for at the same time.
	maxTailWindow = 4
	// maxTailBytes bounds what they may hold together, going by the largest object of
	// the look before; a single object may be larger.
	maxTailBytes = 64 << 20
	// tailTimeout bounds one look; each one in a row that takes longer doubles the time of
	// the next, up to callTimeout, so that a slow line delivers a large object in the end.
	tailTimeout = 10 * time.Second
)

// Tail reads the WAL of a tree behind a writer that is at work: again and again the next
// objects, as far as there are any. It needs only to read. Used by one goroutine.
//
// It knows nothing of MANIFEST. That an id is missing, or what it holds, means something
// only for ids at or above its position: names below it may have been freed by the
// collector and filled again by a PUT that was delayed (F47). Whoever looks has to read
// MANIFEST afterwards wherever that matters: at a fence, and at damage.
type Tail struct {
	store objstore.Store
	env   *base.Env
	ident Identity

	window int   // ids that the next look asks for
	full   int   // looks in a row that found all that they asked for
	size   int64 // of the largest object of the last look that found one
	slow   int   // looks in a row that ran out of time
}

// NewTail returns a Tail of a tree.
func NewTail(store objstore.Store, env *base.Env, ident Identity) *Tail {
	return &Tail{store: store, env: env, ident: ident, window: 1}
}

// Look is what Tail.Look found.
type Look struct {
	// Objects are those that are there, in order, without a gap from the place asked for.
	// Only the last of them may be a fence: what lies behind one is dead (I2).
	Objects []*Object
	// End says why there are not more: nil, there may be more; an error that matches
	// objstore.ErrNotFound, the next id is not there; base.ErrCorrupt or ErrVersion, what is
	// there cannot be read; else the store failed. The last three name the object.
	End error
	// Requests is the number of GETs that were sent.
	Requests int
	// Sent is Env.Elapsed() before the first of them: what had been in the store by then,
	// and is not among Objects, is why the look ended.
	Sent time.Duration
}

// Look asks for the objects from (epoch, id) on: for one id, and for more, up to four,
// while looks in a row find all that they asked for.
func (t *Tail) Look(ctx context.Context, epoch, id uint64) Look {
	timeout := min(tailTimeout<<t.slow, callTimeout)
	call, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := t.env.AfterFunc(timeout, cancel)
	defer stop()

	l := Look{Requests: t.window, Sent: t.env.Elapsed()}
	reads := make([]chan fetchedOne, t.window)
	for i := range reads {
		reads[i] = make(chan fetchedOne, 1)
		t.start(call, epoch, id+uint64(i), reads[i])
	}
	var size int64
	for i, read := range reads {
		got := <-read // comes soon after call ends, at the latest
		if l.End != nil || (len(l.Objects) > 0 && l.Objects[len(l.Objects)-1].Fence) {
			continue // only waited for
		}
		if got.err != nil {
			l.End = got.err
			if ctx.Err() == nil && call.Err() != nil {
				l.End = fmt.Errorf("read %s: no answer within %v: %w", base.WALName(t.ident.Tree, epoch, id+uint64(i)), timeout, got.err)
				t.slow = min(t.slow+1, maxSlow)
			}
			cancel()
			continue
		}
		size = max(size, got.size)
		l.Objects = append(l.Objects, got.object)
	}
	t.adapt(&l, size)
	return l
}

// maxSlow is how often tailTimeout doubles before it is above callTimeout.
const maxSlow = 4

// start reads one id: the only one of a look in this goroutine.
func (t *Tail) start(ctx context.Context, epoch, id uint64, done chan<- fetchedOne) {
	read := func() {
		var got fetchedOne
		got.object, got.size, got.err = Read(ctx, t.store, t.ident, epoch, id)
		done <- got
	}
	if t.window == 1 {
		read()
		return
	}
	t.env.Go("wal tail read", read)
}

// adapt sets the window of the next look.
func (t *Tail) adapt(l *Look, size int64) {
	if len(l.Objects) > 0 || errors.Is(l.End, objstore.ErrNotFound) {
		t.slow = 0
	}
	if size > 0 {
		t.size = size
	}
	if l.End != nil || l.Objects[len(l.Objects)-1].Fence {
		t.window, t.full = 1, 0
		return
	}
	// Behind a single new object there is usually nothing: one look finds the object, one the end.
	t.full++
	t.window = min(t.full, maxTailWindow, max(1, int(maxTailBytes/t.size)))
}
