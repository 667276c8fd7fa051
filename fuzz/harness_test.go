package fuzz

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/engine"
	"github.com/annalsdb/annals/internal/base"
	"github.com/annalsdb/annals/objstore"
	"github.com/annalsdb/annals/objstore/fault"
	"github.com/annalsdb/annals/objstore/mem"
)

// TestMain lets garbage grow: the sweeps make thousands of small worlds.
func TestMain(m *testing.M) {
	debug.SetGCPercent(400)
	os.Exit(m.Run())
}

// failure runs a test on simulated time: retries and timeouts cost nothing, and
// synctest.Wait waits until every goroutine is idle.
func failure(t *testing.T, name string, f func(t *testing.T)) {
	t.Run(name, func(t *testing.T) { synctest.Test(t, f) })
}

// simEnv is the environment of a test on simulated time.
func simEnv() *base.Env {
	env := base.SystemEnv()
	start := time.Now()
	env.Elapsed = func() time.Duration { return time.Hour + time.Since(start) }
	return env
}

func options() engine.Options {
	return engine.Options{FlushInterval: time.Millisecond, DisableCompaction: true, Env: simEnv()}
}

// tinyOptions rotate, flush and seal every few batches.
func tinyOptions() engine.Options {
	o := options()
	o.WALObjectBytes = 512
	o.MemtableBytes = 24 << 10
	o.RecentBytes = 1
	o.TableBytes = 2 << 10
	o.BlockBytes = 256
	o.CacheBytes = 1
	o.SegmentBytes = 6 << 10
	o.SegmentMinBytes = 1 << 10
	return o
}

// rig is a store whose operations a test can break, and what was really applied.
type rig struct {
	t       *testing.T
	mem     *mem.Store
	witness *witness // above mem, beneath the faults
	store   *fault.Store

	mu    sync.Mutex
	rules []fault.Hook
}

func newRig(t *testing.T) *rig {
	return rigOn(t, mem.New(mem.Options{}))
}

func rigOn(t *testing.T, store *mem.Store) *rig {
	r := &rig{t: t, mem: store, witness: newWitness(store)}
	r.store = fault.New(r.witness, r.hook)
	return r
}

// hook asks the rules in the order in which they were added; the first that has
// a plan wins.
func (r *rig) hook(ctx context.Context, op fault.Op) fault.Plan {
	r.mu.Lock()
	rules := slices.Clone(r.rules)
	r.mu.Unlock()
	for _, rule := range rules {
		if p := rule(ctx, op); !isZero(p) {
			return p
		}
	}
	return fault.Plan{}
}

func isZero(p fault.Plan) bool {
	return p.Before == nil && p.After == nil && p.Mangle == nil && p.Held == nil && !p.IgnoreConditions
}

// rule adds a rule and returns a function that removes all rules.
func (r *rig) rule(hook fault.Hook) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.rules = append(r.rules, hook)
}

func (r *rig) heal() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.rules = nil
}

// putOf matches PUTs of one name.
func putOf(name string) func(fault.Op) bool {
	return func(op fault.Op) bool { return op.Kind == fault.Put && op.Name == name }
}

// once applies a plan to the first operation that matches.
func once(match func(fault.Op) bool, plan fault.Plan) fault.Hook {
	var mu sync.Mutex
	used := false
	return func(_ context.Context, op fault.Op) fault.Plan {
		mu.Lock()
		defer mu.Unlock()
		if used || !match(op) {
			return fault.Plan{}
		}
		used = true
		return plan
	}
}

// hold keeps the first operation that matches under way until it is applied.
func (r *rig) hold(match func(fault.Op) bool, answer error) *fault.Held {
	h := fault.NewHeld(answer)
	r.rule(once(match, fault.Plan{Held: h}))
	return h
}

// open opens the log; it is closed and checked when the test ends.
func (r *rig) open(o engine.Options) *engine.DB {
	r.t.Helper()
	db, err := engine.Open(r.t.Context(), r.store, o)
	require.NoError(r.t, err)
	r.witness.setStale(o.StaleAfter)
	r.t.Cleanup(func() {
		kill(db)
		check(r.t, r.mem)
		require.NoError(r.t, r.witness.err())
	})
	return db
}

// kill ends a DB without letting it finish anything.
func kill(db *engine.DB) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_ = db.Close(ctx) // its error is that nothing was finished
}

// crashed is what a machine that takes over finds: the store as it is now. Whatever
// the old process does later does not reach it.
func (r *rig) crashed() *rig {
	return rigOn(r.t, r.mem.Clone())
}

func check(t *testing.T, store objstore.Store) *engine.CheckReport {
	t.Helper()
	report, err := engine.Check(context.Background(), store, engine.CheckOptions{Env: base.SystemEnv()})
	require.NoError(t, err)
	require.NoError(t, report.Err())
	return report
}

func wal(epoch, id uint64) string { return base.WALName(0, epoch, id) }

var manifestName = base.ManifestName(0)

func batch(values ...string) []engine.Record {
	var recs []engine.Record
	for _, v := range values {
		recs = append(recs, engine.Record{Key: []byte("k"), Value: []byte(v)})
	}
	return recs
}

func mustAppend(t *testing.T, db *engine.DB, values ...string) engine.AppendResult {
	t.Helper()
	res, err := db.Append(t.Context(), batch(values...), engine.AppendOptions{})
	require.NoError(t, err)
	return res
}

// pendingAppend is an append under way.
type pendingAppend struct {
	done chan struct{}
	res  engine.AppendResult
	err  error
}

func start(ctx context.Context, db *engine.DB, values ...string) *pendingAppend {
	p := &pendingAppend{done: make(chan struct{})}
	go func() {
		defer close(p.done)
		p.res, p.err = db.Append(ctx, batch(values...), engine.AppendOptions{})
	}()
	return p
}

func (p *pendingAppend) pending() bool {
	synctest.Wait()
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

func (p *pendingAppend) wait() error {
	<-p.done
	return p.err
}

// outcome returns the outcome of a failed append.
func outcome(t require.TestingT, err error) engine.Outcome {
	var failed *engine.AppendError
	require.ErrorAs(t, err, &failed)
	return failed.Outcome
}

// read returns all values of key k.
func read(t *testing.T, db engine.LogReader) []string {
	t.Helper()
	values, err := tryRead(db)
	require.NoError(t, err)
	return values
}

func tryRead(db engine.LogReader) ([]string, error) {
	it := db.Scan(context.Background(), []byte("k"), engine.All(), engine.ScanOptions{})
	values := []string{}
	for rec := range it.All() {
		values = append(values, string(rec.Value))
	}
	return values, it.Err()
}

var errNetwork = errors.New("connection reset")

func numbered(prefix string, n int) []string {
	var out []string
	for i := range n {
		out = append(out, fmt.Sprint(prefix, i))
	}
	return out
}
