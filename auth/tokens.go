package auth

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/annalsdb/annals/internal/reload"
)

// Why a secret is not taken.
var (
	// ErrUnknown: no token in force has this secret.
	ErrUnknown = errors.New("the token is not known")
	// ErrExpired: the token had a time to expire, which is past. Ask for a new one.
	ErrExpired = errors.New("the token has expired")
)

// Tokens are the tokens in force. Methods may be called from any goroutine; Lookup takes no lock.
type Tokens struct {
	replace sync.Mutex // one replaces at a time
	byHash  atomic.Pointer[map[Hash]*Token]
	file    *reload.Files // nil: of no file
}

// NewTokens returns a set of these tokens. None: no secret is taken. Errors: what Validate finds.
func NewTokens(entries []Entry) (*Tokens, error) {
	s := new(Tokens)
	s.byHash.Store(new(map[Hash]*Token))
	if err := s.Replace(entries); err != nil {
		return nil, err
	}
	return s, nil
}

// Replace puts other tokens in force. Those that are no longer among them, or that allow something else now, are
// over at once. Errors: what Validate finds; nothing is replaced then.
func (s *Tokens) Replace(entries []Entry) error {
	if err := Validate(entries); err != nil {
		return fmt.Errorf("replace tokens: %w", err)
	}
	s.replace.Lock()
	defer s.replace.Unlock()
	old := *s.byHash.Load()
	next := make(map[Hash]*Token, len(entries))
	for i := range entries {
		t := newToken(&entries[i])
		if before := old[t.hash]; before != nil && before.same(t) {
			t.end()
			t = before
		}
		next[t.hash] = t
	}
	s.byHash.Store(&next)
	for hash, t := range old {
		if next[hash] != t {
			t.end()
		}
	}
	return nil
}

// Lookup returns the token with this secret. Errors: ErrUnknown; ErrExpired, with the token.
func (s *Tokens) Lookup(secret string) (*Token, error) {
	if !WellFormed(secret) {
		return nil, ErrUnknown // a secret of somebody's own making could be guessed
	}
	t := (*s.byHash.Load())[HashOf(secret)]
	switch {
	case t == nil:
		return nil, ErrUnknown
	case t.expired(time.Now()):
		return t, ErrExpired
	}
	return t, nil
}

// Len is how many tokens are in force, with those that have expired.
func (s *Tokens) Len() int { return len(*s.byHash.Load()) }
