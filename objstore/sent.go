package objstore

import "fmt"

// Sender is a store that sends requests over a network and counts them. One call of
// a store's method may send several, and repeats of one: these are what a provider
// charges for.
type Sender interface {
	Store
	// Sent returns the counts since the store was opened: always the same operations in
	// the same order, zeros included. It costs no I/O and may be called from any
	// goroutine.
	Sent() []SentRequests
}

// SentRequests counts the requests of one operation of the store's protocol.
type SentRequests struct {
	// Operation is the protocol's name of it, such as "PutObject".
	Operation string
	// Count is by Answer.
	Count [NumAnswers]uint64
}

// Answer is how a request that was sent was answered, as far as that tells who is to
// blame.
type Answer uint8

// All answers.
const (
	// AnswerOK: it was served. "Not modified" counts too.
	AnswerOK Answer = iota
	// AnswerRefused: it cannot be served as it is: not found, a condition that does not
	// hold, denied.
	AnswerRefused
	// AnswerThrottled: the store asks for fewer requests, or is overloaded.
	AnswerThrottled
	// AnswerFailed: the store failed.
	AnswerFailed
	// AnswerNone: there was no answer: the network failed, it took too long, or the
	// caller gave up.
	AnswerNone

	// NumAnswers is the number of answers.
	NumAnswers = iota
)

// String returns the answer's name, as in "throttled".
func (a Answer) String() string {
	names := [NumAnswers]string{"ok", "refused", "throttled", "failed", "none"}
	if a >= NumAnswers {
		return fmt.Sprintf("Answer(%d)", a)
	}
	return names[a]
}
