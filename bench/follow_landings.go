package bench

import (
	"context"
	"sort"
	"sync"
	"time"

	"github.com/annalsdb/annals/internal/base"
	"github.com/annalsdb/annals/objstore"
	"github.com/annalsdb/annals/wal"
)

const (
	// maxLandings is how many landings are kept: at 500 WAL objects a second those of two minutes.
	maxLandings = 1 << 16
	// maxEarly is how many objects may have landed before an earlier one. The engine has fewer under way.
	maxEarly = 4096
)

// Landings notes when sequences became durable: when the store had answered the PUT of their WAL object and of all
// before it. What the engine does next, up to the follower, is what "from durable to delivered" measures. All methods
// may be called from any goroutine.
type Landings struct {
	mu sync.Mutex
	// ring has the last landings by their end, which rises, from ring[first] on around.
	ring   []landing
	first  int
	next   uint64             // every sequence below it has landed
	latest time.Time          // when
	early  map[uint64]landing // by their first sequence: those behind a gap
}

// landing says when an object landed, and where it ends; in the ring, when all of them up to there had.
type landing struct {
	end uint64
	at  time.Time
}

// Wrap returns the store of an engine whose appends are to be noted.
func (l *Landings) Wrap(inner objstore.Store) objstore.Store {
	s := landingStore{inner, l}
	if sender, ok := inner.(objstore.Sender); ok {
		return &sendingStore{s, sender}
	}
	return &s
}

type landingStore struct {
	objstore.Store
	landings *Landings
}

// Put implements objstore.Store.
func (s *landingStore) Put(ctx context.Context, name string, body []byte, opts objstore.PutOptions) (objstore.PutResult, error) {
	res, err := s.Store.Put(ctx, name, body, opts)
	if err == nil && len(body) != wal.FenceSize {
		if _, _, _, isWAL := base.ParseWALName(name); isWAL {
			o := wal.Built(body)
			s.landings.landed(o.First, o.End, time.Now())
		}
	}
	return res, err
}

// AbortUploads passes on what metered.Store asks a store that can have unfinished uploads.
func (s *landingStore) AbortUploads(ctx context.Context, before time.Time) (int, error) {
	if a, ok := s.Store.(interface {
		AbortUploads(ctx context.Context, before time.Time) (int, error)
	}); ok {
		return a.AbortUploads(ctx, before)
	}
	return 0, nil
}

// sendingStore is a landingStore whose inner store counts what it sends.
type sendingStore struct {
	landingStore
	sender objstore.Sender
}

// Sent implements objstore.Sender.
func (s *sendingStore) Sent() []objstore.SentRequests { return s.sender.Sent() }

// Start forgets everything: what follows are the sequences from next on.
func (l *Landings) Start(next uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ring, l.first, l.next, l.latest, l.early = nil, 0, next, time.Time{}, make(map[uint64]landing)
}

func (l *Landings) landed(first, end uint64, at time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.early == nil || end <= l.next {
		return // not started, or an object that was sent twice
	}
	l.early[first] = landing{end, at}
	if len(l.early) > maxEarly { // the answer to one of them was lost: all that is behind it has no time
		for f := range l.early {
			first = min(first, f)
		}
		l.next = first
	}
	for {
		w, ok := l.early[l.next]
		if !ok {
			return
		}
		delete(l.early, l.next)
		l.next = w.end
		if w.at.After(l.latest) {
			l.latest = w.at
		}
		l.keep(landing{w.end, l.latest})
	}
}

func (l *Landings) keep(landed landing) {
	if len(l.ring) < maxLandings {
		l.ring = append(l.ring, landed)
		return
	}
	l.ring[l.first] = landed
	l.first = (l.first + 1) % maxLandings
}

// At returns when a sequence became durable; false if that is not known, or no longer.
func (l *Landings) At(seq uint64) (time.Time, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := len(l.ring)
	at := func(i int) *landing { return &l.ring[(l.first+i)%n] }
	i := sort.Search(n, func(i int) bool { return at(i).end > seq })
	if i == n || i == 0 && n == maxLandings { // in the oldest one, which says only where it ends
		return time.Time{}, false
	}
	return at(i).at, true
}
