// Package trace is how the log tells what it does, as it does it: one operation
// after another, with its parts, how long they took and what came of them.
//
// Whoever wants to know gives a Tracer to the options of the engine, of the server
// and of objstore/metered. SlowLog is one. Without any nothing is measured and
// nothing is allocated: that is the default.
//
//	ctx, span := trace.Begin(tracer, ctx, trace.Append)
//	span.Key("key", key)
//	...
//	span.Phase("room")
//	...
//	span.End(err)
package trace

import (
	"context"
	"fmt"
)

// Op is a kind of operation. Its name is part of what operators see: it stays.
type Op uint8

// What the log does for a caller, and what a server is asked.
const (
	// Request is one request to the server, from its headers to its answer; of a
	// stream until the stream ends.
	Request Op = iota
	Append
	Scan // one loop over an Iterator
	Count
	Keys
	Segments
	Cursors    // cursors or consumers are read
	SetCursors // cursors are set or deleted
)

// What it does by itself.
const (
	Open       Op = iota + SetCursors + 1 // a writer or a replica is opened
	WALPut                                // one object of the WAL is put
	Flush                                 // a memtable becomes a run, or cursors become an object
	Seal                                  // a segment is sealed of which nothing is unflushed
	Commit                                // MANIFEST is replaced
	Compaction                            // one job
	Retention                             // segments are looked for that are too old or too much
	Garbage                               // one round of the collector
	Replica                               // a replica applies WAL objects that a poll found
)

// What it asks of the store. Each belongs to one of the others, but for polls.
const (
	StorePut Op = iota + Replica + 1
	StoreGet
	StoreHead
	StoreList
	StoreDelete
	StoreTime
	StoreAbortUploads

	// NumOps is the number of operations.
	NumOps = int(iota + Replica + 1)
)

var names = [NumOps]string{
	Request: "request", Append: "append", Scan: "scan", Count: "count", Keys: "keys", Segments: "segments",
	Cursors: "cursors", SetCursors: "set_cursors",
	Open: "open", WALPut: "wal_put", Flush: "flush", Seal: "seal", Commit: "commit", Compaction: "compaction",
	Retention: "retention", Garbage: "garbage", Replica: "replica",
	StorePut: "store_put", StoreGet: "store_get", StoreHead: "store_head", StoreList: "store_list",
	StoreDelete: "store_delete", StoreTime: "store_time", StoreAbortUploads: "store_abort_uploads",
}

// String returns the operation's name: lower case, with underscores.
func (o Op) String() string {
	if int(o) < NumOps {
		return names[o]
	}
	return fmt.Sprintf("Op(%d)", uint8(o))
}

// Kind is who waits for an operation.
type Kind uint8

const (
	// Foreground operations are those that a caller waits for.
	Foreground Kind = iota
	// Background operations are those that nobody waits for, at first.
	Background
	// Store operations are requests to the store: parts of the others.
	Store
)

// Kind returns who waits for the operation.
func (o Op) Kind() Kind {
	switch {
	case o <= SetCursors:
		return Foreground
	case o <= Replica:
		return Background
	default:
		return Store
	}
}

// Tracer is told of operations. Its methods, and those of its Recorders, are called
// by the goroutines that do the work, with no lock held: they must return soon and
// never wait. All may be called from any goroutine.
type Tracer interface {
	// Begin is told that an operation begins. What belongs to the operation is done
	// with the context that it returns, or one derived of it: so a Tracer finds an
	// operation's parent. A nil Recorder means that it does not want to know more.
	Begin(ctx context.Context, op Op) (context.Context, Recorder)
}

// Recorder is told of one operation, by one goroutine at a time. Nothing is told
// after End; parts of the operation may end later than it.
type Recorder interface {
	// Phase says what the time was spent on since the last call, or since the
	// beginning. The same phase may come several times.
	Phase(name string)
	// Int and Text tell something about the operation. A name comes once.
	Int(name string, value int64)
	Text(name, value string)
	// Key tells of a key of the log: any bytes, which nobody changes before End.
	Key(name string, key []byte)
	// End says that the operation is over, and why it failed, if it did.
	End(err error)
}

// Caller is the phase in which an operation waits for whoever asked: it is not the
// log that is slow.
const Caller = "caller"

// Span is one operation under way. The zero value is one that nobody wants to know
// of: all its methods do nothing. It is told by one goroutine at a time.
type Span struct{ r Recorder }

// Begin tells a tracer, if there is one, that an operation begins.
func Begin(t Tracer, ctx context.Context, op Op) (context.Context, Span) {
	if t == nil {
		return ctx, Span{}
	}
	ctx, r := t.Begin(ctx, op)
	return ctx, Span{r}
}

// Wanted reports whether anybody wants to know: whether it is worth finding out what
// is to be told.
func (s Span) Wanted() bool { return s.r != nil }

// Phase says what the time was spent on since the last call, or the beginning.
func (s Span) Phase(name string) {
	if s.r != nil {
		s.r.Phase(name)
	}
}

// Int tells a number: a count, or bytes.
func (s Span) Int(name string, value int64) {
	if s.r != nil {
		s.r.Int(name, value)
	}
}

// Text tells a short text, which must not be secret.
func (s Span) Text(name, value string) {
	if s.r != nil {
		s.r.Text(name, value)
	}
}

// Key tells a key of the log, which must not change before End.
func (s Span) Key(name string, key []byte) {
	if s.r != nil {
		s.r.Key(name, key)
	}
}

// End says that the operation is over; err is nil if it succeeded.
func (s Span) End(err error) {
	if s.r != nil {
		s.r.End(err)
	}
}

// maxKeyText is how much of a key is shown.
const maxKeyText = 64

// KeyText is how a key is shown: quoted, and shortened beyond 64 bytes.
func KeyText(key []byte) string {
	if len(key) > maxKeyText {
		return fmt.Sprintf("%q... (%d bytes)", key[:maxKeyText], len(key))
	}
	return fmt.Sprintf("%q", key)
}
