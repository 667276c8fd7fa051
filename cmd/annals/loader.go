package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/annalsdb/annals/client"
	"github.com/annalsdb/annals/internal/base"
)

// Bounds of a load.
const (
	// batchLinger is how long a batch that is not full waits for more lines,
	// so that input that comes slowly is sent nevertheless.
	batchLinger = 250 * time.Millisecond
	// retryFor is how long a batch that the server refuses for now is sent again.
	retryFor = time.Minute
	// The waits in between, unless the server asks for a longer one.
	firstRetryWait = 50 * time.Millisecond
	maxRetryWait   = 5 * time.Second
	// requestTimeout bounds one request. The server's own --append-timeout
	// should end first: its answer says more.
	requestTimeout = 2 * time.Minute
)

// appendFunc sends one batch. Its errors are sorted by a *sendError; any other
// error means that the outcome is unknown.
type appendFunc func(ctx context.Context, batch []entry) error

// sendError is a failed append that is known to have appended nothing.
type sendError struct {
	err   error
	retry bool          // the same batch may be accepted later
	after time.Duration // not before
}

func (e *sendError) Error() string { return e.err.Error() }
func (e *sendError) Unwrap() error { return e.err }

// outlet is where batches go.
type outlet struct {
	send appendFunc
	// number returns that of the producer's next append. It is nil if appends are not
	// numbered. If they are, send repeats them by itself, and batches are made of the input
	// alone, whenever it comes: another run makes the same ones.
	number func() uint64
}

// loader sends the lines of an input in batches, one under way at a time:
// so "the first N lines are acknowledged" is exact at every moment.
type loader struct {
	input *lineReader
	outlet
	env          *base.Env
	progress     *progress
	batchRecords uint64
	batchBytes   int64
	single       bool // the whole input must be one batch

	lines   chan entry // from the reading goroutine, closed at the end
	readErr error      // why it ended, if not at the end of the input; read after lines is closed
	held    *entry     // did not fit into the batch before
}

// open begins to read an input behind the lines that are passed over. Where nothing comes, it waits until ctx ends; the goroutine
// that reads then stays until the process ends.
func (l *loader) open(ctx context.Context, in io.Reader, name string, skip uint64) error {
	done := make(chan error, 1)
	var input *lineReader
	go func() {
		var err error
		if input, err = newLineReader(in, name); err == nil {
			err = input.skip(skip)
		}
		done <- err
	}()
	select {
	case <-ctx.Done():
		return l.resumable(errInterrupted)
	case err := <-done:
		if err != nil {
			return failf("%w", err)
		}
	}
	l.input = input
	return nil
}

// run loads what was opened. It stops early when ctx ends, but not within a batch.
func (l *loader) run(ctx context.Context) error {
	l.lines = make(chan entry) // no buffer: a line may be large
	reading, stop := context.WithCancel(ctx)
	defer stop()
	go l.read(reading)
	for {
		batch, size, more := l.collect(ctx)
		if l.single && more && len(batch) > 0 && l.follows() {
			return l.resumable(errors.New("--expect-next needs all records in one append: raise --batch-records and --batch-bytes, or load less"))
		}
		if len(batch) > 0 {
			if err := l.sendBatch(ctx, batch); err != nil {
				return l.explain(batch, err)
			}
			l.progress.acknowledged(batch[len(batch)-1].line, len(batch), size)
		}
		switch {
		case ctx.Err() != nil:
			return l.resumable(errInterrupted)
		case more:
		case l.readErr != nil:
			return l.resumable(l.readErr)
		default:
			l.progress.lines = l.input.line // blank lines at the end, too
			return nil
		}
	}
}

// read feeds l.lines until the input or ctx ends.
func (l *loader) read(ctx context.Context) {
	defer close(l.lines)
	for {
		e, err := l.input.next()
		if err != nil {
			if err != io.EOF {
				l.readErr = err
			}
			return
		}
		select {
		case l.lines <- e:
		case <-ctx.Done():
			return
		}
	}
}

// follows reports whether there is a further line. It keeps it for the next batch.
func (l *loader) follows() bool {
	if l.held != nil {
		return true
	}
	e, ok := <-l.lines
	if ok {
		l.held = &e
	}
	return ok
}

// collect returns the next batch and its bytes, and whether more can follow.
// It waits for the first line as long as it takes, and for each further one until
// batchLinger after the first, or as long as it takes where time must not matter.
func (l *loader) collect(ctx context.Context) (batch []entry, size int, more bool) {
	if l.held != nil {
		batch, size, l.held = append(batch, *l.held), len(l.held.key)+len(l.held.value), nil
	}
	var linger <-chan time.Time
	for uint64(len(batch)) < l.batchRecords {
		if len(batch) > 0 && linger == nil && l.number == nil && !l.single {
			timer := time.NewTimer(batchLinger)
			defer timer.Stop()
			linger = timer.C
		}
		select {
		case e, ok := <-l.lines:
			if !ok {
				return batch, size, false
			}
			bytes := len(e.key) + len(e.value)
			if len(batch) > 0 && int64(size)+int64(bytes) > l.batchBytes {
				l.held = &e
				return batch, size, true
			}
			batch, size = append(batch, e), size+bytes
		case <-linger:
			return batch, size, true
		case <-ctx.Done():
			return nil, 0, true // what was not sent is not acknowledged
		}
	}
	return batch, size, true
}

// sendBatch sends until the batch is acknowledged, refused for good or unknown,
// or retryFor has passed. A request under way is never cut off by ctx: its
// outcome would be unknown.
func (l *loader) sendBatch(ctx context.Context, batch []entry) error {
	started := l.env.Now()
	for attempt := 0; ; attempt++ {
		request, cancel := context.WithTimeout(context.WithoutCancel(ctx), requestTimeout)
		err := l.send(request, batch)
		cancel()
		var refused *sendError
		if err == nil || !errors.As(err, &refused) || !refused.retry {
			return err
		}
		wait := max(l.env.Backoff(firstRetryWait, maxRetryWait, attempt), min(refused.after, retryFor))
		if l.env.Now().Sub(started)+wait > retryFor {
			return &sendError{err: fmt.Errorf("refused for %v: %w", retryFor, refused.err)}
		}
		if l.env.Sleep(ctx, wait) != nil {
			return &sendError{err: errInterrupted}
		}
	}
}

// explain says what a failed batch means for the lines of the input.
func (l *loader) explain(batch []entry, err error) error {
	first, last := batch[0].line, batch[len(batch)-1]
	err = fmt.Errorf("lines %d to %d: %w", first, last.line, err)
	var refused *sendError
	var number *client.SequenceError
	if errors.As(err, &number) {
		return failf("%w\n%d lines were acknowledged; the producer's last number is %d: another load, or another cut of the same input, used its numbers",
			err, l.progress.lines, number.Last)
	}
	if errors.As(err, &refused) {
		return l.resumable(err)
	}
	if l.number != nil {
		return &exitError{exitUnknown, fmt.Errorf("%w\n"+
			"%d lines were acknowledged. Lines %d to %d were appended all or not at all, it is unknown which:\n"+
			"go on with%s, which appends nothing twice", err, l.progress.lines, first, last.line, l.goOn())}
	}
	return &exitError{exitUnknown, fmt.Errorf("%w\n"+
		"%d lines were acknowledged. Lines %d to %d were appended all or not at all, it is unknown which: look for line %d\n"+
		"with \"annals scan --last 1 -- %s\", then go on with --skip %d if it is there, else with --skip %d",
		err, l.progress.lines, first, last.line, last.line, shellQuote(last.key), last.line, l.progress.lines)}
}

// resumable says how to go on when every line is known to be appended or not.
func (l *loader) resumable(err error) error {
	return failf("%w\n%d lines were acknowledged; go on with%s", err, l.progress.lines, l.goOn())
}

// goOn is the flags that go on behind what was acknowledged.
func (l *loader) goOn() string {
	flags := fmt.Sprintf(" --skip %d", l.progress.lines)
	if l.number != nil {
		flags += fmt.Sprintf(" --producer-seq %d", l.number())
	}
	return flags
}
