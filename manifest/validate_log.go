package manifest

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/annalsdb/annals/internal/base"
)

// ValidateLog returns an error that says which structural invariant of LOG is
// broken, or nil: sizes of ids, and key ranges that cover all keys in order
// without overlap.
func ValidateLog(l *Log) error {
	switch {
	case l.FormatVersion != FormatVersion:
		return fmt.Errorf("format version %d inside, %d outside", l.FormatVersion, FormatVersion)
	case len(l.LogId) != idBytes:
		return fmt.Errorf("log id has %d bytes", len(l.LogId))
	case len(l.Trees) == 0:
		return errors.New("no tree")
	}
	ids := make(map[uint32]bool, len(l.Trees))
	start := []byte{} // where the next range must start; nil: nowhere
	for i, t := range l.Trees {
		switch {
		case t.Id > base.MaxTree || ids[t.Id]:
			return fmt.Errorf("tree %d is not unique or above %d", t.Id, base.MaxTree)
		case start == nil || !bytes.Equal(t.StartKey, start):
			return fmt.Errorf("tree %d: key range does not start where the one before ends", t.Id)
		case t.EndKey != nil && bytes.Compare(t.StartKey, t.EndKey) >= 0:
			return fmt.Errorf("tree %d: key range is empty", t.Id)
		case t.EndKey == nil && i != len(l.Trees)-1:
			return fmt.Errorf("tree %d: key range without an end before the last", t.Id)
		}
		ids[t.Id] = true
		start = t.EndKey
	}
	if start != nil {
		return errors.New("the last key range has an end")
	}
	return nil
}
