package engine

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/annalsdb/annals/internal/base"
	"github.com/annalsdb/annals/manifest"
	"github.com/annalsdb/annals/memtable"
)

// tip is a log of which only the tip is there: records go straight to the memtable.
type tip struct {
	*core
	memories []*memory
	next     uint64
}

func newTip() *tip {
	l := &tip{core: &core{
		env: base.SystemEnv(), staleAfter: time.Hour,
		refresh: func(context.Context) error { return nil },
		stopped: func() error { return nil },
	}}
	state := &manifest.State{Segments: []*manifest.Segment{{Id: 1}}}
	l.memories = []*memory{{table: memtable.New(), segment: 1}}
	l.publish(newView(&manifest.Snapshot{State: state}, l.memories))
	return l
}

// commit makes records readable, as a writer does.
func (l *tip) commit(recs []Record) {
	if l.memories[len(l.memories)-1].table.Bytes() > 32<<20 { // as if it was flushed: some of them are kept
		l.memories = append(slices.Clone(l.memories), &memory{table: memtable.New(), segment: 1, start: l.next})
		l.memories = l.memories[max(0, len(l.memories)-6):]
		l.publish(l.view.Load().withMemories(l.memories))
	}
	for i := range recs {
		recs[i].Sequence = l.next + uint64(i)
	}
	l.memories[len(l.memories)-1].table.AddBatch(l.next, 0, recs)
	l.next += uint64(len(recs))
	l.frontier.Store(l.next)
	l.followers.commit(recs, l.next)
}

func followKey(i int) []byte { return fmt.Appendf(nil, "key-%012d", i) }

// BenchmarkFollowDeliver: one follower and one record at a time. "ready" is all but the switch
// of goroutines, "wake" includes it.
func BenchmarkFollowDeliver(b *testing.B) {
	for _, prefix := range []bool{false, true} {
		name := map[bool]string{false: "key", true: "prefix"}[prefix]
		open := func(b *testing.B) (*tip, *Follower, []Record) {
			l := newTip()
			key := followKey(1)
			s := Stream{Key: key, Prefix: prefix}
			if prefix {
				s.Key = key[:8]
			}
			f, err := l.Follow(b.Context(), s)
			if err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			return l, f, []Record{{Key: key, Value: make([]byte, 1024)}}
		}
		b.Run(name+"/ready", func(b *testing.B) {
			l, f, recs := open(b)
			for b.Loop() {
				l.commit(recs)
				if got, err := f.Next(FollowRead{}); len(got) != 1 || err != nil {
					b.Fatal(got, err)
				}
			}
		})
		b.Run(name+"/wake", func(b *testing.B) {
			l, f, recs := open(b)
			got := make(chan int)
			go func() {
				for {
					recs, err := f.Next(FollowRead{})
					if err != nil {
						close(got)
						return
					}
					got <- len(recs)
				}
			}()
			for b.Loop() {
				l.commit(recs)
				if n := <-got; n != 1 {
					b.Fatal(n)
				}
			}
			f.Close()
			<-got
		})
	}
}

// crowdOf starts followers that count what they get, until the returned function ends them.
func crowdOf(b *testing.B, l *tip, n int, stream func(i int) Stream) (got *atomic.Int64, end func()) {
	got = new(atomic.Int64)
	var done sync.WaitGroup
	all := make([]*Follower, n)
	for i := range all {
		f, err := l.Follow(b.Context(), stream(i))
		if err != nil {
			b.Fatal(err)
		}
		all[i] = f
		done.Go(func() {
			for {
				recs, err := f.Next(FollowRead{})
				if err != nil {
					return
				}
				got.Add(int64(len(recs)))
			}
		})
	}
	return got, func() {
		for _, f := range all {
			f.Close()
		}
		done.Wait()
	}
}

func waitFor(got *atomic.Int64, n int64) {
	for got.Load() < n {
		time.Sleep(50 * time.Microsecond)
	}
}

// BenchmarkFollowMany: 50,000 followers, each gets one record. Of keys of their own out of a million, which
// come 1,000 in a commit; and all of the same key or prefix, in one commit.
func BenchmarkFollowMany(b *testing.B) {
	crowd, keys := sized(50_000, 5000), 1_000_000
	order := rand.New(rand.NewPCG(1, 1)).Perm(keys)
	perRecord := func(b *testing.B) {
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*crowd), "ns/delivery")
		b.ReportMetric(0, "ns/op")
	}
	b.Run("a key each", func(b *testing.B) {
		l := newTip()
		got, end := crowdOf(b, l, crowd, func(i int) Stream { return Stream{Key: followKey(order[i])} })
		defer end()
		recs := make([]Record, 1000)
		value := make([]byte, 1024)
		b.ReportAllocs()
		for n := int64(0); b.Loop(); {
			for i := 0; i < crowd; i += len(recs) {
				for k := range recs {
					recs[k] = Record{Key: followKey(order[i+k]), Value: value}
				}
				l.commit(recs)
			}
			n += int64(crowd)
			waitFor(got, n)
		}
		perRecord(b)
	})
	for _, s := range []Stream{{Key: followKey(7)}, {Key: followKey(7)[:6], Prefix: true}} {
		b.Run(fmt.Sprintf("the same, prefix %v", s.Prefix), func(b *testing.B) {
			l := newTip()
			got, end := crowdOf(b, l, crowd, func(int) Stream { return s })
			defer end()
			recs := []Record{{Key: followKey(7), Value: make([]byte, 1024)}}
			b.ReportAllocs()
			var commits time.Duration
			for n := int64(0); b.Loop(); {
				began := time.Now()
				l.commit(recs)
				commits += time.Since(began)
				n += int64(crowd)
				waitFor(got, n)
			}
			perRecord(b)
			b.ReportMetric(float64(commits.Microseconds())/float64(b.N), "µs/commit")
		})
	}
}

// BenchmarkCommitNobody: what a commit of 1,000 records costs when 50,000 followers wait for other keys.
func BenchmarkCommitNobody(b *testing.B) {
	for _, waiting := range []int{0, sized(50_000, 5000)} {
		b.Run(fmt.Sprint(waiting, " waiting"), func(b *testing.B) {
			l := newTip()
			for i := range waiting {
				if _, err := l.Follow(b.Context(), Stream{Key: followKey(i)}); err != nil {
					b.Fatal(err)
				}
			}
			recs := make([]Record, 1000)
			for i := range recs {
				recs[i].Key = followKey(1_000_000 + i*977)
			}
			next := uint64(0)
			b.ReportAllocs()
			for b.Loop() {
				for i := range recs {
					recs[i].Sequence = next + uint64(i)
				}
				next += uint64(len(recs))
				l.frontier.Store(next)
				l.followers.commit(recs, next)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(recs)), "ns/record")
		})
	}
}
