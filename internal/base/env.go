package base

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"sync"
	"time"

	"github.com/oklog/ulid/v2"
)

// Env is everything that protocol code takes from outside so that a simulation
// can decide it: clocks, timers, randomness and goroutine starts. The zero value is
// not usable; SystemEnv returns the real one.
//
// All functions may be called from any goroutine.
type Env struct {
	// Now is the wall clock. It may step in either direction.
	Now func() time.Time
	// Elapsed is a clock that never steps and counts the time in which the
	// machine was suspended. Only differences mean something.
	Elapsed func() time.Duration
	// AfterFunc calls f in its own goroutine after d, unless the returned
	// function is called first; that reports whether it stopped the call.
	AfterFunc func(d time.Duration, f func()) (stop func() bool)
	// Go starts a goroutine. The name says what it does, for traces.
	Go func(name string, f func())
	// Random fills p with random bytes.
	Random func(p []byte)
}

// SystemEnv returns the real clocks, cryptographic randomness and plain
// goroutines.
func SystemEnv() *Env {
	return &Env{
		Now:     time.Now,
		Elapsed: systemElapsed,
		AfterFunc: func(d time.Duration, f func()) func() bool {
			return time.AfterFunc(d, f).Stop
		},
		Go:     func(_ string, f func()) { go f() },
		Random: func(p []byte) { _, _ = rand.Read(p) }, // never fails: crypto/rand crashes instead
	}
}

// Sleep waits for d or until ctx ends, whose error it then returns.
func (e *Env) Sleep(ctx context.Context, d time.Duration) error {
	done := make(chan struct{})
	stop := e.AfterFunc(d, sync.OnceFunc(func() { close(done) }))
	defer stop()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Uint64 returns a random number.
func (e *Env) Uint64() uint64 {
	var b [8]byte
	e.Random(b[:])
	return binary.LittleEndian.Uint64(b[:])
}

// Jitter returns a random duration in [d/2, d]. For retries: many clients that failed
// together must not come back together.
func (e *Env) Jitter(d time.Duration) time.Duration {
	if d <= 1 {
		return d
	}
	half := d / 2
	return half + time.Duration(e.Uint64()%uint64(d-half+1))
}

// Backoff returns the jittered wait before retry number attempt (from 0):
// first doubled attempt times, at most limit.
func (e *Env) Backoff(first, limit time.Duration, attempt int) time.Duration {
	d := first
	for range attempt {
		if d >= limit/2 {
			d = limit
			break
		}
		d *= 2
	}
	return e.Jitter(min(d, limit))
}

// NewULID returns a new unique id.
func (e *Env) NewULID() ULID {
	var id ULID
	_ = id.SetTime(ulid.Timestamp(e.Now())) // fails after the year 10889 only
	e.Random(id[6:])
	return id
}
