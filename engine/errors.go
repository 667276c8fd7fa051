package engine

import (
	"errors"
	"fmt"

	"github.com/annalsdb/annals/internal/base"
)

// Errors of the engine. Match with errors.Is.
var (
	// ErrFenced: another writer has opened the log. This DB never writes or reads
	// again; close it. Retrying here does not help.
	ErrFenced = errors.New("fenced: another writer has opened the log")
	// ErrClosed: the DB is closed or closing.
	ErrClosed = errors.New("database is closed")
	// ErrOverloaded: too much is waiting to be flushed. Nothing was appended;
	// retry after a while.
	ErrOverloaded = errors.New("write path is full")
	// ErrTooLarge: a key, value or batch is above its limit. Nothing was appended;
	// retrying does not help.
	ErrTooLarge = errors.New("too large")
	// ErrStale: the log's head could not be read for longer than
	// Options.StaleAfter, so that objects may be gone (invariant I7). Retry when
	// the store answers again.
	ErrStale = errors.New("view of the log is stale")
	// ErrInvalid: the arguments contradict each other. Retrying does not help.
	ErrInvalid = errors.New("invalid argument")
	// ErrConflict: the log is not as the append expects. Nothing was appended. The error
	// is a *ConditionError or a *ProducerError, which say how it is.
	ErrConflict = errors.New("the log is not as the append expects")
	// ErrStateFull: the small state has reached Options.MaxStateBytes, so that no new cursors can be
	// set. Retrying helps when cursors were deleted.
	ErrStateFull = errors.New("too many cursors")
	// ErrCorrupt: bytes in the store are not what they should be (invariant I8).
	// The error names the object and the offset; see docs/.
	ErrCorrupt = base.ErrCorrupt
)

// Outcome says what is known about an append that failed.
type Outcome int

const (
	// NotAppended: it was refused before a sequence was assigned.
	NotAppended Outcome = iota
	// Unknown: sequences were assigned; the batch may or may not become durable,
	// or already be. Read back before appending it again.
	Unknown
)

// String returns "not_appended" or "unknown".
func (o Outcome) String() string {
	if o == NotAppended {
		return "not_appended"
	}
	return "unknown"
}

// AppendError is the error of every failed append.
type AppendError struct {
	Outcome Outcome
	Err     error
}

// Error implements error.
func (e *AppendError) Error() string {
	if e.Outcome == NotAppended {
		return fmt.Sprintf("append: %v (nothing was appended)", e.Err)
	}
	return fmt.Sprintf("append: %v (the outcome is unknown)", e.Err)
}

// Unwrap returns the reason.
func (e *AppendError) Unwrap() error { return e.Err }
