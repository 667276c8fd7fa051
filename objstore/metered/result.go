package metered

import (
	"context"
	"errors"
	"fmt"

	"github.com/annalsdb/annals/objstore"
)

// Op is what is asked of a store.
type Op uint8

// All operations: the methods of objstore.Store, and AbortUploads, which some
// stores have.
const (
	Put Op = iota
	Get
	Head
	List
	Delete
	Time // ServerTime
	AbortUploads

	// NumOps is the number of operations.
	NumOps = iota
)

// String returns the operation's name, as in "abort_uploads".
func (o Op) String() string {
	names := [NumOps]string{"put", "get", "head", "list", "delete", "time", "abort_uploads"}
	if o >= NumOps {
		return fmt.Sprintf("Op(%d)", o)
	}
	return names[o]
}

// Result is how a call ended.
type Result uint8

// All results, with the error of package objstore that each stands for.
const (
	OK           Result = iota
	NotFound            // ErrNotFound
	NotModified         // ErrNotModified
	Precondition        // ErrPrecondition
	Conflict            // ErrConflict
	Range               // ErrRange, ErrTooLarge
	Denied              // ErrDenied, but for ErrCredentials
	Credentials         // ErrCredentials
	NoBucket            // ErrNoBucket
	Full                // ErrFull
	Unavailable         // ErrUnavailable
	Canceled            // the caller gave up
	Timeout             // the caller's deadline passed, or its timer cancelled the call
	Failed              // any other error

	// NumResults is the number of results.
	NumResults = iota
)

// String returns the result's name, as in "not_found". Failed is "error".
func (r Result) String() string {
	names := [NumResults]string{"ok", "not_found", "not_modified", "precondition", "conflict", "range",
		"denied", "credentials", "no_bucket", "full", "unavailable", "canceled", "timeout", "error"}
	if r >= NumResults {
		return fmt.Sprintf("Result(%d)", r)
	}
	return names[r]
}

// answer reports whether the store has answered as it should: with what was asked for, or that it is not so.
func (r Result) answer() bool { return r <= Range }

// classes are the errors that have a result of their own. The first that matches
// counts, of a Delete that failed in part too.
var classes = [...]struct {
	err    error
	result Result
}{
	{objstore.ErrNotFound, NotFound},
	{objstore.ErrNotModified, NotModified},
	{objstore.ErrPrecondition, Precondition},
	{objstore.ErrConflict, Conflict},
	{objstore.ErrRange, Range},
	{objstore.ErrTooLarge, Range},
	{objstore.ErrCredentials, Credentials}, // before ErrDenied, which it is too
	{objstore.ErrDenied, Denied},
	{objstore.ErrNoBucket, NoBucket},
	{objstore.ErrFull, Full},
	{objstore.ErrUnavailable, Unavailable},
}

// resultOf classifies the error of a call with this context. Only the caller's own
// context makes a call canceled: limits inside of the store are the store's failures. A
// context that was cancelled because of context.DeadlineExceeded had a deadline too: callers
// whose clock can be simulated bound their calls so.
func resultOf(ctx context.Context, err error) Result {
	if err == nil {
		return OK
	}
	if ended := ctx.Err(); ended != nil && errors.Is(err, ended) {
		if errors.Is(ended, context.DeadlineExceeded) || errors.Is(context.Cause(ctx), context.DeadlineExceeded) {
			return Timeout
		}
		return Canceled
	}
	for _, c := range classes {
		if errors.Is(err, c.err) {
			return c.result
		}
	}
	return Failed
}
