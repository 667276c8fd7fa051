package process

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/client"
	"github.com/annalsdb/annals/engine"
	"github.com/annalsdb/annals/fuzz/history"
	"github.com/annalsdb/annals/objstore"
	"github.com/annalsdb/annals/objstore/dir"
	"github.com/annalsdb/annals/objstore/s3"
	"github.com/annalsdb/annals/objstore/s3/s3server"
)

// Clients of each kind. Few, and each does one thing at a time, so that a linear order is soon found.
const (
	plainAppenders = 3
	ifAppenders    = 3
	onceAppenders  = 2
	readers        = 4
	consumers      = 2
	followers      = 2 // of each of two kinds
)

func TestDirectory(t *testing.T) {
	s := readSettings(t)
	newWorld(t, s.seed, nil).run(s.time)
}

func TestS3(t *testing.T) {
	s := readSettings(t)
	newWorld(t, s.seed, s3server.Start(t)).run(s.time)
}

// run torments the log for a while, and judges it.
func (w *world) run(d time.Duration) {
	m := &nemesis{w: w, rng: rand.New(rand.NewPCG(w.seed, 3))}
	w.begin(m)
	w.torment(d, m)
	require.NoError(w.t, w.failed())
	// What has to be read in the end grows with the time.
	ctx, cancel := context.WithTimeout(w.t.Context(), 2*patience+d)
	defer cancel()
	w.heal(ctx)
	require.NoError(w.t, w.failed())
	w.readFinal(ctx)
	w.judge()
	require.NoError(w.t, w.failed())
}

// stop ends what clients and nemesis do.
func (w *world) stop(why error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cancel(why)
}

// begin starts the first processes, before the time runs.
func (w *world) begin(m *nemesis) {
	_, err := binary.build()
	require.NoError(w.t, err)
	ctx, cancel := context.WithTimeout(w.t.Context(), patience)
	defer cancel()
	require.NoError(w.t, w.keepWriting(ctx)) // others need a log that is there
	require.NoError(w.t, m.keepRunning(ctx))
	w.tormented = time.Now()
}

var errOver = errors.New("the time is over")

// torment lets all clients and the nemesis loose.
func (w *world) torment(d time.Duration, m *nemesis) {
	ctx, cancel := context.WithTimeoutCause(w.t.Context(), d, errOver)
	defer cancel()
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	w.mu.Lock()
	w.cancel = stop
	w.mu.Unlock()
	store := w.openStore()
	var all sync.WaitGroup
	each := func(n int, do func(context.Context, int)) {
		for i := range n {
			all.Go(func() { do(ctx, i) })
		}
	}
	all.Go(func() { m.run(ctx) })
	each(plainAppenders, w.appendPlain)
	each(ifAppenders, w.appendIf)
	each(onceAppenders, w.appendOnce)
	each(readers, w.read)
	each(consumers, func(ctx context.Context, i int) { w.moveCursors(ctx, i, consumers) })
	each(followers, w.followMany)
	each(followers, w.followOne)
	all.Go(func() { w.inspect(ctx, store) })
	all.Wait()
	w.note("torment ended: %v", context.Cause(ctx))
}

// heal lets everything work again, and checks that it does: a writer serves, all that were passed end, and
// replicas catch up. Then it ends them.
func (w *world) heal(ctx context.Context) {
	t := w.t
	w.setWeather(weather{})
	for _, n := range w.living() {
		for _, p := range n.proxies() {
			p.release()
		}
		require.NoError(t, n.resume())
	}
	require.NoError(t, w.await(ctx, w.settled)) // one that is opening the log may pass the others yet
	require.NoError(t, w.keepWriting(ctx))
	require.NoError(t, w.awaitPassed(ctx))
	require.NoError(t, w.keepWriting(ctx), "the newest writer ended")
	frontier := w.appendLast(ctx)
	for _, n := range w.those(history.Replica) {
		w.catchesUp(ctx, n, frontier)
	}
	for _, n := range w.living() {
		code, err := n.stop()
		require.NoError(t, err)
		require.Equal(t, exitOK, code, "%s was asked to end", n.name)
	}
}

// settled reports whether no server is opening the log.
func (w *world) settled() bool {
	return !slices.ContainsFunc(w.living(), func(n *node) bool { return n.id > 0 && n.alive() && !n.serves() })
}

// appendLast appends one record, which must work again, and returns the sequence behind it. Without it a replica
// need not reach the writer's frontier: what a crash left out of the sequence it learns of with the next record.
func (w *world) appendLast(ctx context.Context) uint64 {
	a, values := w.newActor("last", 0), 0
	for {
		n := w.current()
		require.NotNil(w.t, n, "no writer serves")
		res, answer, err := a.append(ctx, n, a.batch(plainKeys, &values)[:1], client.AppendOptions{Ack: client.AckDurable})
		require.NoError(w.t, err)
		if answer == nil {
			return res.Start + 1
		}
		require.NoError(w.t, ctx.Err(), "nothing can be appended: %v", answer)
	}
}

// maxCaughtUp is how many keys are read at a replica in the end, at most.
const maxCaughtUp = 50

// catchesUp has a replica answer with all below a frontier, and takes down what it says of some keys.
func (w *world) catchesUp(ctx context.Context, n *node, frontier uint64) {
	a := w.newActor("end", n.id)
	_, err := n.front.client.Scan(ctx, []byte("none"), client.ScanOptions{MinSequence: frontier, Timeout: patience})
	require.NoError(w.t, err, "%s does not reach %d", n.name, frontier)
	var keys []string
	for key, err := range allKeys(ctx, n) {
		require.NoError(w.t, err)
		keys = append(keys, key)
	}
	a.rng.Shuffle(len(keys), func(i, j int) { keys[i], keys[j] = keys[j], keys[i] })
	for _, key := range keys[:min(len(keys), maxCaughtUp)] {
		more := true
		for more && a.seen[key] < frontier {
			more, err = a.scan(ctx, n, key, client.ScanOptions{Start: a.seen[key], Limit: 1000})
			require.NoError(w.t, err)
		}
	}
}

// allKeys lists the keys of the whole log.
func allKeys(ctx context.Context, n *node) func(yield func(string, error) bool) {
	return func(yield func(string, error) bool) {
		o := client.KeysOptions{Limit: 1000}
		for {
			page, err := n.front.client.Keys(ctx, o)
			if err != nil {
				yield("", err)
				return
			}
			for _, key := range page.Keys {
				if !yield(string(key), nil) {
					return
				}
			}
			if page.Next == nil {
				return
			}
			o.After = page.Next
		}
	}
}

// readFinal reads everything from a fresh writer, when nobody else is alive.
func (w *world) readFinal(ctx context.Context) {
	t := w.t
	require.Empty(t, w.living())
	w.options.both = []string{"--cache-bytes", "64MiB"} // it reads everything once
	require.NoError(t, w.keepWriting(ctx))
	n := w.current()
	final := history.Final{Records: make(map[string][]history.Record), Cursors: make(map[string]map[string]uint64)}
	for key, err := range allKeys(ctx, n) {
		require.NoError(t, err)
		for v, err := range n.front.client.ScanAll(ctx, []byte(key), client.ScanOptions{Limit: 1000}) {
			require.NoError(t, err)
			final.Records[history.Text([]byte(key))] = append(final.Records[history.Text([]byte(key))],
				history.Record{Sequence: v.Sequence, Timestamp: v.Timestamp, Value: history.Text(v.Value)})
		}
	}
	for i := range consumers {
		page, err := n.front.client.Cursors(ctx, consumerName(i), client.CursorsOptions{})
		require.NoError(t, err)
		at := make(map[string]uint64)
		for _, c := range page.Cursors {
			at[history.Text(c.Key)] = c.Next
		}
		final.Cursors[consumerName(i)] = at
	}
	page, err := n.front.client.Scan(ctx, []byte("none"), client.ScanOptions{})
	require.NoError(t, err)
	final.Frontier = page.Next
	w.history.Final(final)
	code, err := n.stop()
	require.NoError(t, err)
	require.Equal(t, exitOK, code)
}

// judge checks the store, and the history.
func (w *world) judge() {
	t := w.t
	report, err := engine.Check(t.Context(), w.openStore(), engine.CheckOptions{})
	require.NoError(t, err)
	verdict := history.Check(w.history.History(), history.Options{Timeout: 5 * patience})
	w.report(report, verdict)
	require.NoError(t, report.Err())
	require.NoError(t, verdict.Err())
}

// openStore opens the run's store, to read.
func (w *world) openStore() objstore.Store {
	if w.s3 == nil {
		store, err := dir.OpenReadOnly(w.path("store"))
		require.NoError(w.t, err)
		return store
	}
	o, err := s3.ParseURL(w.url)
	require.NoError(w.t, err)
	store, err := s3.Open(w.t.Context(), o)
	require.NoError(w.t, err)
	return store
}

// report says what was done.
func (w *world) report(r *engine.CheckReport, v *history.Verdict) {
	var kinds []string
	w.counts.mu.Lock()
	for _, kind := range slices.Sorted(maps.Keys(w.counts.blows)) {
		kinds = append(kinds, fmt.Sprintf("%s %d", kind, w.counts.blows[kind]))
	}
	w.counts.mu.Unlock()
	w.t.Logf("seed %d, %.1f minutes, %d processes; %s", w.seed, time.Since(w.tormented).Minutes(), w.started.Load(), strings.Join(kinds, ", "))
	w.t.Logf("%d operations, %d records acknowledged, %d records followed; %d keys have a linear order; %d checks meanwhile",
		w.counts.operations.Load(), w.counts.acknowledged.Load(), w.counts.followed.Load(), v.Linearized, w.counts.inspected.Load())
	w.t.Logf("the log: manifest version %d, epoch %d, %d groups, %d segments, %d runs, %d tables, %d records; objects: %d orphans, %d uncommitted, %d waiting to be deleted, %d foreign",
		r.ManifestVersion, r.Epoch, r.Groups, r.Segments, r.Runs, r.Tables, r.TableRecords, r.Orphans.Objects, r.Uncommitted.Objects, r.Waiting.Objects, r.Foreign.Objects)
}
