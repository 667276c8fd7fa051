package wire

import (
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Bounds of requests. They are those of the log.
const (
	// MaxRecords is the largest number of records in one append: an empty record
	// takes a few bytes of a body, but many times that in memory.
	MaxRecords = 1 << 20
	// MaxExpected is the largest number of conditions of one append.
	MaxExpected = 10_000
	// MaxProducerBytes is the longest name of a producer.
	MaxProducerBytes = 128
	// MaxCursors is the largest number of cursors, or keys, in one request about cursors.
	MaxCursors = 10_000
	// MaxConsumerBytes is the longest name of a consumer.
	MaxConsumerBytes = 128
)

var (
	// ErrTooManyRecords reports a request with more than MaxRecords records.
	ErrTooManyRecords = fmt.Errorf("more than %d records", MaxRecords)
	// ErrTooManyExpected reports a request with more than MaxExpected conditions.
	ErrTooManyExpected = fmt.Errorf("more than %d conditions in expectedNext", MaxExpected)
	// ErrTooManyCursors reports a request with more than MaxCursors cursors or keys.
	ErrTooManyCursors = fmt.Errorf("more than %d cursors", MaxCursors)
)

// ValidateConsumer returns what is wrong with the name of a consumer, or nil.
func ValidateConsumer(name string) error {
	switch {
	case len(name) == 0 || len(name) > MaxConsumerBytes:
		return fmt.Errorf("consumer has %d bytes; it must have 1 to %d", len(name), MaxConsumerBytes)
	case !utf8.ValidString(name):
		return errors.New("consumer is not UTF-8")
	case strings.ContainsRune(name, '/'):
		return errors.New("consumer holds a slash")
	case strings.ContainsFunc(name, unicode.IsControl):
		return errors.New("consumer holds a control character")
	}
	return nil
}
