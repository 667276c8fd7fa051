package server

import (
	"context"
	"net/http"
	"net/http/httptest"
)

// briefly is a client that goes away when the head of its answer is there.
type briefly struct {
	*httptest.ResponseRecorder
	gone context.CancelFunc
}

func withCancel(r *http.Request) (*http.Request, context.CancelFunc) {
	ctx, cancel := context.WithCancel(r.Context())
	return r.WithContext(ctx), cancel
}

// Flush implements http.Flusher.
func (b *briefly) Flush() { b.gone() }
