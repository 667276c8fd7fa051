package history

import (
	"fmt"
	"time"
	"unicode/utf8"

	"github.com/cespare/xxhash/v2"
)

// Role of a server process. The names are written to files: do not change them.
type Role string

const (
	Writer  Role = "writer"
	Replica Role = "replica"
)

// Process is one start of a server.
//
// Only the current writer must answer reads with all that was acknowledged before (I2). Which one that is
// no client can know for sure; these times tell when it can only be this one. It may have been passed
// by a writer that opened the log after it: one that had not ended when this one
// started, and was not yet ready then. Answers of a writer that may have been passed are held to what replicas promise.
type Process struct {
	ID      int           `json:"id"` // from 1
	Name    string        `json:"name"`
	Role    Role          `json:"role"`
	Started time.Duration `json:"started"`         // before it was executed
	Ready   time.Duration `json:"ready,omitempty"` // after it said so, or answered; 0: never
	Ended   time.Duration `json:"ended,omitempty"` // after it was waited for; 0: never
}

// Final is what a fresh writer has in the end, when nothing else can change it any more.
type Final struct {
	Records  map[string][]Record          `json:"records"`           // by key
	Cursors  map[string]map[string]uint64 `json:"cursors,omitempty"` // by consumer, then key
	Frontier uint64                       `json:"frontier"`
}

// History is everything that was recorded.
type History struct {
	Processes  []Process   // by id
	Operations []Operation // by the time at which they began
	Final      *Final
}

// maxText is the longest text that Text leaves as it is.
const maxText = 96

// Text is how keys and values are recorded: as they are if they are short and UTF-8, which
// files need; else by how they begin, with their length and a hash, which identify them still.
func Text(b []byte) string {
	if len(b) <= maxText && utf8.Valid(b) {
		return string(b)
	}
	begin := b[:min(len(b), 24)]
	if utf8.Valid(begin) {
		return fmt.Sprintf("%s...(%d bytes, %016x)", begin, len(b), xxhash.Sum64(b))
	}
	return fmt.Sprintf("%x...(%d bytes, %016x)", begin, len(b), xxhash.Sum64(b))
}
