package fuzz

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/annalsdb/annals/engine"
	"github.com/annalsdb/annals/state"
)

// Operations of the machine on cursors and producers, and appends that expect something.

var (
	modelConsumers = []string{"c", "d", "worker 1"}
	modelProducers = []string{"", "", "p", "q"}
	cursorKeys     = []string{"", "a", "b", strings.Repeat("p", 32)}
)

func drawCursorKeys(t *rapid.T, least int) (keys [][]byte) {
	for _, k := range rapid.SliceOfN(rapid.SampledFrom(cursorKeys), least, 4).Draw(t, "keys") {
		keys = append(keys, []byte(k))
	}
	return keys
}

// settledState judges the error of a call that changes cursors, and reports whether it changed them.
func (m *machine) settledState(t *rapid.T, err error) bool {
	switch {
	case err == nil:
		return true
	default:
		m.allowed(t, err)
		return !errors.Is(err, engine.ErrOverloaded)
	}
}

func (m *machine) setCursors(t *rapid.T) {
	consumer := rapid.SampledFrom(modelConsumers).Draw(t, "consumer")
	force := rapid.Bool().Draw(t, "force")
	var cursors []engine.Cursor
	for _, key := range drawCursorKeys(t, 0) {
		cursors = append(cursors, engine.Cursor{Key: key, Next: rapid.Uint64Range(0, 9).Draw(t, "next")})
	}
	ctx, cancel := m.patient()
	defer cancel()
	got, err := m.db.SetCursors(ctx, consumer, cursors, engine.CursorOptions{Force: force})
	want := m.ledger.now.clone().set(consumer, cursors, force)
	if err == nil {
		require.Equal(t, len(want), len(got))
		for i := range want {
			require.Equal(t, want[i], got[i])
		}
	}
	if m.settledState(t, err) {
		m.ledger.change(err == nil, func(s *smallModel) { s.set(consumer, cursors, force) })
	}
}

func (m *machine) deleteCursors(t *rapid.T) {
	consumer := rapid.SampledFrom(modelConsumers).Draw(t, "consumer")
	keys := drawCursorKeys(t, 0)
	ctx, cancel := m.patient()
	defer cancel()
	err := m.db.DeleteCursors(ctx, consumer, keys...)
	if m.settledState(t, err) {
		m.ledger.change(err == nil, func(s *smallModel) { s.remove(consumer, keys) })
	}
}

// readCursors reads what was assigned; it waits until that is durable.
func (m *machine) readCursors(t *rapid.T) {
	ctx, cancel := m.patient()
	defer cancel()
	consumer := rapid.SampledFrom(modelConsumers).Draw(t, "consumer")
	keys := drawCursorKeys(t, 1)
	page, err := m.db.Cursors(ctx, consumer, engine.CursorsOptions{Keys: keys})
	if !m.allowed(t, err) {
		return
	}
	var want []engine.Cursor
	for _, key := range keys {
		if next, ok := m.ledger.now.cursors[consumer][string(key)]; ok {
			want = append(want, engine.Cursor{Key: key, Next: next})
		}
	}
	require.Equal(t, want, page.Cursors)
	if m.o.ReadVisibility != engine.Memory {
		m.ledger.stateDurable()
	}
}

// dump reads all cursors, by pages of one.
func (m *machine) dump(t *rapid.T) map[string]map[string]uint64 {
	all := map[string]map[string]uint64{}
	ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
	defer cancel()
	for after, more := "", true; more; {
		page, err := m.db.Consumers(ctx, after, 1)
		require.NoError(t, err)
		for _, consumer := range page.Consumers {
			of := map[string]uint64{}
			for o := (engine.CursorsOptions{Limit: 1}); ; {
				page, err := m.db.Cursors(ctx, consumer, o)
				require.NoError(t, err)
				for _, c := range page.Cursors {
					of[string(c.Key)], o.After = c.Next, c.Key
				}
				if !page.More {
					break
				}
			}
			all[consumer], after = of, consumer
		}
		more = page.More
	}
	return all
}

// stateSurvivors finds out what of the small state a reopening left.
func (m *machine) stateSurvivors(t *rapid.T, clean bool) {
	end := m.model.first
	if n := len(m.model.recs); n > 0 {
		end = max(end, m.model.recs[n-1].seq+1)
	}
	found := m.dump(t)
	ok := m.ledger.restart(end, clean, func(s *smallModel) bool {
		if len(s.cursors) != len(found) {
			return false
		}
		for consumer, of := range s.cursors {
			if len(of) != len(found[consumer]) {
				return false
			}
			for key, next := range of {
				if have, ok := found[consumer][key]; !ok || have != next {
					return false
				}
			}
		}
		return true
	})
	require.True(t, ok, "cursors %v are not those of a prefix of what was done", found)
	m.producersAnswer(t)
}

// producersAnswer repeats the oldest and the newest append of each producer, and leaves one out.
func (m *machine) producersAnswer(t *rapid.T) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
	defer cancel()
	recs := []engine.Record{{Key: []byte("a"), Value: []byte("not again")}}
	for name, marks := range m.ledger.now.producers {
		for _, mark := range []modelMark{marks[0], marks[len(marks)-1]} {
			res, err := m.db.Append(ctx, recs, engine.AppendOptions{Producer: name, ProducerSequence: mark.number})
			require.NoError(t, err)
			m.isRepeat(t, res, mark)
		}
		last := marks[len(marks)-1].number
		_, err := m.db.Append(ctx, recs, engine.AppendOptions{Producer: name, ProducerSequence: last + 2})
		require.ErrorIs(t, err, engine.ErrConflict)
	}
}

func (m *machine) isRepeat(t *rapid.T, res engine.AppendResult, mark modelMark) {
	if mark.rec.timestamp == 0 {
		mark.rec.timestamp = res.Timestamp
	}
	require.Equal(t, engine.AppendResult{
		First: mark.first, Last: mark.first + uint64(mark.count) - 1, Timestamp: mark.rec.timestamp, Repeated: true,
	}, res)
}

// drawAppend draws what an append expects and of which producer it is.
func (m *machine) drawAppend(t *rapid.T) (o engine.AppendOptions) {
	o.Ack = rapid.SampledFrom([]engine.Durability{engine.Default, engine.Durable, engine.Memory}).Draw(t, "ack")
	if o.Producer = rapid.SampledFrom(modelProducers).Draw(t, "producer"); o.Producer != "" {
		o.ProducerSequence = 5
		if marks := m.ledger.now.producers[o.Producer]; len(marks) > 0 {
			// Next, repeated, left out, or out of the window.
			last := int(marks[len(marks)-1].number)
			o.ProducerSequence = uint64(max(0, last+rapid.SampledFrom([]int{1, 1, 1, 1, 0, 0, -1, -2, 2, -100}).Draw(t, "step")))
		}
	}
	for range rapid.SampledFrom([]int{0, 0, 0, 1, 1, 3}).Draw(t, "expected") {
		e := engine.KeySequence{Key: drawKey(t)}
		if last, ok := m.model.lastOf(string(e.Key)); ok {
			e.Next = last + rapid.SampledFrom([]uint64{1, 1, 1, 1, 0}).Draw(t, "above")
		}
		o.ExpectedNext = append(o.ExpectedNext, e)
	}
	return o
}

// lastOf returns the sequence of a key's newest record, be it readable or not.
func (m *model) lastOf(key string) (uint64, bool) {
	for _, rec := range slices.Backward(m.recs) {
		if rec.key == key {
			return rec.seq, true
		}
	}
	return 0, false
}

// refused judges an append that was refused, and reports whether it may be.
func (m *machine) refused(t *rapid.T, err error, recs []engine.Record, o engine.AppendOptions) {
	var failed *engine.AppendError
	require.ErrorAs(t, err, &failed)
	require.Equal(t, engine.NotAppended, failed.Outcome)
	mark, found := m.ledger.now.find(o.Producer, o.ProducerSequence)
	var refusal *engine.ProducerError
	var conflict *engine.ConditionError
	switch {
	case errors.As(err, &refusal):
		require.Contains(t, []state.Found{state.Gap, state.TooOld}, found, "refused %d after %v", o.ProducerSequence, mark)
	case errors.As(err, &conflict):
		require.True(t, o.Producer == "" || found == state.Fresh)
		last, ok := m.model.lastOf(string(conflict.Key))
		require.True(t, ok)
		require.Equal(t, last, conflict.Last)
		require.True(t, slices.ContainsFunc(o.ExpectedNext, func(e engine.KeySequence) bool {
			return string(e.Key) == string(conflict.Key) && e.Next <= last
		}))
	case errors.Is(err, engine.ErrInvalid):
		require.True(t, o.Producer != "" && len(recs) == 0)
	case errors.Is(err, engine.ErrTooLarge):
		require.True(t, m.tooLarge(recs, o))
	case errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, engine.ErrOverloaded):
		// A conflict with a record that was not durable in time: there is one.
		require.True(t, slices.ContainsFunc(o.ExpectedNext, func(e engine.KeySequence) bool {
			last, ok := m.model.lastOf(string(e.Key))
			return ok && e.Next <= last
		}))
		m.allowed(t, err)
	default:
		require.ErrorIs(t, err, engine.ErrOverloaded)
		m.allowed(t, err)
	}
}

// acceptable requires that the log was as the append expects. What retention dropped meanwhile does not count.
func (m *machine) acceptable(t *rapid.T, recs []engine.Record, o engine.AppendOptions) {
	require.False(t, m.tooLarge(recs, o))
	require.False(t, o.Producer != "" && len(recs) == 0)
	for _, e := range o.ExpectedNext {
		if last, ok := m.model.lastOf(string(e.Key)); ok {
			require.True(t, last < e.Next || last < m.db.FirstSequence(), "key %q has record %d, %d was expected", e.Key, last, e.Next)
		}
	}
}
