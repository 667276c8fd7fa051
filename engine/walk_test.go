package engine

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/objstore"
	"github.com/annalsdb/annals/objstore/fault"
	"github.com/annalsdb/annals/sst"
)

// roundTrip is the time that a GET takes in simulations: too little to be sent twice.
const roundTrip = hedgeMin / 2

// slowLayout makes a log, as build says, on a simulated store whose GETs take a roundTrip, and passes the
// test a reader whose cache keeps nothing.
func slowLayout(t *testing.T, build func(l *layout), f func(t *testing.T, l *layout, m *meter, c *core)) {
	synctest.Test(t, func(t *testing.T) {
		l := newLayout(t)
		l.env = bubbleEnv()
		build(l)
		m := l.metered()
		m.delay = roundTrip
		f(t, l, m, l.open(m, 1))
		synctest.Wait()
	})
}

func trips(f func()) float64 {
	began := time.Now()
	f()
	return float64(time.Since(began)) / float64(roundTrip)
}

// each segment holds one record of "k", and one of a key of its own.
func oneEach(l *layout, segments int) {
	for s := range segments {
		l.segment(true, l.records(2, func(i int) (string, string) { return []string{"k", fmt.Sprint("s", s)}[i], fmt.Sprint(s) }))
	}
}

// A cold scan is not one round trip after another: not over groups that do not hold the key, and not over
// tables that all do.
func TestColdScanOverlapsRequests(t *testing.T) {
	const n = 256
	groups := func(l *layout) {
		oneEach(l, n)
		for range 16 {
			l.group(n / 16)
		}
		l.segment(false)
	}
	runs := func(l *layout) {
		var active [][]Record
		for s := range n {
			active = append(active, l.records(2, func(i int) (string, string) { return []string{"k", fmt.Sprint("s", s)}[i], "" }))
		}
		l.segment(false, active...)
	}
	for name, c := range map[string]struct {
		build func(*layout)
		key   string
		o     ScanOptions
		gets  int     // exactly
		most  float64 // round trips one after another
	}{
		"groups without the key": {groups, "nobody", ScanOptions{}, 16, 6},
		"last group":             {groups, "s255", ScanOptions{}, 16 + 3, 6 + 3},
		"first group, backward":  {groups, "s0", ScanOptions{Last: 10}, 16 + 3, 6 + 3},
		// A shard, a tail; then a table and its data for each segment, 17 at a time.
		"every segment":           {groups, "k", ScanOptions{}, 16*2 + n*2, 2 + n*2/17 + 12},
		"every segment, backward": {groups, "k", ScanOptions{Last: 1000}, 16*2 + n*2, 2 + n*2/17 + 12},
		"every run":               {runs, "k", ScanOptions{}, n * 2, n*2/17 + 12},
		"runs without the key":    {runs, "nobody", ScanOptions{}, n, n/17 + 6},
	} {
		t.Run(name, func(t *testing.T) {
			slowLayout(t, c.build, func(t *testing.T, l *layout, m *meter, core *core) {
				n := trips(func() { requireSame(t, l.want(c.key, All()), scan(t, core, c.key, All(), c.o)) })
				require.LessOrEqual(t, n, c.most)
				meta, data := m.gets()
				require.Equal(t, c.gets, meta+data, m)
				require.LessOrEqual(t, m.atOnce, maxWindow+1)
				require.Zero(t, core.tables.ahead.taken.Load())
			})
		})
	}
	for name, build := range map[string]func(*layout){"groups": groups, "runs": runs} {
		t.Run("count in "+name, func(t *testing.T) {
			slowLayout(t, build, func(t *testing.T, l *layout, m *meter, core *core) {
				trips := trips(func() {
					got, err := core.Count(t.Context(), []byte("k"), All())
					require.NoError(t, err)
					require.EqualValues(t, n, got)
				})
				require.LessOrEqual(t, trips, n/17+8.)
				_, data := m.gets()
				require.Zero(t, data)
				require.LessOrEqual(t, m.atOnce, maxWindow+1)
			})
		})
	}
}

// A scan whose limit is met does not look further, and how far it looks ahead before that fits the limit.
func TestScanLooksNoFurtherThanItsLimit(t *testing.T) {
	build := func(l *layout) {
		oneEach(l, 256)
		for range 16 {
			l.group(16)
		}
		l.segment(false)
	}
	for _, c := range []struct {
		o    ScanOptions
		from uint64
		gets int // at most
	}{
		{ScanOptions{Limit: 1}, 0, 4}, // shard, tail, table, data
		{ScanOptions{Last: 1}, 0, 4},
		{ScanOptions{Limit: 2}, 0, 4 + 2 + 2},
		{ScanOptions{Limit: 5}, 0, 2 + 2*5 + 3*2},
		{ScanOptions{Last: 5}, 0, 2 + 2*5 + 3*2},
		{ScanOptions{Limit: 20}, 0, 4 + 2*20 + 20},
		{ScanOptions{}, 2 * 255, 4}, // nothing below the cursor's segment
		{ScanOptions{Limit: 1}, 2 * 100, 4},
	} {
		t.Run(fmt.Sprint(c), func(t *testing.T) {
			slowLayout(t, build, func(t *testing.T, l *layout, m *meter, core *core) {
				want := l.want("k", From(c.from))
				if c.o.Limit > 0 {
					want = want[:c.o.Limit]
				}
				if c.o.Last > 0 {
					want = want[len(want)-c.o.Last:]
				}
				requireSame(t, want, scan(t, core, "k", From(c.from), c.o))
				meta, data := m.gets()
				require.LessOrEqual(t, meta+data, c.gets, m)
			})
		})
	}
}

// A scan that is left, or whose context ends, leaves nothing under way.
func TestScanThatIsLeft(t *testing.T) {
	build := func(l *layout) {
		oneEach(l, 100)
		l.group(64)
		l.segment(false)
	}
	for name, leave := range map[string]func(it *Iterator, cancel func()){
		"broken off": func(it *Iterator, _ func()) {
			n := 0
			for range it.All() {
				if n++; n == 40 {
					break
				}
			}
		},
		"panic": func(it *Iterator, _ func()) {
			defer func() { _ = recover() }()
			n := 0
			for range it.All() {
				if n++; n == 40 {
					panic("the caller's")
				}
			}
		},
		"context": func(it *Iterator, cancel func()) {
			n := 0
			for range it.All() {
				if n++; n == 40 {
					cancel()
				}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			slowLayout(t, build, func(t *testing.T, l *layout, m *meter, c *core) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				it := c.Scan(ctx, []byte("k"), All(), ScanOptions{})
				leave(it, cancel)
				require.Zero(t, c.tables.ahead.taken.Load())
				synctest.Wait()
				m.mu.Lock()
				require.Zero(t, m.underWay, "requests end at once, not when they are answered")
				m.mu.Unlock()
				if name == "context" {
					require.ErrorIs(t, it.Err(), context.Canceled)
				} else {
					require.NoError(t, it.Err())
					requireSame(t, l.want("k", From(it.Next())), slices.Collect(it.All()), "it goes on where it was left")
				}
			})
		})
	}
}

// An error ahead of a scan is its error when it comes there, and none if it does not.
func TestErrorAheadOfAScan(t *testing.T) {
	broken := errors.New("broken")
	for _, limit := range []int{0, 30, 60} {
		t.Run(fmt.Sprint("limit=", limit), func(t *testing.T) {
			slowLayout(t, func(l *layout) {
				oneEach(l, 100)
				l.group(64)
				l.segment(false)
			}, func(t *testing.T, l *layout, m *meter, c *core) {
				bad := l.full[40].Runs[0].Tables[0].Ref.ID().Name()
				c.tables.store = fault.New(m, func(_ context.Context, op fault.Op) fault.Plan {
					if op.Name == bad {
						return fault.Refuse(fmt.Errorf("%w: %w", broken, objstore.ErrDenied))
					}
					return fault.Plan{}
				})
				want := l.want("k", All())
				it := c.Scan(t.Context(), []byte("k"), All(), ScanOptions{Limit: limit})
				got := slices.Collect(it.All())
				if limit == 30 {
					require.NoError(t, it.Err())
					requireSame(t, want[:limit], got)
					return
				}
				require.ErrorIs(t, it.Err(), broken)
				require.ErrorContains(t, it.Err(), bad)
				require.Less(t, len(got), 40)
				requireSame(t, want[:len(got)], got)
				require.Zero(t, c.tables.ahead.taken.Load())
			})
		})
	}
}

// Warm reads start no goroutine and hold nothing.
func TestWarmScanLooksNowhereAhead(t *testing.T) {
	l := newLayout(t)
	oneEach(l, 100)
	l.group(64)
	l.segment(false)
	c := l.open(l.store, 64<<20)
	started := 0
	env := *l.env
	env.Go = func(name string, f func()) { started++; go f() }
	c.env = &env
	scan(t, c, "k", All(), ScanOptions{})
	require.NotZero(t, started, "cold")
	started = 0
	for range 3 {
		require.Len(t, scan(t, c, "k", All(), ScanOptions{}), 100)
		require.Len(t, scan(t, c, "k", All(), ScanOptions{Last: 100}), 100)
		n, err := c.Count(t.Context(), []byte("k"), All())
		require.NoError(t, err)
		require.EqualValues(t, 100, n)
	}
	require.Zero(t, started)
}

// However many reads look ahead at the same time, what they hold is bounded; who gets no share reads on.
func TestWhatReadsHoldAheadIsBounded(t *testing.T) {
	slowLayout(t, func(l *layout) {
		oneEach(l, 100)
		l.segment(false)
	}, func(t *testing.T, l *layout, m *meter, c *core) {
		want := l.want("k", All())
		var readers sync.WaitGroup
		for range 50 {
			readers.Go(func() {
				it := c.Scan(t.Context(), []byte("k"), All(), ScanOptions{})
				n := 0
				for range it.All() {
					n++
					if taken := c.tables.ahead.taken.Load(); taken < 0 || taken > maxAhead+50 { // take may overshoot for a moment
						t.Errorf("%d slots are taken", taken)
					}
				}
				if n != len(want) || it.Err() != nil {
					t.Error(n, it.Err())
				}
			})
		}
		readers.Wait()
		require.Zero(t, c.tables.ahead.taken.Load())
	})
}

// Within one long key the next range is under way while the records before it are used.
func TestReadAheadWithinAKey(t *testing.T) {
	value := strings.Repeat("0123456789abcdef", 1<<10)
	slowLayout(t, func(l *layout) {
		l.blockBytes = 32 << 10
		i := 0
		l.segment(true, l.records(600, func(int) (string, string) { // 9.6 MB that compress to little, so: different
			i++
			return "k", fmt.Sprint(i) + scramble(value, i)
		}))
		l.segment(false)
	}, func(t *testing.T, l *layout, m *meter, c *core) {
		it := c.Scan(t.Context(), []byte("k"), All(), ScanOptions{})
		used := time.Duration(0)
		var got []Record
		n := trips(func() {
			for rec := range it.All() {
				got = append(got, rec)
				time.Sleep(roundTrip / 50) // a range of 64 records is used in more than a round trip
				used += roundTrip / 50
			}
		})
		requireSame(t, l.want("k", All()), got)
		require.NoError(t, it.Err())
		_, data := m.gets()
		require.Greater(t, data, 8)
		require.LessOrEqual(t, data, 11, "nothing is read twice, though the cache keeps nothing and there are many chunks")
		waited := n - float64(used)/float64(roundTrip)
		require.Less(t, waited, 4.5, "the metadata, two ranges, and no more")
		require.Zero(t, c.tables.ahead.taken.Load())
	})
}

// oneKey makes a segment of so many tables, each with so many records of 16 KiB of the key "k".
func (l *layout) oneKey(tables, records int) {
	value := strings.Repeat("0123456789abcdef", 1<<10)
	l.blockBytes = 32 << 10
	var active [][]Record
	for s := range tables {
		active = append(active, l.records(records, func(i int) (string, string) { return "k", scramble(value, s*records+i+1) }))
	}
	l.segment(false, active...)
}

// A replay that has gone on for long does not begin anew in the next table: what that holds is under way
// while the one before is used.
func TestReplayGoesOnBetweenTables(t *testing.T) {
	const tables, records = 8, 200
	slowLayout(t, func(l *layout) { l.oneKey(tables, records) }, func(t *testing.T, l *layout, m *meter, c *core) {
		it := c.Scan(t.Context(), []byte("k"), All(), ScanOptions{})
		var got []Record
		used := time.Duration(0)
		n := trips(func() {
			for rec := range it.All() {
				got = append(got, rec)
				time.Sleep(roundTrip / 200) // a table is used in one round trip
				used += roundTrip / 200
				require.LessOrEqual(t, c.tables.ahead.taken.Load(), int64(slotsOf(2*sst.MaxAhead)+maxWindow))
			}
		})
		requireSame(t, l.want("k", All()), got)
		require.NoError(t, it.Err())
		meta, data := m.gets()
		require.Equal(t, tables, meta)
		require.LessOrEqual(t, data, 4*tables) // of 3.3 MB each
		waited := n - float64(used)/float64(roundTrip)
		require.Less(t, waited, 7., "in the first tables, while it is not yet known to be long; not one for each")
		require.Zero(t, c.tables.ahead.taken.Load())
	})
}

// A scan whose context ends when it comes to a table in which it has read ahead gives back what it was lent.
func TestCancelledBetweenTables(t *testing.T) {
	const tables, records = 3, 200
	slowLayout(t, func(l *layout) { l.oneKey(tables, records) }, func(t *testing.T, l *layout, m *meter, c *core) {
		ahead := false
		for range 20 { // of what is there and a context that has ended, either is noticed first
			ctx, cancel := context.WithCancel(t.Context())
			it := c.Scan(ctx, []byte("k"), All(), ScanOptions{})
			n := 0
			for range it.All() {
				if n++; n > (tables-1)*records-80 { // the last of the table but one are in memory
					synctest.Wait()
					time.Sleep(10 * roundTrip)
					if next := it.walk.queue; len(next) > 0 && next[0].records() != nil {
						ahead = ahead || next[0].records().Ahead() > 0
						cancel()
					}
				}
			}
			cancel()
			require.Zero(t, c.tables.ahead.taken.Load())
		}
		require.True(t, ahead)
	})
}

// scramble makes a text of the same length that does not compress.
func scramble(s string, seed int) string {
	b := []byte(s)
	x := uint64(seed)*0x9E3779B97F4A7C15 + 1
	for i := range b {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		b[i] = byte(x)
	}
	return string(b)
}

// Reads that are over leave no goroutine, whatever became of them.
func TestReadsLeaveNoGoroutine(t *testing.T) {
	l := newLayout(t)
	oneEach(l, 200)
	l.group(64)
	l.group(64)
	l.segment(false)
	before := runtime.NumGoroutine()
	m := l.metered()
	m.delay = time.Millisecond
	c := l.open(m, 1)
	for i := range 20 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*time.Millisecond)
		for range c.Scan(ctx, []byte("k"), All(), ScanOptions{Limit: i * 7}).All() {
		}
		_, _ = c.Count(ctx, []byte("k"), All())
		_, _ = c.Keys(ctx, KeysOptions{})
		cancel()
	}
	for began := time.Now(); runtime.NumGoroutine() > before; runtime.Gosched() {
		require.Less(t, time.Since(began), patience, "%d goroutines", runtime.NumGoroutine()-before)
	}
	require.Zero(t, c.tables.ahead.taken.Load())
}
