package fuzz

import (
	"context"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/annalsdb/annals/compaction"
	"github.com/annalsdb/annals/engine"
	"github.com/annalsdb/annals/internal/base"
)

// Operations of the machine that make segments age, and what must hold of it.

// env is the environment of a process of the history.
func (m *machine) env() *base.Env {
	env := simEnv()
	env.Random = m.random
	return env
}

// unchanged repeats look until a state is the same before and after it.
func (m *machine) unchanged(t *rapid.T, state func() uint64, look func()) {
	for range 1000 {
		synctest.Wait()
		before := state()
		look()
		synctest.Wait()
		if state() == before {
			return
		}
	}
	require.Fail(t, "the log never comes to rest")
}

// version counts the changes of segments, in MANIFEST and those on their way to it.
func (m *machine) version() uint64 {
	s := m.db.Status()
	return s.ManifestVersion + s.Seals
}

// dropped takes what retention dropped out of the model. It must have been due.
func (m *machine) dropped(t *rapid.T) {
	first := m.db.FirstSequence()
	require.GreaterOrEqual(t, first, m.model.first, "what was dropped came back")
	if first > m.model.first {
		start := m.model.first // of the last segment that was dropped, or of one before it
		for _, s := range m.windows {
			if s.Start < first {
				start = max(start, s.Start)
			}
		}
		var size uint64
		for _, rec := range m.model.from(start) {
			size += uint64(len(rec.key) + len(rec.value))
		}
		for _, rec := range m.model.drop(first) {
			age := time.Since(rec.at)
			require.True(t, dropIsDue(m.o, age, size) || dropIsDue(m.last, age, size),
				"record %d of %v ago was dropped; the log has %d bytes from %d on", rec.seq, age, size, start)
		}
	}
	page, err := m.db.Segments(context.Background(), engine.SegmentsOptions{})
	require.NoError(t, err)
	m.windows = page.Segments
}

// dropIsDue reports whether a record of an age may be dropped together with a segment that,
// with all behind it, has a size.
func dropIsDue(o engine.Options, age time.Duration, size uint64) bool {
	return o.Retention > 0 && age >= o.Retention || o.RetentionBytes > 0 && size > uint64(o.RetentionBytes)
}

// collect runs a round of the collector. A fault of the store may stop it.
func (m *machine) collect(t *rapid.T) {
	ctx, cancel := m.patient()
	defer cancel()
	if _, err := m.db.CollectGarbage(ctx); err != nil && !m.weather.hit() {
		m.allowed(t, err)
	}
}

// elsewhere is a process that does nothing but compact.
type elsewhere struct {
	cancel context.CancelFunc
	done   chan error
}

// stop ends it, if there is one.
func (e *elsewhere) stop() {
	if e != nil {
		e.cancel()
		<-e.done
	}
}

// compactor starts a compactor elsewhere, or ends it.
func (m *machine) compactor(*rapid.T) {
	if m.elsewhere != nil {
		m.elsewhere.stop()
		m.elsewhere = nil
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	e := &elsewhere{cancel, make(chan error, 1)}
	o := engine.CompactOptions{
		SegmentBytes: m.o.SegmentBytes, TableBytes: m.o.TableBytes, BlockBytes: m.o.BlockBytes, Retention: m.o.Retention, Env: m.env(),
	}
	store := m.rig.store
	go func() { e.done <- engine.Compact(ctx, store, o) }()
	m.elsewhere = e
}

// settle lets time pass on a store that works, until nothing is left to be done: then
// no job is planned, nothing is kept for too long, and the bucket holds nothing but the
// log. The log was just opened.
func (m *machine) settle(t *rapid.T) {
	m.weather.calm()
	m.elsewhere.stop()
	m.elsewhere = nil
	limits := limitsOf(m.o)
	if m.o.DisableCompaction {
		m.compactor(t)
		limits.FanIn = 0
	}
	time.Sleep(takesOver) // what the compactors before have left can be swept then
	for n := 0; len(compaction.Plan(m.db.Head(), limits)) > 0; n++ {
		require.Less(t, n, 200, "compaction does not end: %v", compaction.Plan(m.db.Head(), limits))
		time.Sleep(2 * time.Second)
		m.dropped(t)
	}
	m.collected(t)
	began := time.Now()
	if m.o.GCGrace > 0 {
		time.Sleep(m.o.GCGrace)
	} else {
		time.Sleep(engine.DefaultGCGrace)
	}
	m.collected(t)
	for _, o := range m.db.Head().GetObsolete() {
		require.True(t, o.GetSinceMs() == 0 || o.GetSinceMs() > began.UnixMilli(), "obsolete for longer than the grace: %v", o)
	}
	m.dropped(t)
	if m.o.Retention > 0 {
		for _, s := range m.windows {
			require.True(t, !s.Sealed || time.Since(s.SealedAt) <= m.o.Retention+2*engine.DefaultRetentionInterval, "kept for too long: %+v", s)
		}
	}
	m.readAll(t)
	m.check(t)
}

// collected requires that the collector works and leaves nothing but the log.
func (m *machine) collected(t *rapid.T) {
	_, err := m.db.CollectGarbage(context.Background())
	require.NoError(t, err)
	names, err := m.rig.witness.unnamed()
	require.NoError(t, err)
	require.Empty(t, withoutProbes(names), "no part of the log")
	require.NoError(t, m.rig.witness.err())
}
