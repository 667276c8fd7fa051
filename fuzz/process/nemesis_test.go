package process

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/annalsdb/annals/fuzz/history"
)

// nemesis breaks things, one after the other, in an order that its seed decides.
type nemesis struct {
	w         *world
	rng       *rand.Rand
	compactor *node
}

// standstill is the longest that something stands still.
const standstill = 1500 * time.Millisecond

// A blow is one way to break something.
type blow struct {
	kind   string
	weight int
	s3     bool // only on an S3 server that is ours
	strike func(*nemesis, context.Context) error
}

var blows = []blow{
	{kind: "writer killed", weight: 5, strike: (*nemesis).killWriter},
	{kind: "writer restarted", weight: 2, strike: (*nemesis).restartWriter},
	{kind: "writer passed", weight: 3, strike: (*nemesis).passWriter},
	{kind: "two writers at once", weight: 1, strike: (*nemesis).duel},
	{kind: "zombie", weight: 4, strike: (*nemesis).zombie},
	{kind: "writer paused", weight: 2, strike: (*nemesis).pauseWriter},
	{kind: "replica killed", weight: 2, strike: (*nemesis).killReplica},
	{kind: "replica paused", weight: 1, strike: (*nemesis).pauseReplica},
	{kind: "compactor restarted", weight: 1, strike: (*nemesis).restartCompactor},
	{kind: "compactor killed", weight: 1, strike: (*nemesis).killCompactor},
	{kind: "S3 server killed", weight: 4, s3: true, strike: (*nemesis).killS3},
	{kind: "S3 server paused", weight: 2, s3: true, strike: (*nemesis).pauseS3},
	{kind: "connections cut", weight: 4, strike: (*nemesis).cut},
	{kind: "connections held", weight: 4, strike: (*nemesis).hold},
	{kind: "weather", weight: 3, strike: (*nemesis).changeWeather},
}

// run strikes until ctx ends.
func (m *nemesis) run(ctx context.Context) {
	for ctx.Err() == nil {
		m.w.markPassed()
		err := m.rest(ctx, 50*time.Millisecond, 400*time.Millisecond)
		if err == nil {
			err = m.keepRunning(ctx)
		}
		if err == nil {
			err = m.strike(ctx)
		}
		if err != nil && ctx.Err() == nil {
			m.w.failf("nemesis: %w", err)
			return
		}
	}
}

// rest waits for a while.
func (m *nemesis) rest(ctx context.Context, least, most time.Duration) error {
	t := time.NewTimer(least + time.Duration(m.rng.Int64N(int64(most-least))))
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// errNobody says that a blow hit nobody: it does not count.
var errNobody = errors.New("nobody is there")

// strike does one thing.
func (m *nemesis) strike(ctx context.Context) error {
	ours := m.w.s3 != nil && !m.w.s3.Given()
	var all []blow
	total := 0
	for _, b := range blows {
		if ours || !b.s3 {
			all = append(all, b)
			total += b.weight
		}
	}
	n := m.rng.IntN(total)
	for _, b := range all {
		if n -= b.weight; n < 0 {
			m.w.note("nemesis: %s", b.kind)
			err := b.strike(m, ctx)
			if errors.Is(err, errNobody) {
				return nil
			}
			m.w.counts.blow(b.kind)
			return err
		}
	}
	panic("unreachable")
}

// keepRunning is the supervisor: it starts what has ended, and waits for a writer that serves.
func (m *nemesis) keepRunning(ctx context.Context) error {
	for len(m.w.those(history.Replica)) < m.w.options.replicas {
		if _, err := m.w.startServer(history.Replica); err != nil {
			return err
		}
	}
	if m.w.options.compactorBeside && (m.compactor == nil || !m.compactor.alive()) {
		var err error
		if m.compactor, err = m.w.startCompactor(); err != nil {
			return err
		}
	}
	return m.w.keepWriting(ctx)
}

// keepWriting starts a writer whenever none is alive, until one serves.
func (w *world) keepWriting(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, errors.New("no writer serves in time"))
	defer cancel()
	for w.current() == nil {
		if len(w.those(history.Writer)) == 0 {
			if _, err := w.startServer(history.Writer); err != nil {
				return err
			}
		}
		if err := w.await(ctx, func() bool { return w.current() != nil || len(w.those(history.Writer)) == 0 }); err != nil {
			return err
		}
	}
	return nil
}

func (m *nemesis) killWriter(ctx context.Context) error {
	n := m.w.current()
	if n == nil {
		return errNobody
	}
	n.kill()
	return m.keepRunning(ctx)
}

// restartWriter ends the writer as a supervisor does. What it acknowledges meanwhile counts.
func (m *nemesis) restartWriter(ctx context.Context) error {
	n := m.w.current()
	if n == nil {
		return errNobody
	}
	code, err := n.stop()
	if err != nil {
		return err
	}
	m.w.note("%s was stopped, with status %d", n.name, code)
	return m.keepRunning(ctx)
}

// take starts writers, and returns when each serves or has ended. All others, and all of them but
// one, have been passed then.
func (m *nemesis) take(ctx context.Context, many int) error {
	var rivals []*node
	for range many {
		n, err := m.w.startServer(history.Writer)
		if err != nil {
			return err
		}
		rivals = append(rivals, n)
	}
	return m.w.await(ctx, func() bool {
		for _, n := range rivals {
			if n.alive() && !n.serves() {
				return false
			}
		}
		return true
	})
}

// markPassed marks the writers that a newer one has passed: they have to find out, and end.
func (w *world) markPassed() {
	newest := w.current()
	if newest == nil {
		return
	}
	for _, n := range w.those(history.Writer) {
		if n.serves() && n.front.epoch < newest.front.epoch && !n.passed.Swap(true) {
			w.note("%s passed %s", newest.name, n.name)
		}
	}
}

// awaitPassed returns when all writers that were passed have ended.
func (w *world) awaitPassed(ctx context.Context) error {
	w.markPassed()
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for _, n := range w.those(history.Writer) {
		if !n.passed.Load() {
			continue
		}
		if err := w.await(ctx, func() bool { return !n.alive() }); err != nil {
			return fmt.Errorf("%s was passed by another writer, and has not ended: %w", n.name, err)
		}
	}
	return nil
}

func (m *nemesis) passWriter(ctx context.Context) error {
	return m.take(ctx, 1)
}

// duel lets two writers open the log at the same time, a third may serve it (F7).
func (m *nemesis) duel(ctx context.Context) error {
	return m.take(ctx, 2)
}

// zombie lets a writer sleep while another takes the log, and then go on where it was (F5).
func (m *nemesis) zombie(ctx context.Context) error {
	n := m.w.current()
	if n == nil {
		return errNobody
	}
	if err := n.pause(); err != nil {
		return err
	}
	// One that sleeps with the lock of a directory keeps all others out: not for ever.
	awake, cancel := context.WithTimeout(ctx, 3*time.Second)
	err := m.take(awake, 1)
	cancel()
	if err == nil {
		_ = m.rest(ctx, time.Millisecond, 1500*time.Millisecond)
	}
	if err := n.resume(); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return m.keepRunning(ctx)
}

// pauseFor lets a node stand still for a while.
func (m *nemesis) pauseFor(ctx context.Context, n *node) error {
	if n == nil {
		return errNobody
	}
	if err := n.pause(); err != nil {
		return err
	}
	_ = m.rest(ctx, 50*time.Millisecond, standstill)
	return n.resume()
}

func (m *nemesis) pauseWriter(ctx context.Context) error { return m.pauseFor(ctx, m.w.current()) }

func (m *nemesis) replica() *node {
	all := m.w.those(history.Replica)
	if len(all) == 0 {
		return nil
	}
	return all[m.rng.IntN(len(all))]
}

func (m *nemesis) pauseReplica(ctx context.Context) error { return m.pauseFor(ctx, m.replica()) }

func (m *nemesis) killReplica(context.Context) error {
	n := m.replica()
	if n == nil {
		return errNobody
	}
	n.kill()
	return nil // the next round starts another one
}

// compactorLives is how long a compactor is left alive at least. When it is killed others take a minute to believe
// it, in which nothing is compacted.
const compactorLives = 20 * time.Second

func (m *nemesis) killCompactor(context.Context) error {
	if m.compactor == nil || !m.compactor.alive() || time.Since(m.compactor.began) < compactorLives {
		return errNobody
	}
	m.compactor.kill()
	return nil
}

func (m *nemesis) restartCompactor(context.Context) error {
	if m.compactor == nil || !m.compactor.alive() {
		return errNobody
	}
	_, err := m.compactor.stop()
	return err
}

func (m *nemesis) killS3(ctx context.Context) error {
	m.w.s3.Kill()
	_ = m.rest(ctx, time.Millisecond, time.Second)
	return m.w.s3.Restart()
}

func (m *nemesis) pauseS3(ctx context.Context) error {
	if err := m.w.s3.Process().Pause(); err != nil {
		return err
	}
	_ = m.rest(ctx, 50*time.Millisecond, standstill)
	return m.w.s3.Process().Resume()
}

// proxy returns one around some node, or nil.
func (m *nemesis) proxy() *proxy {
	var all []*proxy
	for _, n := range m.w.living() {
		all = append(all, n.proxies()...)
	}
	if len(all) == 0 {
		return nil
	}
	return all[m.rng.IntN(len(all))]
}

func (m *nemesis) cut(context.Context) error {
	p := m.proxy()
	if p == nil {
		return errNobody
	}
	p.cut()
	return nil
}

func (m *nemesis) hold(ctx context.Context) error {
	p := m.proxy()
	if p == nil {
		return errNobody
	}
	p.hold()
	_ = m.rest(ctx, 50*time.Millisecond, standstill)
	p.release()
	return nil
}

func (m *nemesis) changeWeather(context.Context) error {
	m.w.setWeather(weather{
		cutOneIn: pick(m.rng, 0, 2, 10),
		late:     pick(m.rng, 0, 0, 2*time.Millisecond, 20*time.Millisecond),
	})
	return nil
}
