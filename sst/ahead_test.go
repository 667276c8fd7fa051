package sst

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/internal/base"
)

// background runs what readers want to have done in the background.
type background struct {
	sync.WaitGroup
	ctx    context.Context
	refuse func() bool
	// By the goroutine that uses the iterator:
	started    int
	lent, most int64
	taken      []int64 // what each call of Take lent
}

func (b *background) Take(n int64) bool {
	if b.refuse != nil && b.refuse() {
		return false
	}
	b.lent += n
	b.most = max(b.most, b.lent)
	b.taken = append(b.taken, n)
	return true
}

func (b *background) Give(n int64) {
	i := slices.Index(b.taken, n)
	if i < 0 {
		panic("what was not lent is given back")
	}
	b.taken = slices.Delete(b.taken, i, i+1)
	b.lent -= n
}

func (b *background) Go(f func(context.Context)) {
	b.started++
	b.WaitGroup.Go(func() { f(b.ctx) })
}

// held keeps from beginning what is to be read ahead.
type held struct {
	background
	pending []func(context.Context)
}

func (b *held) Go(f func(context.Context)) { b.pending = append(b.pending, f) }

func openAhead(t testing.TB, body []byte, info Info, o ReaderOptions) (*Reader, *memSource, *background) {
	t.Helper()
	opts, src := readerOptions(body, info)
	b := &background{ctx: context.Background()}
	opts.Cache, opts.ReadAhead, opts.Background = o.Cache, o.ReadAhead, b
	r, err := Open(context.Background(), opts)
	require.NoError(t, err)
	src.take(info.MetaOffset)
	return r, src, b
}

// With reading ahead a scan returns the same, and reads what it needs once, whatever the cache does
// and whether the background takes it or not. In the end everything was given back.
func TestReadAheadChangesNothing(t *testing.T) {
	recs, body, info := hotTable(300, 3000)
	want := ofKey(recs, []byte("warm"), base.All())
	started := 0
	for seed := range uint64(10) {
		rnd := rand.New(rand.NewPCG(seed, 2))
		var cache Cache
		if seed%2 == 0 {
			cache = newLossyCache(seed)
		}
		opts := ReaderOptions{Cache: cache, ReadAhead: 1 + rnd.Int64N(100<<10)}
		r, src, b := openAhead(t, body, info, opts)
		b.refuse = func() bool { return rnd.IntN(4) == 0 }
		from, to := rnd.IntN(len(want)/2), len(want)-rnd.IntN(len(want)/4)
		rng := base.Range{Start: want[from].Sequence, End: want[to-1].Sequence + 1}
		requireRecords(t, want[from:to], collect(t, r.Scan([]byte("warm"), rng, Hint{})))
		b.Wait()
		started += b.started
		ahead := src.reads
		if cache == nil {
			plain, src := open(t, body, info, nil)
			plain.opts.ReadAhead = opts.ReadAhead
			src.take(info.MetaOffset)
			requireRecords(t, want[from:to], collect(t, plain.Scan([]byte("warm"), rng, Hint{})))
			require.Equal(t, covered(src.reads), covered(ahead))
		}
		var got []base.Record
		for _, rec := range collect(t, r.ScanBackward([]byte("warm"), rng, Hint{})) {
			got = append([]base.Record{rec}, got...)
		}
		requireRecords(t, want[from:to], got)
		require.Empty(t, b.taken)
	}
	require.NotZero(t, started)
}

// covered is the bytes that the reads fetched, each once.
func covered(reads [][2]int64) [2]int64 {
	reads = slices.Clone(reads)
	slices.SortFunc(reads, func(a, b [2]int64) int { return cmp.Compare(a[0], b[0]) })
	all := reads[0]
	for _, r := range reads[1:] {
		if r[0] != all[0]+all[1] {
			panic(fmt.Sprintf("%v does not follow %v", r, all))
		}
		all[1] += r[1]
	}
	return all
}

// A long scan has more and more under way, in larger and larger reads, within the bounds.
func TestReadAheadGrows(t *testing.T) {
	recs, body, info := hotTable(4000, 20_000) // 64 MB
	want := ofKey(recs, []byte("warm"), base.All())
	r, src, b := openAhead(t, body, info, ReaderOptions{})
	read := int64(0) // by records returned
	it := r.Scan([]byte("warm"), base.All(), Hint{})
	for i := range want {
		rec, ok, err := it.Next(context.Background())
		require.NoError(t, err)
		require.True(t, ok)
		require.Equal(t, want[i].Sequence, rec.Sequence)
		read += int64(len(rec.Value))
		require.LessOrEqual(t, it.Ahead(), read+DefaultReadAhead, "never more ahead than was read")
		require.LessOrEqual(t, it.Ahead(), int64(MaxAhead))
	}
	_, ok, err := it.Next(context.Background())
	require.NoError(t, err)
	require.False(t, ok)
	b.Wait()
	require.Empty(t, b.taken)
	require.Greater(t, b.most, int64(MaxAhead*3/4), "in the end much is under way")
	require.LessOrEqual(t, b.most, int64(MaxAhead+MaxRead), "ahead, and what is used")
	large := 0
	for _, read := range src.reads {
		require.LessOrEqual(t, read[1], int64(MaxRead+128<<10))
		if read[1] >= MaxRead {
			large++
		}
	}
	require.GreaterOrEqual(t, large, 8)
	require.Less(t, len(src.reads), 25)
}

// What a scan of large records has ahead counts as large as it is; what is refused for that waits for its turn.
func TestReadAheadOfLargeRecords(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 3))
	recs := stream(30, func(int) []byte { return []byte("k") }, func(int) []byte { return random(rng, 3<<20) })
	body, info := write(WriterOptions{}, recs)
	for _, most := range []int64{math.MaxInt64, 4 << 20} {
		r, src, b := openAhead(t, body, info, ReaderOptions{})
		r.opts.Background = refusing{b, most}
		it := r.Scan([]byte("k"), base.All(), Hint{})
		late := 0
		for i := range recs {
			rec, ok, err := it.Next(context.Background())
			require.NoError(t, err)
			require.True(t, ok)
			require.Equal(t, recs[i], rec)
			held := int64(0)
			for _, next := range it.ahead.queue {
				if next.late {
					late++
				} else {
					held += next.run.size()
				}
			}
			require.LessOrEqual(t, held, b.lent)
			require.LessOrEqual(t, it.Ahead(), int64(MaxAhead+MaxRead+2*(3<<20)))
		}
		b.Wait()
		_, ok, err := it.Next(context.Background())
		require.NoError(t, err)
		require.False(t, ok)
		require.Empty(t, b.taken)
		require.Equal(t, [2]int64{0, info.MetaOffset}, covered(src.reads))
		if most == math.MaxInt64 {
			require.Zero(t, late)
			require.NotZero(t, b.started)
		} else {
			require.NotZero(t, late)
		}
	}
}

// refusing lends at most so much at once.
type refusing struct {
	*background
	most int64
}

func (r refusing) Take(n int64) bool { return n <= r.most && r.background.Take(n) }

// A scan that comes from another table goes on as fast, within what that has under way; one that is closed, or fails, keeps nothing.
func TestReadAheadContinues(t *testing.T) {
	ctx := context.Background()
	_, body, info := hotTable(1000, 12_000)
	opened := func(before, held int64) (*Iter, *background, *memSource) {
		r, src, b := openAhead(t, body, info, ReaderOptions{})
		it := r.Scan([]byte("warm"), base.All(), Hint{})
		require.NoError(t, it.Prime(ctx, math.MaxInt64))
		it.Continue(before, held)
		it.LookAhead(ctx)
		b.Wait()
		return it, b, src
	}
	for _, c := range []struct{ before, held, least, most int64 }{
		{0, 0, 0, 0}, // it may end within its first read
		{1 << 20, 0, 1 << 20, 3 << 20},
		{4 << 20, 0, 4 << 20, 6 << 20},
		{64 << 20, 0, 7 << 20, MaxAhead}, // all of it
		{64 << 20, MaxAhead - 5<<20, 4 << 20, 5 << 20},
		{64 << 20, MaxAhead, 0, 0},
	} {
		it, b, _ := opened(c.before, c.held)
		require.GreaterOrEqual(t, b.lent, c.least, c)
		require.LessOrEqual(t, b.lent, c.most, c)
		require.Equal(t, b.lent, it.Ahead())
		for range 5 {
			_, ok, err := it.Next(ctx)
			require.NoError(t, err)
			require.True(t, ok)
		}
		it.Close()
		require.Empty(t, b.taken)
		_, _, err := it.Next(ctx)
		require.Error(t, err)
		it.Close()
	}
	it, _, src := opened(64<<20, 0)
	require.True(t, it.Ending())
	reads := len(src.reads)
	n := 0
	for {
		_, ok, err := it.Next(ctx)
		require.NoError(t, err)
		if !ok {
			break
		}
		n++
	}
	require.Equal(t, 9600, n)
	require.Len(t, src.reads, reads, "all was under way")
}

// A scan reads ahead once it has gone on beyond its first read, or at once if it says that it
// wants more, and not beyond what the hint asks for.
func TestReadAheadBegins(t *testing.T) {
	_, body, info := hotTable(1000, 12_000)
	for _, c := range []struct {
		hint    Hint
		records int // returned
		reads   int // sent then
	}{
		{Hint{}, 0, 0},
		{Hint{}, 1, 1},
		{Hint{}, 900, 1},  // about 1000 records a MiB, at 1 MiB a read
		{Hint{}, 1200, 4}, // the second, and as much ahead as was read
		{Hint{}, 2500, 6}, // the third, and three ahead
		{Hint{}, 9600, 9}, // the end
		{Hint{Records: 10}, 10, 1},
		{Hint{Records: 1000}, 1, 1},
		{Hint{Records: 1500}, 1, 2},
		{Hint{Records: 1500}, 1400, 2},
		{Hint{Bytes: 1_500_000}, 1400, 2},
		{Hint{Records: 2500}, 1, 3},
		{Hint{Bytes: 2_500_000}, 2400, 3},
	} {
		t.Run(fmt.Sprint(c), func(t *testing.T) {
			r, src, b := openAhead(t, body, info, ReaderOptions{})
			it := r.Scan([]byte("warm"), base.All(), c.hint)
			for range c.records {
				_, ok, err := it.Next(context.Background())
				require.NoError(t, err)
				require.True(t, ok)
			}
			b.Wait()
			require.Len(t, src.reads, c.reads)
		})
	}
}

// What fails in the background is the scan's error, after the records before it.
func TestReadAheadFails(t *testing.T) {
	recs, body, info := hotTable(1000, 12_000)
	want := ofKey(recs, []byte("warm"), base.All())
	ctx := context.Background()
	broken := errors.New("broken")
	for name, fail := range map[string]func(*memSource, *background) (after func() error){
		"read": func(src *memSource, b *background) func() error {
			return func() error {
				b.Wait()
				src.mu.Lock()
				defer src.mu.Unlock()
				src.body = nil // later reads are outside of it
				return nil
			}
		},
		"context": func(src *memSource, b *background) func() error {
			ctx, cancel := context.WithCancelCause(ctx)
			b.ctx = ctx
			return func() error {
				b.Wait()
				cancel(broken)
				return context.Canceled
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			r, src, b := openAhead(t, body, info, ReaderOptions{})
			after := fail(src, b)
			it := r.Scan([]byte("warm"), base.All(), Hint{})
			n := 0
			var cause error
			for {
				rec, ok, err := it.Next(ctx)
				if err != nil {
					if cause != nil {
						require.ErrorIs(t, err, cause)
					}
					_, _, again := it.Next(ctx)
					require.Equal(t, err, again)
					break
				}
				require.True(t, ok, "the scan ends early")
				require.Equal(t, want[n].Sequence, rec.Sequence)
				if n++; n == 1200 {
					cause = after()
				}
			}
			require.Greater(t, n, 1200)
			require.Less(t, n, len(want))
		})
	}
	t.Run("waiting", func(t *testing.T) {
		r, _, _ := openAhead(t, body, info, ReaderOptions{})
		b := new(held)
		r.opts.Background = b
		it := r.Scan([]byte("warm"), base.All(), Hint{})
		for b.pending == nil {
			_, ok, err := it.Next(ctx)
			require.NoError(t, err)
			require.True(t, ok)
		}
		ended, cancel := context.WithCancel(ctx)
		cancel()
		var err error
		for err == nil {
			_, _, err = it.Next(ended)
		}
		require.ErrorIs(t, err, context.Canceled, "nobody waits for what does not come")
		for _, f := range b.pending {
			f(ctx)
		}
	})
}

// After Prime the first record needs no read, unless it is too large to be fetched before its turn.
func TestPrime(t *testing.T) {
	recs, body, info := hotTable(1000, 600)
	ctx := context.Background()
	want := ofKey(recs, []byte("warm"), base.All())
	for _, cache := range []Cache{nil, newMapCache()} {
		for _, most := range []int64{0, 1 << 10, 100 << 10, math.MaxInt64} {
			for _, hint := range []Hint{{}, {Records: 10}} {
				for _, backward := range []bool{false, true} {
					r, src := open(t, body, info, cache)
					src.take(info.MetaOffset)
					it := r.newIter([]byte("warm"), base.All(), hint, backward)
					require.NoError(t, it.Prime(ctx, most))
					primed := len(src.reads)
					if most < 20<<10 || most < math.MaxInt64 && hint == (Hint{}) {
						require.Zero(t, primed)
					}
					require.NoError(t, it.Prime(ctx, most), "again")
					rec, ok, err := it.Next(ctx)
					require.NoError(t, err)
					require.True(t, ok)
					first := want[0]
					if backward {
						first = want[len(want)-1]
					}
					require.Equal(t, first.Sequence, rec.Sequence)
					require.LessOrEqual(t, len(src.reads), 1)
					if most == math.MaxInt64 {
						require.Equal(t, primed, len(src.reads))
					}
					require.Len(t, collect(t, it), len(want)-1)
				}
			}
		}
	}
	r, src := open(t, body, info, nil)
	src.take(info.MetaOffset)
	for _, it := range []*Iter{r.Scan([]byte("absent"), base.All(), Hint{}), r.Scan([]byte("warm"), base.Range{Start: 5, End: 5}, Hint{})} {
		require.NoError(t, it.Prime(ctx, math.MaxInt64))
		require.Empty(t, collect(t, it))
	}
	src.body = nil
	it := r.Scan([]byte("warm"), base.All(), Hint{})
	err := it.Prime(ctx, math.MaxInt64)
	require.Error(t, err)
	_, _, again := it.Next(ctx)
	require.Equal(t, err, again)
}

// Who knows that a key is in a table saves the read of the filter, and if wrong gets nothing more.
func TestSkipFilter(t *testing.T) {
	recs, body, info := largeTable(t)
	ctx := context.Background()
	for i := 0; i < len(recs); i += 5003 {
		opts, src := readerOptions(body, info)
		opts.SkipFilter = true
		r, err := Open(ctx, opts)
		require.NoError(t, err)
		require.Len(t, collect(t, r.Scan(recs[i].Key, base.All(), Hint{})), 1)
		meta, data := src.take(info.MetaOffset)
		require.LessOrEqual(t, meta, 2)
		require.Equal(t, 1, data)
		absent := fmt.Appendf(nil, "%s?", recs[i].Key)
		require.Empty(t, collect(t, r.Scan(absent, base.All(), Hint{})))
		require.Empty(t, collect(t, r.ScanBackward(absent, base.All(), Hint{})))
		n, err := r.Count(ctx, absent, base.All())
		require.NoError(t, err)
		require.Zero(t, n)
		_, ok, err := r.SeekTimestamp(ctx, absent, base.All(), 0)
		require.NoError(t, err)
		require.False(t, ok)
	}
}
