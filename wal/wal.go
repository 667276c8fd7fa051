// Package wal is the write-ahead log of a tree: the codec of its objects, the
// uploader that makes them durable in order, the fence that ends a writer's
// epoch, and the replay that a new writer opens with.
//
// The format is docs/format/wal.md. What the package upholds:
//
//   - I1: an object is reported durable only when it and every earlier object of
//     its epoch are in the store (Uploader).
//   - I2: an epoch ends at the first id that a fence fills; nothing behind that is
//     ever reported durable (Uploader) or read (Replay).
//   - I4: replay delivers every object up to the fence, in order, checked as a
//     chain, or fails (Replay, Chain). A missing or damaged object is never taken
//     for the end of the log.
//   - I8: decoding checks everything and never panics (Decode).
//
// Two rules carry most of that. An id is bound to its bytes at its first PUT. And
// a conditional write that was not answered with success is unknown until the
// object has been read back.
package wal

import (
	"errors"

	"github.com/annalsdb/annals/internal/base"
)

// Version is the format version that this package writes, and the only one that
// it reads.
const Version = 1

const (
	// FenceSize is the size of every fence in bytes, in every format version. No
	// record object is this small.
	FenceSize = 64
	// MaxObjectBytes bounds a record object. Larger ones are neither built nor read.
	MaxObjectBytes = 1<<31 - 1
)

// Errors. Match with errors.Is; damage matches base.ErrCorrupt.
var (
	// ErrVersion: an intact object of a format that this binary does not know.
	// A newer binary wrote it; only such a binary can go on.
	ErrVersion = errors.New("unknown WAL format version")
	// ErrFenced: another writer has ended this writer's epoch. What was not yet
	// reported durable has an unknown outcome: it may be part of the log.
	ErrFenced = errors.New("fenced by another writer")
	// ErrMissing: an object that lies before the epoch's fence does not exist.
	// Either a newer writer has flushed and collected it, or it was lost.
	ErrMissing = errors.New("WAL object is missing")
)

// LogID identifies a log: 16 random bytes, chosen when it is created.
type LogID = [16]byte

// WriterID identifies one opening of a tree by a writer: 16 random bytes.
type WriterID = [16]byte

// Identity says which tree of which log an object belongs to.
type Identity struct {
	LogID LogID
	Tree  uint32
}

// Header is what a record object says about itself and its place in the log.
type Header struct {
	Identity
	Writer WriterID
	// Epoch and ID name the object; both start at 1.
	Epoch, ID uint64
	// Segment of all its records.
	Segment uint32
	// First is the sequence of its first record, End the one after its last.
	First, End uint64
	// PrevEnd is the End of the object before; for id 1 the sequence at which the
	// epoch began. PrevEnd <= First <= End.
	PrevEnd uint64
	// Durable is below ID: when the object was made, its writer knew that all ids up
	// to Durable were in the store. One of them that is missing was lost.
	Durable uint64
}

// IsFence reports whether an object of a WAL folder is a fence, by the size that
// a listing shows.
func IsFence(size int64) bool { return size == FenceSize }

// seed is the seed of an object's checksum (I8): what the object should be.
func (i Identity) seed(epoch, id uint64) uint64 {
	return base.Seed(i.LogID[:], uint64(i.Tree), epoch, id)
}
