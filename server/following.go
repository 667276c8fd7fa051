package server

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// A followKind is a kind of request that waits for records.
type followKind int

const (
	polls   followKind = iota // long polls of GET /scan
	events                    // event streams of GET /scan
	follows                   // POST /follow
	numFollowKinds
)

var followKindNames = [numFollowKinds]string{polls: "poll", events: "events", follows: "follow"}

// Time limits of streams: answers without end.
const (
	// keepAlive is how long a stream is silent at most: it says where to go on, which
	// also shows whether its client is still there.
	keepAlive = 15 * time.Second
	// tendInterval is how often streams are looked at.
	tendInterval = time.Second
	// tendPiece is how many streams are looked at before others may come or go.
	tendPiece = 1024
)

// totalStreams is how many times the streams of one POST /follow all of them together
// may have.
const totalStreams = 4

// following bounds the requests that wait for records (invariant I9), and tends those
// that have no end: one goroutine, which runs while there are any, wakes those that were
// silent for too long and cuts those off whose clients do not take what is sent. A
// stream has no timer. Safe for concurrent use.
type following struct {
	maxFollowers, maxStreams int64

	followers [numFollowKinds]atomic.Int64 // now, by kind
	all       atomic.Int64                 // of all kinds
	streams   atomic.Int64                 // keys and prefixes of POST /follow
	refused   prometheus.Counter

	// As the constants say, but for tests.
	keepAlive, interval time.Duration

	began time.Time

	mu      sync.Mutex
	open    []*stream // each knows its index
	tended  bool      // the goroutine runs
	drained bool      // none is added any more
}

// enter counts one more follower, unless there are too many.
func (g *following) enter(k followKind) error {
	if g.all.Add(1) > g.maxFollowers {
		g.all.Add(-1)
		g.refused.Inc()
		return overloaded("%d requests wait for records already", g.maxFollowers)
	}
	g.followers[k].Add(1)
	return nil
}

func (g *following) leave(k followKind) {
	g.followers[k].Add(-1)
	g.all.Add(-1)
}

// takeStreams counts n more keys and prefixes of POST /follow, unless they are too many.
func (g *following) takeStreams(n int) error {
	if now := g.streams.Add(int64(n)); now > totalStreams*g.maxStreams {
		g.streams.Add(int64(-n))
		g.refused.Inc()
		return overloaded("%d keys and prefixes are followed already, and %d more are too many", now-int64(n), n)
	}
	return nil
}

func (g *following) giveStreams(n int) { g.streams.Add(int64(-n)) }

// now is the time on the clock of streams. It is never 0.
func (g *following) now() time.Duration { return time.Since(g.began) + 1 }

// add lets a stream be tended, unless the server shuts down.
func (g *following) add(st *stream) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.drained {
		return false
	}
	st.place = len(g.open)
	g.open = append(g.open, st)
	if !g.tended {
		g.tended = true
		go g.tend()
	}
	return true
}

func (g *following) remove(st *stream) {
	g.mu.Lock()
	defer g.mu.Unlock()
	last := len(g.open) - 1
	g.open[st.place] = g.open[last]
	g.open[st.place].place = st.place
	g.open[last] = nil
	g.open = g.open[:last]
	if last == 0 {
		g.open = nil
	}
}

// tend looks after the streams until there are none.
func (g *following) tend() {
	ticker := time.NewTicker(g.interval)
	defer ticker.Stop()
	for range ticker.C {
		if !g.look() {
			return
		}
	}
}

// look looks at every stream once. A stream that takes another's place meanwhile may be
// left out until the next time. It returns false, and is then not to be called again,
// when there are none.
func (g *following) look() bool {
	now := g.now()
	var due []*stream
	for from := 0; ; from += tendPiece {
		g.mu.Lock()
		if len(g.open) == 0 {
			g.tended = false
			g.mu.Unlock()
			return false
		}
		if from >= len(g.open) {
			g.mu.Unlock()
			return true
		}
		due = due[:0]
		for _, st := range g.open[from:min(from+tendPiece, len(g.open))] {
			if st.due(now) {
				due = append(due, st)
			}
		}
		g.mu.Unlock()
		for _, st := range due {
			st.tend(now)
		}
	}
}

// shutDown makes all streams end, and no more begin.
func (g *following) shutDown() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.drained = true
	for _, st := range g.open {
		st.follower.Wake()
	}
}
