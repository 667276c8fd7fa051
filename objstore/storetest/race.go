package storetest

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/annalsdb/annals/objstore"
)

// race lets many goroutines put different bodies under one condition at the same
// time, and checks that exactly one succeeds, that its body is there, and that all
// others were refused.
func (s *suite) race(name string, opts objstore.PutOptions) objstore.PutResult {
	var (
		start   = make(chan struct{})
		mu      sync.Mutex
		winners []int
		winner  objstore.PutResult
	)
	s.races++
	// No body comes twice: where an ETag is a hash of the body, a racer that writes what is
	// there already would leave the condition true for another one.
	body := func(i int) []byte { return stamped(uint64(s.races*1000+i), 500+i%3) }
	g, ctx := errgroup.WithContext(s.ctx)
	for i := range racers {
		g.Go(func() error {
			<-start
			res, err := s.putRetried(ctx, name, body(i), opts)
			if err == nil {
				mu.Lock()
				defer mu.Unlock()
				winners, winner = append(winners, i), res
				return nil
			}
			if errors.Is(err, objstore.ErrPrecondition) {
				return nil
			}
			return err
		})
	}
	close(start)
	s.NoError(g.Wait())
	s.Len(winners, 1, "the racers that succeeded")
	s.holds(name, body(winners[0]), winner.ETag)
	return winner
}

// putRetried repeats a Put that meets another one in progress.
func (s *suite) putRetried(ctx context.Context, name string, body []byte, opts objstore.PutOptions) (objstore.PutResult, error) {
	for {
		res, err := s.store.Put(ctx, name, body, opts)
		if !errors.Is(err, objstore.ErrConflict) {
			return res, err
		}
	}
}

func (s *suite) raceIfAbsent() {
	for round := range 3 {
		s.race(fmt.Sprintf("absent/%d", round), objstore.PutOptions{IfAbsent: true})
	}
	names, _ := s.list("", "", 0)
	s.Len(names, 3)
}

func (s *suite) raceIfMatch() {
	etag := s.put("n", []byte("first")).ETag
	for range 3 {
		etag = s.race("n", objstore.PutOptions{IfMatch: etag}).ETag
	}
}

// raceCounter raises a number by compare-and-swap from several goroutines: a
// lost update, or an etag that two contents share, makes the sum wrong. The body keeps its
// size.
func (s *suite) raceCounter() {
	const workers, each = 8, 10
	s.put("counter", []byte("00000000"))
	g, ctx := errgroup.WithContext(s.ctx)
	for range workers {
		g.Go(func() error {
			for done := 0; done < each; {
				o, err := s.store.Get(ctx, "counter", objstore.GetOptions{})
				if err != nil {
					return err
				}
				n, err := strconv.Atoi(string(o.Body))
				if err != nil {
					return err
				}
				_, err = s.putRetried(ctx, "counter", fmt.Appendf(nil, "%08d", n+1), objstore.PutOptions{IfMatch: o.ETag})
				switch {
				case err == nil:
					done++
				case !errors.Is(err, objstore.ErrPrecondition):
					return err
				}
			}
			return nil
		})
	}
	s.NoError(g.Wait())
	s.holds("counter", fmt.Appendf(nil, "%08d", workers*each), "")
}

// raceReaders replaces an object again and again while others read it in every
// way: each sees a whole body, never one that is older than what it saw before,
// and each etag stands for one content.
func (s *suite) raceReaders() {
	const readers, replacements = 4, 60
	size := func(i uint64) int { return 40<<10 + int(i%3)*1000 } // neighbours differ in size, or do not
	w := &watched{store: s.store, name: "n", byETag: map[string]uint64{}}
	etag := s.put("n", stamped(0, size(0))).ETag
	g, ctx := errgroup.WithContext(s.ctx)
	stop := make(chan struct{})
	for r := range readers {
		g.Go(func() error {
			var last uint64
			for {
				select {
				case <-stop:
					return nil
				default:
				}
				id, err := w.read(ctx, r%2 == 0 || s.server)
				if err != nil {
					return err
				}
				if id < last {
					return fmt.Errorf("content %d was read after %d", id, last)
				}
				last = id
			}
		})
	}
	g.Go(func() error {
		defer close(stop)
		for i := uint64(1); i <= replacements; i++ {
			opts := objstore.PutOptions{}
			if i%2 == 0 {
				opts.IfMatch = etag
			}
			res, err := s.putRetried(ctx, "n", stamped(i/2, size(i/2)), opts) // every content twice
			if err != nil {
				return err
			}
			etag = res.ETag
			if page, err := s.store.List(ctx, "n", "", 1); err != nil || len(page.Entries) != 1 {
				return fmt.Errorf("a listing shows %d objects (error %w)", len(page.Entries), err)
			}
		}
		return nil
	})
	s.NoError(g.Wait())
}

// watched checks what readers see of one object.
type watched struct {
	store objstore.Store
	name  string

	mu     sync.Mutex
	byETag map[string]uint64 // guarded by mu; the content that each etag stood for
}

// read reads the object, whole or in two halves, and returns the id of its content.
func (w *watched) read(ctx context.Context, whole bool) (uint64, error) {
	for {
		o, err := w.store.Get(ctx, w.name, objstore.GetOptions{})
		if err != nil {
			return 0, err
		}
		if !whole {
			half := o.Size / 2
			tail, err := w.store.Get(ctx, w.name, objstore.GetOptions{Offset: half})
			if err != nil {
				return 0, err
			}
			if tail.ETag != o.ETag {
				continue // replaced between the two
			}
			o.Body = append(o.Body[:half:half], tail.Body...)
		}
		id, err := stamp(o.Body)
		if err != nil {
			return 0, err
		}
		if o.Size != int64(len(o.Body)) {
			return 0, fmt.Errorf("a body of %d bytes says that its size is %d", len(o.Body), o.Size)
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		if before, ok := w.byETag[o.ETag]; ok && before != id {
			return 0, fmt.Errorf("etag %s stands for content %d and %d", o.ETag, before, id)
		}
		w.byETag[o.ETag] = id
		return id, nil
	}
}

// raceAppear: a name that appears, by either kind of Put, appears whole.
func (s *suite) raceAppear() {
	const rounds, readers = 20, 3
	for i := range uint64(rounds) {
		name := fmt.Sprintf("appear/%d", i)
		g, ctx := errgroup.WithContext(s.ctx)
		for range readers {
			g.Go(func() error {
				for {
					o, err := s.store.Get(ctx, name, objstore.GetOptions{})
					if errors.Is(err, objstore.ErrNotFound) {
						continue
					}
					if err != nil {
						return err
					}
					if id, err := stamp(o.Body); err != nil || id != i {
						return fmt.Errorf("%s appeared with content %d (error %w)", name, id, err)
					}
					return nil
				}
			})
		}
		g.Go(func() error {
			_, err := s.store.Put(ctx, name, stamped(i, 64<<10), objstore.PutOptions{IfAbsent: i%2 == 0})
			return err
		})
		s.NoError(g.Wait())
	}
}
