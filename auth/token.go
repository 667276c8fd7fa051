package auth

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"slices"
	"time"
)

// Entry is one token as its file has it.
type Entry struct {
	Name     string   // of MaxNameBytes; for logs
	Hash     Hash     // of the secret
	Scopes   Scope    // one at least
	Prefixes [][]byte // the keys that it is limited to; none: all keys
	Expires  time.Time
}

// Token is a token that is, or was, in force. Its methods may be called from any goroutine.
type Token struct {
	name     string
	hash     Hash
	scopes   Scope
	prefixes [][]byte // invariant 3; nil: not limited
	expires  time.Time
	set      [sha256.Size]byte // hash of the prefixes

	life context.Context // ends when the token is no longer in force
	end  context.CancelFunc
}

func newToken(e *Entry) *Token {
	t := &Token{name: e.Name, hash: e.Hash, scopes: e.Scopes, prefixes: outermost(e.Prefixes), expires: e.Expires}
	h := sha256.New()
	for _, p := range t.prefixes {
		_, _ = h.Write(binary.AppendUvarint(nil, uint64(len(p)))) // a hash takes everything
		_, _ = h.Write(p)
	}
	h.Sum(t.set[:0])
	t.life, t.end = context.WithCancel(context.Background())
	return t
}

// outermost returns the prefixes that begin with no other, sorted (invariant 3).
func outermost(prefixes [][]byte) (list [][]byte) {
	for _, p := range slices.SortedFunc(slices.Values(prefixes), bytes.Compare) {
		if n := len(list); n == 0 || !bytes.HasPrefix(p, list[n-1]) {
			list = append(list, bytes.Clone(p))
		}
	}
	return list
}

// same reports whether both allow the same bearer the same.
func (t *Token) same(o *Token) bool {
	return t.name == o.name && t.hash == o.hash && t.scopes == o.scopes && t.set == o.set &&
		t.Limited() == o.Limited() && t.expires.Equal(o.expires)
}

// Name is the token's name, for logs.
func (t *Token) Name() string { return t.name }

// Allows reports whether the token has all the scopes.
func (t *Token) Allows(s Scope) bool { return t.scopes.Has(s) }

// Limited reports whether the token is for the keys with some prefixes only.
func (t *Token) Limited() bool { return len(t.prefixes) > 0 }

// Covers reports whether the token is for this key.
func (t *Token) Covers(key []byte) bool {
	if !t.Limited() {
		return true
	}
	// By invariant 3 only the last prefix at or below the key can begin it: what lies between a
	// prefix and a key that it begins has the prefix too.
	i, found := slices.BinarySearchFunc(t.prefixes, key, bytes.Compare)
	return found || i > 0 && bytes.HasPrefix(key, t.prefixes[i-1])
}

// Within returns prefixes that together select those keys with the given prefix that the token is for:
// in byte order and disjoint. None: there are no such keys. They must not be changed.
func (t *Token) Within(prefix []byte) [][]byte {
	if t.Covers(prefix) {
		return [][]byte{prefix}
	}
	i, _ := slices.BinarySearchFunc(t.prefixes, prefix, bytes.Compare)
	end := i
	for end < len(t.prefixes) && bytes.HasPrefix(t.prefixes[end], prefix) {
		end++
	}
	return t.prefixes[i:end]
}

// Producer returns the name under which a log is to know the bearer's producer: tokens with other
// prefixes cannot give the same. The producers of a token that is not limited keep their names.
func (t *Token) Producer(name string) string {
	if !t.Limited() {
		return name
	}
	h := sha256.New()
	_, _ = h.Write(t.set[:])
	_, _ = h.Write([]byte("/" + name))
	return hex.EncodeToString(h.Sum(nil))
}

// Over returns ErrExpired or ErrUnknown once the token is no longer in force, and nil before.
func (t *Token) Over() error {
	switch {
	case t.expired(time.Now()):
		return ErrExpired
	case t.life.Err() != nil:
		return ErrUnknown
	}
	return nil
}

func (t *Token) expired(now time.Time) bool { return !t.expires.IsZero() && !now.Before(t.expires) }

// Bound returns a context that ends when the token is over, too. The function must be called
// when it is no longer needed.
func (t *Token) Bound(ctx context.Context) (context.Context, context.CancelFunc) {
	var cancel context.CancelFunc
	if t.expires.IsZero() {
		ctx, cancel = context.WithCancel(ctx)
	} else {
		ctx, cancel = context.WithDeadline(ctx, t.expires)
	}
	stop := context.AfterFunc(t.life, cancel)
	return ctx, func() {
		stop()
		cancel()
	}
}
