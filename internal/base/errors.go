package base

import (
	"errors"
	"fmt"
)

// ErrCorrupt is matched (errors.Is) by every error that reports bytes from the
// store that are not what they should be (invariant I8). Retrying does not
// help: the named object is damaged or misplaced.
var ErrCorrupt = errors.New("corrupt object")

// CorruptError says which object holds wrong bytes and where.
type CorruptError struct {
	Object string // object name, or what the decoder was given as the name
	Offset int64  // byte offset of the part that is wrong
	Reason string // what was expected
}

// Error implements error.
func (e *CorruptError) Error() string {
	return fmt.Sprintf("corrupt object %s at offset %d: %s", e.Object, e.Offset, e.Reason)
}

// Is reports that a CorruptError is ErrCorrupt.
func (e *CorruptError) Is(target error) bool { return target == ErrCorrupt }

// Corruptf returns a CorruptError with a formatted reason.
func Corruptf(object string, offset int64, format string, args ...any) error {
	return &CorruptError{Object: object, Offset: offset, Reason: fmt.Sprintf(format, args...)}
}
