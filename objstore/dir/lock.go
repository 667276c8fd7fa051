//go:build linux || darwin

package dir

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"
)

// Bounds of waiting for the lock. Its holders need microseconds (a thousand
// times that when the file system is busy); one that holds it longer was stopped.
const (
	lockWait     = 30 * time.Second // after that, an error
	lockFirstTry = time.Millisecond // the first pause between two tries, doubled each time
	lockLastTry  = 25 * time.Millisecond
)

// errLocked is the error of a wait for the lock that took too long.
var errLocked = errors.New("another process holds the lock; is it stopped?")

// lock takes the directory's lock: first among the goroutines of this Store,
// which queue up, then (flock) among all Stores and processes, by trying again
// and again, because a blocking flock could not be given up. The lock of a
// process that dies is free.
func (s *Store) lock(ctx context.Context) (unlock func(), err error) {
	bounded, cancel := context.WithTimeoutCause(ctx, lockWait, errLocked)
	defer cancel()
	select {
	case s.local <- struct{}{}:
	case <-bounded.Done():
		return nil, s.lockFailed(bounded)
	}
	pause := lockFirstTry
	for {
		release, ok, err := s.fs.tryLock(s.path(lockName))
		if ok {
			return func() { release(); <-s.local }, nil
		}
		if err == nil {
			err = s.lockPause(bounded, pause)
			pause = min(2*pause, lockLastTry)
		}
		if err != nil {
			<-s.local
			return nil, err
		}
	}
}

func (s *Store) lockPause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d/2 + rand.N(d/2))
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return s.lockFailed(ctx)
	}
}

func (s *Store) lockFailed(ctx context.Context) error {
	if err := context.Cause(ctx); errors.Is(err, errLocked) {
		return fmt.Errorf("wait %s for %s: %w", lockWait, s.path(lockName), err)
	}
	return ctx.Err()
}
