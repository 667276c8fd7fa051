// Package objstore defines the object store that annals keeps everything in.
//
// The Store interface's comments are the contract: the engine relies on every
// sentence, and package storetest checks every implementation against them.
// Implementations: objstore/mem (tests and "mem:"), objstore/dir (a directory),
// objstore/s3 (S3 and servers that speak its API); around another store
// objstore/fault (breaks it on purpose), objstore/metered (counts its calls) and
// objstore/s3sim (makes it as slow as S3).
//
//	store, err := dir.Open("/var/lib/annals")
//	...
//	res, err := store.Put(ctx, "a/b", body, objstore.PutOptions{IfAbsent: true})
//	obj, err := store.Get(ctx, "a/b", objstore.GetOptions{Offset: 10, Length: 5})
package objstore

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Limits that every store keeps (invariant I9).
const (
	// MaxNameBytes is the longest object name.
	MaxNameBytes = 900
	// MaxListPage is the largest number of objects that one List call returns.
	MaxListPage = 1000
	// MaxDeleteBatch is the largest number of names that one Delete call takes.
	MaxDeleteBatch = 1000
)

// Errors that stores return, wrapped with the operation and the object's name
// ("put trees/00000000/MANIFEST: precondition failed"). Match with errors.Is.
var (
	// ErrNotFound: there is no such object (the bucket exists).
	ErrNotFound = errors.New("object not found")
	// ErrPrecondition: the store refused a conditional Put. This is ambiguous: an
	// earlier try of the same Put, repeated inside the store's client, may have
	// been applied. Read the object back before drawing a conclusion.
	ErrPrecondition = errors.New("precondition failed")
	// ErrConflict: another conditional write of the same name was in progress
	// (S3's 409). Ambiguous like ErrPrecondition; read back, then retry.
	ErrConflict = errors.New("conflicting write in progress")
	// ErrNotModified: a Get with IfNoneMatch found the object unchanged.
	ErrNotModified = errors.New("not modified")
	// ErrTooLarge: the body asked for (the object, or the range of it) is larger
	// than the caller's MaxBytes.
	ErrTooLarge = errors.New("object too large")
	// ErrRange: the requested range starts at or beyond the object's end. An empty
	// object therefore has no range; only the whole of it, or a suffix, can be read.
	ErrRange = errors.New("range not satisfiable")
	// ErrName: the name is empty, too long or not a clean relative path. A
	// programmer's error; nothing was sent.
	ErrName = errors.New("invalid object name")
	// ErrNoBucket: the bucket or the base directory does not exist. Retrying does
	// not help until somebody creates it.
	ErrNoBucket = errors.New("no such bucket or directory")
	// ErrDenied: the credentials do not permit the operation, or there are none.
	// Retrying does not help until somebody changes that.
	ErrDenied = errors.New("access denied")
	// ErrCredentials: the store does not know who asks: the credentials have expired, were
	// revoked, are wrong, or cannot be got from where they come from. It is an ErrDenied too, by
	// errors.Is. Retrying helps once there are others: stores look for them by themselves.
	ErrCredentials error = credentialsError{}
	// ErrFull: there is no space for the object, or a quota is used up. What is there can
	// be read. Retrying does not help until somebody makes room.
	ErrFull = errors.New("no space left")
	// ErrUnavailable: the store did not serve the request in any of the tries that its
	// client makes: it throttles, it is overloaded or down, the network is, or answers
	// came back garbled. The outcome of a write is unknown. Try again later.
	ErrUnavailable = errors.New("store unavailable")
	// ErrNoConditionalWrites: the store accepts IfAbsent or IfMatch and does not do
	// what they say (ProbeConditionalWrites found out). Nothing may be written to
	// such a store: two writers would overwrite each other.
	ErrNoConditionalWrites = errors.New("the store does not honour conditional writes")
)

// credentialsError is the type of ErrCredentials.
type credentialsError struct{}

// Error implements error.
func (credentialsError) Error() string { return "no valid credentials" }

// Unwrap makes it an ErrDenied.
func (credentialsError) Unwrap() error { return ErrDenied }

// Lasting reports whether an error of a store is one that goes on until somebody does
// something about it: a permission, credentials, a bucket or space is missing.
func Lasting(err error) bool {
	return errors.Is(err, ErrDenied) || errors.Is(err, ErrNoBucket) || errors.Is(err, ErrFull)
}

// Store is a flat namespace of objects: whole byte strings under names.
//
// Names are non-empty, at most MaxNameBytes bytes, and made of
// slash-separated, non-empty components of printable ASCII, none of them "." or
// ".."; ValidName says so. A name and a longer name that continues it with a
// slash must not both be used.
//
// Atomicity: a Put is all or nothing; no reader ever sees part of a body or a
// mixture of two. Durability: when Put returns nil the object survives a crash
// of the process and of the machine that keeps it, as far as the store promises.
// Consistency: operations on one name are linearizable, and a List begun after
// a Put or Delete returned reflects it.
//
// Any error of Put other than ErrName leaves the outcome unknown: the object
// may have been written, may be written later (a delayed request), or never.
// Stores may retry inside one call (with jitter, within ctx and their own
// bounds); a retried conditional Put may therefore be refused because of
// itself. Get, Head and List either return complete, correct data or an error;
// a body that ends early is read again or is an error, never shorter data.
//
// All methods but String send nothing when ctx has ended already. They may be
// called from any goroutine at any time, and return soon after ctx ends, with an error that wraps ctx.Err() (the request may still take
// effect). They neither keep nor change the slices that they are given after
// returning, and the caller owns the slices that they return.
type Store interface {
	// Put writes an object. Without conditions it replaces what is there.
	// With IfAbsent it is applied only if the name does not exist; with IfMatch
	// only if the object exists with exactly that ETag; of any number of racers
	// under one condition exactly one succeeds. A condition that does not hold
	// gives ErrPrecondition (also IfMatch on a name that does not exist). Both
	// conditions at once are a programmer's error and panic.
	Put(ctx context.Context, name string, body []byte, opts PutOptions) (PutResult, error)

	// Get reads an object or a range of it. Errors: ErrNotFound, ErrNotModified
	// (IfNoneMatch equals the current ETag), ErrTooLarge, ErrRange.
	Get(ctx context.Context, name string, opts GetOptions) (Object, error)

	// Head returns an object's attributes without its body. Error: ErrNotFound.
	Head(ctx context.Context, name string) (Attributes, error)

	// List returns the objects whose names begin with prefix and sort after
	// startAfter, in bytewise order of their names: at most limit of them (0 or
	// more than MaxListPage means MaxListPage; below 0 panics), and whether there
	// are more. Neither prefix nor startAfter needs to be a valid name, and prefix
	// needs not end at a slash. ETags are not filled in.
	List(ctx context.Context, prefix, startAfter string, limit int) (Page, error)

	// Delete removes objects: at most MaxDeleteBatch names, else it panics.
	// A name that does not exist counts as deleted, and a name may occur more than
	// once. With an invalid name nothing is deleted (ErrName). When some names could not be
	// deleted the error is a *DeleteError that lists them; the others are gone.
	// With any other error any subset may be gone. No names at all is no request.
	Delete(ctx context.Context, names []string) error

	// ServerTime asks the store for its time: the clock that LastModified and
	// PutResult.Time come from, with a resolution of one second or better.
	ServerTime(ctx context.Context) (time.Time, error)

	// String describes the store for people, as a URL without secrets.
	fmt.Stringer
}

// PutOptions are the conditions of a Put and how it may be sent.
type PutOptions struct {
	// IfAbsent applies the Put only if the name does not exist.
	IfAbsent bool
	// IfMatch, when not empty, applies the Put only if the object's ETag is this.
	IfMatch string
	// SinglePart forbids to split the body into a multipart upload, whatever its
	// size. WAL objects need it: a part that lands late must not exist.
	SinglePart bool
}

// PutResult describes the object that a Put wrote.
type PutResult struct {
	// ETag identifies this content of this name. Opaque: compare for equality only.
	ETag string
	// Time is the store's time when it answered.
	Time time.Time
}

// Check panics when both conditions are set, which is a programmer's error.
// For implementations of Store.
func (o PutOptions) Check() {
	if o.IfAbsent && o.IfMatch != "" {
		panic("objstore: a Put with both IfAbsent and IfMatch")
	}
}

// GetOptions choose what a Get reads. Negative numbers, and a Suffix together
// with an Offset or a Length, are a programmer's error and panic.
type GetOptions struct {
	// Offset and Length choose a range. Length 0 means to the end. A range that
	// runs past the end is cut short there; the caller compares Object.Size when
	// that matters.
	Offset, Length int64
	// Suffix, when above 0, reads the last Suffix bytes (all, if the object is
	// shorter); Offset and Length must then be 0.
	Suffix int64
	// IfNoneMatch, when not empty, gives ErrNotModified if the ETag is this.
	IfNoneMatch string
	// MaxBytes, when above 0, refuses to read a body of more bytes (ErrTooLarge),
	// before it is allocated.
	MaxBytes int64
}

// Check panics when the options contradict each other. For implementations of
// Store.
func (o GetOptions) Check() {
	if o.Offset < 0 || o.Length < 0 || o.Suffix < 0 || o.MaxBytes < 0 {
		panic(fmt.Sprintf("objstore: a Get with a negative number: %+v", o))
	}
	if o.Suffix > 0 && (o.Offset > 0 || o.Length > 0) {
		panic(fmt.Sprintf("objstore: a Get with both a suffix and a range: %+v", o))
	}
}

// Span returns the bytes [start, end) that the options choose of an object of
// the given size, or ErrRange or ErrTooLarge. For implementations of Store.
func (o GetOptions) Span(size int64) (start, end int64, err error) {
	switch {
	case o.Suffix > 0:
		start, end = max(0, size-o.Suffix), size
	case o.Offset == 0 && o.Length == 0:
		start, end = 0, size
	case o.Offset >= size:
		return 0, 0, fmt.Errorf("%w: offset %d of %d bytes", ErrRange, o.Offset, size)
	case o.Length == 0 || o.Length > size-o.Offset:
		start, end = o.Offset, size
	default:
		start, end = o.Offset, o.Offset+o.Length
	}
	if o.MaxBytes > 0 && end-start > o.MaxBytes {
		return 0, 0, fmt.Errorf("%w: %d bytes, limit %d", ErrTooLarge, end-start, o.MaxBytes)
	}
	return start, end, nil
}

// Object is what a Get returns.
type Object struct {
	// Body is the object, or the part asked for.
	Body []byte
	// Attributes are the whole object's.
	Attributes
}

// Attributes describe an object.
type Attributes struct {
	// Size is the size of the whole object in bytes.
	Size int64
	// ETag identifies the content; empty in listings.
	ETag string
	// Modified is the store's time of the Put that wrote the object, with a
	// resolution of one second or better.
	Modified time.Time
	// Time is the store's time when it answered, zero in listings.
	Time time.Time
}

// Entry is an object in a listing.
type Entry struct {
	Name string
	Attributes
}

// Page is one answer of List. To go on, list again after the last entry's name.
type Page struct {
	Entries []Entry
	More    bool
}

// DeleteError lists the names that a Delete could not remove.
type DeleteError struct {
	Failed []NameError
}

// NameError is one name that could not be deleted, and why.
type NameError struct {
	Name string
	Err  error
}

// Error implements error.
func (e *DeleteError) Error() string {
	if len(e.Failed) == 0 {
		return "delete: no object failed"
	}
	return fmt.Sprintf("delete %s: %v (and %d more objects failed)", e.Failed[0].Name, e.Failed[0].Err, len(e.Failed)-1)
}

// Unwrap returns the errors of the single names.
func (e *DeleteError) Unwrap() []error {
	errs := make([]error, len(e.Failed))
	for i, f := range e.Failed {
		errs[i] = f.Err
	}
	return errs
}

// ValidName returns an error that wraps ErrName unless name is fit for an
// object.
func ValidName(name string) error {
	if name == "" || len(name) > MaxNameBytes {
		return fmt.Errorf("%w: %d bytes", ErrName, len(name))
	}
	start := 0
	for i := 0; i <= len(name); i++ {
		if i < len(name) && name[i] != '/' {
			if name[i] <= ' ' || name[i] >= 0x7F || name[i] == '\\' {
				return fmt.Errorf("%w: %q", ErrName, name)
			}
			continue
		}
		if part := name[start:i]; part == "" || part == "." || part == ".." {
			return fmt.Errorf("%w: %q", ErrName, name)
		}
		start = i + 1
	}
	return nil
}

// PageSize returns the number of entries that a List with this limit returns at
// most. A negative limit is a programmer's error and panics. For implementations
// of Store.
func PageSize(limit int) int {
	if limit < 0 {
		panic(fmt.Sprintf("objstore: a List with the limit %d", limit))
	}
	if limit == 0 || limit > MaxListPage {
		return MaxListPage
	}
	return limit
}

// CheckDelete returns an error that wraps ErrName if one of the names is
// invalid, and panics if there are more than MaxDeleteBatch. For implementations
// of Store.
func CheckDelete(names []string) error {
	if len(names) > MaxDeleteBatch {
		panic(fmt.Sprintf("objstore: a Delete of %d names, the limit is %d", len(names), MaxDeleteBatch))
	}
	for _, name := range names {
		if err := ValidName(name); err != nil {
			return err
		}
	}
	return nil
}

// ListAll calls fn for every object whose name begins with prefix and sorts
// after startAfter, in order, page by page, until fn returns false or an error.
func ListAll(ctx context.Context, s Store, prefix, startAfter string, fn func(Entry) (bool, error)) error {
	for {
		page, err := s.List(ctx, prefix, startAfter, MaxListPage)
		if err != nil {
			return err
		}
		for _, e := range page.Entries {
			if goOn, err := fn(e); err != nil || !goOn {
				return err
			}
		}
		if !page.More || len(page.Entries) == 0 {
			return nil
		}
		startAfter = page.Entries[len(page.Entries)-1].Name
	}
}
