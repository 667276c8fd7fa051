package server

import (
	"context"
	"errors"
	"net/http"
	"strings"

	"github.com/annalsdb/annals/auth"
	"github.com/annalsdb/annals/engine"
)

// A scope is what a token must allow for a route to answer its bearer. Where the server has
// no tokens every route is open.
type scope int

const (
	scopeUnset  scope = iota // of a route that does not say: New refuses it
	scopeOpen                // for everybody, without a token
	scopeRead                // what reads the log, and cursors
	scopeAppend              // what appends
	scopeAdmin               // what tells about the process; it does not imply the others
)

// ofTokens are the scopes as tokens have them.
var ofTokens = map[scope]auth.Scope{scopeRead: auth.Read, scopeAppend: auth.Append, scopeAdmin: auth.Admin}

// A denial is why a request was refused, as the metric names it.
type denial string

const (
	refusedMissing   denial = "missing"   // no token
	refusedMalformed denial = "malformed" // not one token in the form Bearer TOKEN
	refusedUnknown   denial = "unknown"   // a token that is not, or no longer, in the file
	refusedExpired   denial = "expired"
	refusedScope     denial = "scope"  // the token's scopes do not allow it
	refusedKeys      denial = "keys"   // the token's prefixes do not
	refusedOrigin    denial = "origin" // another site's page sent it, from somebody's browser
)

var denials = []denial{refusedMissing, refusedMalformed, refusedUnknown, refusedExpired, refusedScope, refusedKeys, refusedOrigin}

// unauthorized is a 401.
func unauthorized(why denial, message string) error {
	return &apiError{status: http.StatusUnauthorized, message: message, refused: why}
}

// forbidden is a 403.
func forbidden(why denial, message string) error {
	return &apiError{status: http.StatusForbidden, message: message, refused: why}
}

// authorize finds the token of a request and decides whether the route may answer it. Which
// keys the request is about is for the handler to look at: with covers and within.
func (s *Server) authorize(x *exchange, rt *route) error {
	if s.origins.Check(x.r) != nil {
		return forbidden(refusedOrigin, "a page of another site asked for this, which is refused")
	}
	if s.opts.Tokens == nil || rt.scope == scopeOpen {
		return nil
	}
	secret, err := bearer(x.r.Header)
	if err != nil {
		return err
	}
	token, err := s.opts.Tokens.Lookup(secret)
	if token == nil && auth.WellFormed(secret) { // else it may be a password, of which a hash tells too much
		x.unknown = auth.HashOf(secret).Short()
	}
	x.token = token
	if err != nil {
		return notInForce(err)
	}
	want := ofTokens[rt.scope]
	switch {
	case !token.Allows(want):
		return forbidden(refusedScope, "the token does not have the scope "+want.String())
	case rt.allKeys && token.Limited():
		return forbidden(refusedKeys, "this tells about all keys, and the token is limited to some")
	}
	return nil
}

// mayKnow reports whether whoever asks, perhaps without a token, may know what names buckets, objects and
// keys.
func (s *Server) mayKnow(x *exchange) bool {
	if s.opts.Tokens == nil {
		return true
	}
	secret, err := bearer(x.r.Header)
	if err != nil {
		return false
	}
	token, err := s.opts.Tokens.Lookup(secret)
	return err == nil && !token.Limited()
}

// bearer returns the token that a request has.
func bearer(h http.Header) (string, error) {
	values := h["Authorization"]
	switch len(values) {
	case 0:
		return "", unauthorized(refusedMissing, "a token is required: send the header Authorization: Bearer TOKEN")
	case 1:
		scheme, secret, ok := strings.Cut(values[0], " ")
		if secret = strings.TrimLeft(secret, " "); ok && secret != "" && strings.EqualFold(scheme, "Bearer") {
			return secret, nil
		}
	}
	return "", unauthorized(refusedMalformed, "the header must be one, of the form Authorization: Bearer TOKEN")
}

// notInForce is the answer for a token that is not taken.
func notInForce(err error) error {
	if errors.Is(err, auth.ErrExpired) {
		return unauthorized(refusedExpired, err.Error())
	}
	return unauthorized(refusedUnknown, err.Error())
}

// limited reports whether the request's token is for some keys only.
func (x *exchange) limited() bool { return x.token != nil && x.token.Limited() }

// covers returns the denial of a key that the token is not for, or nil.
func (x *exchange) covers(key []byte) error {
	if x.token == nil || x.token.Covers(key) {
		return nil
	}
	return forbidden(refusedKeys, "the token does not cover the key")
}

// within returns the prefixes, disjoint and in byte order, of those keys with a prefix that the
// token is for; or the denial, where there can be none.
func (x *exchange) within(prefix []byte) ([][]byte, error) {
	if x.token == nil {
		return [][]byte{prefix}, nil
	}
	list := x.token.Within(prefix)
	if len(list) == 0 {
		return nil, forbidden(refusedKeys, "the token covers no key with this prefix")
	}
	return list, nil
}

// over returns the denial of a token that was in force when the request began, and is no longer.
func (x *exchange) over() error {
	if x.token == nil {
		return nil
	}
	if err := x.token.Over(); err != nil {
		return notInForce(err)
	}
	return nil
}

// whileWaiting returns a context for the wait of a request: it ends when the client is gone, the server shuts
// down or the token is over, too.
func (x *exchange) whileWaiting(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	free := func() {}
	if x.token != nil {
		ctx, free = x.token.Bound(ctx)
	}
	stop := context.AfterFunc(x.s.draining, cancel)
	return ctx, func() {
		stop()
		free()
		cancel()
	}
}

// answerOf decides how an error is answered. Whose token is limited is not told what may name the keys of
// others: a damaged table, the range of a replica.
func (x *exchange) answerOf(err error) *apiError {
	e := answerOf(err)
	var ours *apiError
	if !x.limited() || errors.As(err, &ours) {
		return e
	}
	switch {
	case e.status == http.StatusMisdirectedRequest:
		e.message = engine.ErrOutOfRange.Error()
	case e.status >= http.StatusInternalServerError:
		e.message = http.StatusText(e.status) + "; the server's log says why"
	}
	return e
}
