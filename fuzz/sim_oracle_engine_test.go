package fuzz

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/engine"
)

// TestSimOracleAcceptsTheEngine lets the engine go through the life of a log: writers that crash, close and are passed,
// segments that age, replicas. The oracle finds nothing, and has seen all of it.
func TestSimOracleAcceptsTheEngine(t *testing.T) {
	for name, change := range map[string]func(*engine.Options){
		"durable": func(*engine.Options) {},
		"memory":  func(o *engine.Options) { o.ReadVisibility = engine.Memory },
	} {
		failure(t, name, func(t *testing.T) {
			o := agingOptions()
			change(&o)
			s := newStage(t)
			r := (*simProcess)(nil)
			var old *simProcess
			for round := range 4 {
				p := s.open(o)
				if r == nil {
					r = s.replica(engine.ReaderOptions{StaleAfter: o.StaleAfter, PollInterval: 10 * time.Millisecond})
					s.replica(engine.ReaderOptions{StaleAfter: o.StaleAfter, Keys: engine.KeyRange{End: []byte("b")}})
				}
				for i := range 30 {
					s.someWork(p, round, i)
					time.Sleep(5 * time.Second) // segments age
					s.settle()
					s.reads(p, i)
					s.reads(r, i)
					require.NoError(t, s.o.err())
				}
				if old != nil { // who was passed: its calls end with that
					require.ErrorIs(t, s.append(old, engine.AppendOptions{}, s.batch("a")...).err, engine.ErrFenced)
				}
				switch round {
				case 0:
					s.kill(p)
				case 1:
					require.NoError(t, p.db.Close(t.Context()))
				default:
					old = p
				}
			}
			last := s.open(o)
			s.o.finish(last.db)
			require.NoError(t, s.o.err())
			require.Greater(t, s.o.head.first, uint64(0), "retention has dropped something")
			require.NotEmpty(t, s.o.head.state.GetGroups())
			require.Greater(t, len(s.o.log.records), 300)
		})
	}
}

// someWork is what clients do to a writer in a round.
func (s *stage) someWork(p *simProcess, round, i int) {
	t := s.t
	first := s.append(p, engine.AppendOptions{}, s.batch("a", "b", fmt.Sprint("c", i%5))...)
	require.NoError(t, first.err)
	require.NoError(t, s.append(p, engine.AppendOptions{Ack: engine.Memory}, s.batch("a")...).err)
	expects := engine.AppendOptions{ExpectedNext: []engine.KeySequence{{Key: []byte("b"), Next: first.res.Last}}}
	require.NoError(t, s.append(p, expects, s.batch("b")...).err)
	require.ErrorIs(t, s.append(p, expects, s.batch("b")...).err, engine.ErrConflict)
	number := engine.AppendOptions{Producer: "p", ProducerSequence: uint64(1 + round*30 + i)}
	recs := s.batch("d", "a")
	require.NoError(t, s.append(p, number, recs...).err)
	require.True(t, s.append(p, number, recs...).res.Repeated)
	number.ProducerSequence += 2
	require.ErrorIs(t, s.append(p, number, s.batch("d")...).err, engine.ErrConflict)
	require.NoError(t, s.setCursors(p, "x", false, engine.Cursor{Key: []byte("a"), Next: first.res.Last}, engine.Cursor{Key: []byte("b"), Next: 3}).err)
	switch i % 7 {
	case 1:
		require.NoError(t, s.setCursors(p, "x", true, engine.Cursor{Key: []byte("b"), Next: 2}).err)
	case 2:
		require.NoError(t, s.deleteCursor(p, "x", "b").err)
	case 3:
		require.NoError(t, s.flush(p).err)
	case 4:
		require.NoError(t, s.deleteCursor(p, "x", "a").err)
	case 5:
		require.NoError(t, s.setCursors(p, "y", false, engine.Cursor{Key: []byte("q"), Next: 1}).err)
	}
}

// reads reads in many ways.
func (s *stage) reads(p *simProcess, i int) {
	all, first := engine.All(), s.o.head.first
	require.NoError(s.t, s.scan(p, "a", all, engine.ScanOptions{}).err)
	s.scan(p, "b", engine.Between(first+uint64(i), s.o.log.end-2), engine.ScanOptions{Limit: 3})
	s.scan(p, "a", engine.From(first+2), engine.ScanOptions{Last: 4})
	s.scan(p, "a", all, engine.ScanOptions{MaxBytes: 20})
	s.scan(p, "a", all, engine.ScanOptions{Last: 10, MaxBytes: 25, Limit: 5})
	s.scan(p, "b", all, engine.ScanOptions{Since: time.Now().Add(-20 * time.Second), Limit: 2})
	s.scan(p, "nothing", all, engine.ScanOptions{})
	s.count(p, "a", all)
	s.count(p, "b", engine.Between(first+3, first+40))
	s.keys(p, engine.KeysOptions{})
	s.keys(p, engine.KeysOptions{Prefix: []byte("c"), After: []byte("c1"), Limit: 2})
	s.cursors(p, "x")
	s.cursors(p, "y")
}

// TestSimOracleFollows looks at what followers of a writer and of a replica deliver.
func TestSimOracleFollows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, ctx := newStage(t), context.Background()
		p := s.open(agingOptions())
		r := s.replica(engine.ReaderOptions{StaleAfter: 5 * time.Second})
		for _, at := range []*simProcess{p, r} {
			f, err := at.log.Follow(ctx, engine.Stream{Prefix: true})
			require.NoError(t, err)
			t.Cleanup(f.Close)
			c := &simCall{id: 1000 + at.id, proc: at, kind: simFollow, rng: engine.All()}
			s.o.began(c)
			go func() {
				for rec := range f.All() {
					s.mu.Lock()
					c.recs = append(c.recs, rec)
					s.mu.Unlock()
				}
			}()
			t.Cleanup(func() { require.Len(t, c.recs, 40) })
		}
		for i := range 20 {
			s.append(p, engine.AppendOptions{}, s.batch("a", fmt.Sprint(i%3))...)
			time.Sleep(time.Second)
			s.settle()
		}
		require.NoError(t, s.o.err())
	})
}
