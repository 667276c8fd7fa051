package client

import (
	"context"
	cryptorand "crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"sync"
	"time"
)

// Defaults and bounds of BatcherOptions.
const (
	DefaultLinger       = 5 * time.Millisecond
	DefaultBatchRecords = 10_000
	DefaultBatchBytes   = 1 << 20
	DefaultPendingBytes = 64 << 20
	DefaultInFlight     = 4

	// maxInFlight is well within the 64 appends that the log remembers of a producer: each of them can be
	// repeated.
	maxInFlight = 16
	// knownFor is for how long after an acknowledgement the server is taken to know the Batcher.
	knownFor = 10 * time.Second
)

// ErrBatcherClosed is returned by Append after Close.
var ErrBatcherClosed = errors.New("the batcher is closed")

// ErrAfterFailure is of a record that was given to a Batcher before or after one of its requests failed, and that comes behind
// it. The record was not appended and will not be: NotAppended is true. The failure is wrapped too.
var ErrAfterFailure = errors.New("not appended, because an append before it failed")

// BatcherOptions of NewBatcher. The zero value of every field takes its default.
type BatcherOptions struct {
	// Linger is how long the first record of a request waits for others. Longer: fewer, larger requests, and a longer
	// time to the acknowledgement while little comes. While requests are held up, records gather by themselves. Below 0: not
	// at all. Default 5 ms.
	Linger time.Duration
	// MaxRecords and MaxBytes (encoded keys and values) bound a request. A larger record goes alone. They must
	// be within what the server takes: --body-limit, and its limit on bytes that are not flushed. Default 10,000 and 1 MiB.
	MaxRecords, MaxBytes int
	// MaxPendingBytes bounds what was given to Append and is not yet acknowledged: Append waits while there is more. One
	// larger record is taken alone. Default 64 MiB.
	MaxPendingBytes int64
	// MaxInFlight is how many requests may be under way at a time; at most 16. With 1, each waits for the one
	// before to be acknowledged. Default 4.
	MaxInFlight int
	// RetryFor is how long the oldest request is repeated before the Batcher gives up. Default 5 min.
	RetryFor time.Duration
}

func (o *BatcherOptions) setDefaults() {
	if o.Linger == 0 {
		o.Linger = DefaultLinger
	}
	if o.MaxRecords <= 0 {
		o.MaxRecords = DefaultBatchRecords
	}
	if o.MaxBytes <= 0 {
		o.MaxBytes = DefaultBatchBytes
	}
	if o.MaxPendingBytes <= 0 {
		o.MaxPendingBytes = DefaultPendingBytes
	}
	if o.MaxInFlight <= 0 {
		o.MaxInFlight = DefaultInFlight
	}
	o.MaxInFlight = min(o.MaxInFlight, maxInFlight)
	if o.RetryFor <= 0 {
		o.RetryFor = DefaultRetryFor
	}
}

// Batcher appends single records as batches, each record exactly once and durably, in the order of the calls of Append: also
// over lost answers, overload (429), and restarts of the server, through which it repeats a request for up to RetryFor. It is a
// producer of its own with a random ID; what the log remembers of producers, and when it forgets them, is at Producer.
//
// Several requests are under way at a time. Order holds because the log refuses a producer's append whose predecessor it does
// not have: one that overtook another is sent again behind it. Records are acknowledged in order, too: when one is, all before
// it are.
//
// When the oldest request fails for good, or is not settled in time, the Batcher has failed: that request's records get the
// error, those behind it ErrAfterFailure (or an *UnsettledError, if they were sent and it is unknown), and
// Append returns the failure. Nothing is ever appended behind a hole. Make a new Batcher to go on.
//
// All methods may be called from any goroutine. It has a goroutine for each request under way, and none else. Close it in the end.
type Batcher struct {
	c    *Client
	o    BatcherOptions
	id   string
	room budget

	ctx     context.Context // of requests
	cancel  context.CancelFunc
	sending sync.WaitGroup

	// mu guards what follows. What holds under it:
	//
	//   - Records are in inFlight, then queue, then open, in the order in which they came.
	//   - Numbers rise by one in inFlight; only its first batch may be known to the server not to leave a gap.
	//   - A batch is resolved when all before it are.
	mu       sync.Mutex
	open     *batch   // takes records; nil: there are none
	queue    []*batch // full, not sent yet
	inFlight []*batch // oldest first
	next     uint64   // number of the next request
	linger   *time.Timer
	ackedAt  time.Time // when a request was acknowledged last
	closed   bool
	gaveUp   error // why what is not acknowledged was given up; nil: it was not
	failure  error // why nothing is sent any more
}

// batch is the records of one request. Its first fields are guarded by the Batcher's mu.
type batch struct {
	due     bool // it waits for no more records
	written bool // its request has left
	acked   bool
	failed  error         // why it is not sent any more; told when it is the oldest
	turn    chan struct{} // closed when it is the oldest in flight
	until   time.Time     // when it is due
	records int
	size    int64  // of the encoded records
	request []byte // the encoded records; nil once it is in flight

	// Constant once done is closed.
	done chan struct{}
	res  AppendResult
	err  error
}

// NewBatcher returns a Batcher. Nothing is sent yet.
func (c *Client) NewBatcher(o BatcherOptions) *Batcher {
	o.setDefaults()
	var id [16]byte
	_, _ = cryptorand.Read(id[:]) // never fails
	b := &Batcher{c: c, o: o, id: hex.EncodeToString(id[:]), room: budget{most: o.MaxPendingBytes}}
	b.ctx, b.cancel = context.WithCancel(context.Background())
	return b
}

// Position says where a record lies.
type Position struct {
	Sequence  uint64
	Timestamp int64 // milliseconds since the Unix epoch
}

// Receipt is of one record that a Batcher took. It may be used by any goroutine, and be thrown away.
type Receipt struct {
	batch *batch
	index int
}

// Done is closed when Wait has an answer.
func (r Receipt) Done() <-chan struct{} { return r.batch.done }

// Wait waits until the record is durable and returns where it is, or why it failed: NotAppended tells whether it may be in
// the log. If ctx ends before, it returns ctx's error, which says nothing of the record: it may be called again.
func (r Receipt) Wait(ctx context.Context) (Position, error) {
	select {
	case <-r.batch.done:
	default:
		select {
		case <-r.batch.done:
		case <-ctx.Done():
			return Position{}, ctx.Err()
		}
	}
	if r.batch.err != nil {
		return Position{}, r.batch.err
	}
	return Position{r.batch.res.Start + uint64(r.index), r.batch.res.Timestamp}, nil
}

// Append takes a record, which it copies. It waits only while MaxPendingBytes are pending, until ctx ends; then the record
// was not taken. Errors: ctx's, ErrBatcherClosed, or the Batcher's failure, as an ErrAfterFailure.
func (b *Batcher) Append(ctx context.Context, rec Record) (Receipt, error) {
	n := int64(encodedSize(&rec))
	if err := b.room.take(ctx, n); err != nil {
		return Receipt{}, fmt.Errorf("append: %w", err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.ended(); err != nil {
		b.room.give(n)
		return Receipt{}, fmt.Errorf("append: %w", err)
	}
	if b.open != nil && b.open.size+n > int64(b.o.MaxBytes) {
		b.seal()
	}
	if b.open == nil {
		b.begin()
	}
	t := b.open
	t.request = appendRecord(t.request, &rec)
	t.records++
	t.size += n
	if t.records == b.o.MaxRecords || t.size >= int64(b.o.MaxBytes) {
		b.seal()
	}
	b.pump()
	return Receipt{t, t.records - 1}, nil
}

// ended returns why no record is taken any more, or nil. Callers hold mu.
func (b *Batcher) ended() error {
	switch {
	case b.failure != nil:
		return afterFailure(b.failure)
	case b.closed:
		return ErrBatcherClosed
	}
	return nil
}

func afterFailure(why error) error { return fmt.Errorf("%w: %w", ErrAfterFailure, why) }

// begin opens a batch. Callers hold mu.
func (b *Batcher) begin() {
	b.open = &batch{turn: make(chan struct{}), done: make(chan struct{}), until: time.Now().Add(b.o.Linger)}
	switch {
	case b.o.Linger <= 0:
		b.open.due = true
	case b.linger == nil:
		b.linger = time.AfterFunc(b.o.Linger, b.lingered)
	default:
		b.linger.Reset(b.o.Linger)
	}
}

// lingered makes the open batch due. A timer of a batch before may come late: then the time is not over.
func (b *Batcher) lingered() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.open != nil && !time.Now().Before(b.open.until) {
		b.open.due = true
		b.pump()
	}
}

// seal moves the open batch to the queue. Callers hold mu.
func (b *Batcher) seal() {
	b.queue = append(b.queue, b.open)
	b.open = nil
}

// Flush sends what was taken before, without lingering, and waits until it is durable. It returns the Batcher's failure, or ctx's
// error: then nothing is lost, and requests go on.
func (b *Batcher) Flush(ctx context.Context) error {
	b.mu.Lock()
	last := b.last()
	if b.open != nil {
		b.open.due = true
		b.pump()
	}
	failure := b.failure
	b.mu.Unlock()
	if last == nil {
		if failure != nil {
			return fmt.Errorf("flush: %w", failure)
		}
		return nil
	}
	if _, err := (Receipt{batch: last}).Wait(ctx); err != nil {
		return fmt.Errorf("flush: %w", err)
	}
	return nil
}

// last returns the newest batch that is not resolved, or nil. Callers hold mu.
func (b *Batcher) last() *batch {
	switch {
	case b.open != nil:
		return b.open
	case len(b.queue) > 0:
		return b.queue[len(b.queue)-1]
	case len(b.inFlight) > 0:
		return b.inFlight[len(b.inFlight)-1]
	}
	return nil
}

// Close takes no more records, sends those that it has, and waits until they are durable and no goroutine is left. If ctx ends
// before, it gives up what is left: requests that were sent become unsettled. It returns as Flush does; Close again does nothing but that.
func (b *Batcher) Close(ctx context.Context) error {
	b.mu.Lock()
	b.closed = true
	b.mu.Unlock()
	b.room.close(ErrBatcherClosed)
	err := b.Flush(ctx)
	if ctx.Err() != nil {
		b.abandon(ctx.Err())
	}
	b.cancel()
	b.sending.Wait()
	return err
}
