package engine

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/annalsdb/annals/internal/base"
)

// ErrOutOfRange: a key, or a prefix, is not within the KeyRange that this replica keeps.
// Ask another one; retrying here does not help.
var ErrOutOfRange = errors.New("out of the range of keys of this replica")

// KeyRange is a half-open range of keys in byte order. The zero value is all keys.
type KeyRange struct {
	Start []byte // inclusive
	End   []byte // exclusive; nil: no upper end
}

// Contains reports whether the key lies in the range.
func (r KeyRange) Contains(key []byte) bool {
	return bytes.Compare(key, r.Start) >= 0 && (r.End == nil || bytes.Compare(key, r.End) < 0)
}

// ContainsPrefix reports whether all keys with the prefix lie in the range.
func (r KeyRange) ContainsPrefix(prefix []byte) bool {
	if bytes.Compare(prefix, r.Start) < 0 {
		return false
	}
	if r.End == nil {
		return true
	}
	end, bounded := base.PrefixEnd(prefix)
	return bounded && bytes.Compare(end, r.End) <= 0
}

// overlapsPrefix reports whether a key with the prefix can lie in the range.
func (r KeyRange) overlapsPrefix(prefix []byte) bool {
	return (r.End == nil || bytes.Compare(prefix, r.End) < 0) &&
		(bytes.Compare(prefix, r.Start) >= 0 || bytes.HasPrefix(r.Start, prefix))
}

// all reports whether every key is in the range.
func (r KeyRange) all() bool { return len(r.Start) == 0 && r.End == nil }

func (r KeyRange) validate() error {
	if r.End != nil && bytes.Compare(r.Start, r.End) >= 0 {
		return fmt.Errorf("range of keys %s is empty", r)
	}
	return nil
}

const (
	rangeSeparator = ".."
	bytesMark      = "b64:"
)

// String returns "FROM..TO" in the form that ParseKeyRange reads; either may be empty.
func (r KeyRange) String() string { return boundString(r.Start) + rangeSeparator + boundString(r.End) }

// boundString writes a bound as it is if it is text that cannot be taken for something
// else, and as base64 if not.
func boundString(b []byte) string {
	s := string(b)
	plain := utf8.ValidString(s) && !strings.HasPrefix(s, bytesMark) && !strings.Contains(s, rangeSeparator) &&
		!strings.HasPrefix(s, ".") && !strings.HasSuffix(s, ".") &&
		strings.IndexFunc(s, func(c rune) bool { return c <= ' ' || c == 0x7F }) < 0
	if plain {
		return s
	}
	return bytesMark + base64.StdEncoding.EncodeToString(b)
}

// ParseKeyRange reads "FROM..TO": keys from FROM (inclusive) to TO (exclusive). An empty
// FROM is the first key, an empty TO means no upper end. A bound that begins with
// "b64:" is base64; one with two dots in a row, or one at its end or beginning, must be
// written so.
func ParseKeyRange(s string) (KeyRange, error) {
	from, to, ok := strings.Cut(s, rangeSeparator)
	if !ok {
		return KeyRange{}, fmt.Errorf("%w: range of keys %q is not FROM..TO", ErrInvalid, s)
	}
	if strings.HasPrefix(to, ".") || strings.Contains(to, rangeSeparator) {
		return KeyRange{}, fmt.Errorf("%w: range of keys %q can be read in more than one way: bounds with dots are written b64:BASE64", ErrInvalid, s)
	}
	var r KeyRange
	var err error
	if r.Start, err = parseBound(from); err != nil {
		return KeyRange{}, err
	}
	if r.End, err = parseBound(to); err != nil {
		return KeyRange{}, err
	}
	if err := r.validate(); err != nil {
		return KeyRange{}, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	return r, nil
}

// parseBound returns nil for the empty bound.
func parseBound(s string) ([]byte, error) {
	coded, ok := strings.CutPrefix(s, bytesMark)
	if !ok {
		if s == "" {
			return nil, nil
		}
		return []byte(s), nil
	}
	b, err := base64.StdEncoding.DecodeString(coded)
	if err != nil {
		return nil, fmt.Errorf("%w: bound %q of a range of keys: %w", ErrInvalid, s, err)
	}
	if len(b) == 0 {
		return nil, nil
	}
	return b, nil
}

// checkKey returns ErrOutOfRange unless reads of the key can be answered here. Each operation on a
// key asks once, before it looks at anything.
func (c *core) checkKey(key []byte) error {
	if c.keys.Contains(key) {
		return nil
	}
	return fmt.Errorf("%w: %.80q is not in %s", ErrOutOfRange, key, c.keys)
}

// checkStream is checkKey for all keys of a stream.
func (c *core) checkStream(s *Stream) error {
	if !s.Prefix {
		return c.checkKey(s.Key)
	}
	if c.keys.ContainsPrefix(s.Key) {
		return nil
	}
	return fmt.Errorf("%w: not all keys with the prefix %.80q are in %s", ErrOutOfRange, s.Key, c.keys)
}
