package process

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/fuzz/history"
	"github.com/annalsdb/annals/objstore/s3/s3server"
)

// storePrefix is where the log is in a bucket.
const storePrefix = "log"

// Bounds of a history: what a checker holds in memory and judges in a minute or so.
const (
	maxOperations = 400_000
	maxRecords    = 2_000_000
)

// world is one run: a store, the processes on it, and what clients saw of them.
type world struct {
	t       *testing.T
	seed    uint64
	dir     string // of logs, and of the store if it is a directory; kept if the run fails
	history *history.Recorder
	s3      *s3server.Server // nil: the store is a directory
	url     string           // of the store, not through a proxy
	options options
	began   time.Time

	tormented time.Time               // from when on; set before clients start
	cancel    context.CancelCauseFunc // guarded by mu: ends what clients and nemesis do

	started    atomic.Int64
	background sync.WaitGroup // watchers of nodes
	counts     counts

	mu       sync.Mutex
	rng      *rand.Rand    // guarded by mu; of proxies
	weather  weather       // guarded by mu
	nodes    []*node       // guarded by mu: all that have not ended, and a few that just did
	change   chan struct{} // guarded by mu; closed and renewed when a node is ready or gone
	failures []error       // guarded by mu, a few
	notes    *os.File
}

// newWorld prepares a run on a directory, or an S3 server.
func newWorld(t *testing.T, seed uint64, s3 *s3server.Server) *world {
	t.Helper()
	dir, err := os.MkdirTemp("", "annals-process-run-")
	require.NoError(t, err)
	w := &world{
		t: t, seed: seed, dir: dir, s3: s3, began: time.Now(), change: make(chan struct{}), rng: rand.New(rand.NewPCG(seed, 1)),
		history: history.NewRecorder(history.Limits{Operations: maxOperations, Records: maxRecords}),
	}
	w.notes, err = os.Create(w.path("notes"))
	require.NoError(t, err)
	w.url = "file:" + w.path("store")
	if s3 != nil {
		w.url = s3.URL(storePrefix)
	}
	w.options = chooseOptions(rand.New(rand.NewPCG(seed, 2)), w.path("cache"), s3 != nil)
	w.note("seed %d, store %s, options %+v", seed, w.url, w.options)
	t.Cleanup(w.end)
	return w
}

func (w *world) path(name string) string { return filepath.Join(w.dir, name) }

// end leaves nothing running, and keeps the run's files if it failed.
func (w *world) end() {
	for _, n := range w.living() {
		n.kill()
	}
	w.background.Wait()
	_ = w.notes.Close()
	if !w.t.Failed() && os.Getenv("ANNALS_PROCESS_KEEP") == "" {
		_ = os.RemoveAll(w.dir)
		return
	}
	if w.s3 != nil && !w.s3.Given() {
		if err := os.CopyFS(w.path("store"), os.DirFS(filepath.Join(w.s3.Folder(), storePrefix))); err != nil {
			w.t.Log(err)
		}
	}
	file := w.path("history.ndjson")
	if err := w.history.History().WriteFile(file); err != nil {
		w.t.Log(err)
	}
	w.t.Logf("seed %d: logs, history, the store and what happened are kept in %s", w.seed, w.dir)
	w.t.Logf("judge the history again with: ANNALS_HISTORY=%s go test ./fuzz/history -run TestFile", file)
}

// note writes down what happened, for people.
func (w *world) note(format string, args ...any) {
	fmt.Fprintf(w.notes, "%10.3fs %s\n", time.Since(w.began).Seconds(), fmt.Sprintf(format, args...))
}

// maxFailures bounds the list of failures.
const maxFailures = 20

// failf notes that the run has failed, and ends it soon.
func (w *world) failf(format string, args ...any) {
	err := fmt.Errorf(format, args...)
	w.note("FAILED: %v", err)
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.failures) < maxFailures {
		w.failures = append(w.failures, err)
	}
	if w.cancel != nil {
		w.cancel(err)
	}
}

// failed returns what has failed so far.
func (w *world) failed() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return errors.Join(w.failures...)
}

func (w *world) newProxy(target string) (*proxy, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	p, err := newProxy(target, rand.New(rand.NewPCG(w.rng.Uint64(), 0)))
	if err == nil {
		p.setWeather(w.weather)
	}
	return p, err
}

// setWeather changes how all connections are treated.
func (w *world) setWeather(to weather) {
	w.mu.Lock()
	w.weather = to
	w.mu.Unlock()
	for _, n := range w.living() {
		for _, p := range n.proxies() {
			p.setWeather(to)
		}
	}
}

// proxies returns those around a node.
func (n *node) proxies() (all []*proxy) {
	if n.store != nil {
		all = append(all, n.store)
	}
	if closed(n.ready) {
		all = append(all, n.front.proxy)
	}
	return all
}

func (w *world) add(n *node) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.nodes = append(w.nodes, n)
	w.note("%s starts", n.name)
}

// changed tells all that wait that a node is ready, or gone.
func (w *world) changed() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.nodes = slices.DeleteFunc(w.nodes, func(n *node) bool { return !n.alive() })
	close(w.change)
	w.change = make(chan struct{})
}

// living returns all nodes that have not ended.
func (w *world) living() []*node {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(w.nodes), func(n *node) bool { return !n.alive() })
}

// those returns the living nodes of a role.
func (w *world) those(role history.Role) (nodes []*node) {
	for _, n := range w.living() {
		if n.role == role {
			nodes = append(nodes, n)
		}
	}
	return nodes
}

// current returns the newest writer that serves; nil if there is none.
func (w *world) current() *node {
	var newest *node
	for _, n := range w.those(history.Writer) {
		if n.serves() && (newest == nil || n.front.epoch > newest.front.epoch) {
			newest = n
		}
	}
	return newest
}

// await returns when a condition holds that only changes with nodes that become ready or end. Its error
// is ctx's.
func (w *world) await(ctx context.Context, holds func() bool) error {
	for {
		w.mu.Lock()
		change := w.change
		w.mu.Unlock()
		if holds() {
			return nil
		}
		select {
		case <-change:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// counts are what a run did.
type counts struct {
	acknowledged, operations, followed, inspected atomic.Int64

	mu    sync.Mutex
	blows map[string]int // guarded by mu: by kind
}

func (c *counts) blow(kind string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.blows == nil {
		c.blows = make(map[string]int)
	}
	c.blows[kind]++
}
