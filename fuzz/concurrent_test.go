package fuzz

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/annalsdb/annals/engine"
	"github.com/annalsdb/annals/internal/base"
	"github.com/annalsdb/annals/objstore/fault"
	"github.com/annalsdb/annals/objstore/mem"
)

// Sizes of TestConcurrentReadsAndWrites.
const (
	appenders         = 4
	batchesAnAppender = 50
	scannersAKind     = 2
	sharedKey         = "shared"
	concurrentTimeout = 10 * time.Minute
)

// appender writes batches of three records: one to its own key, one to the key that
// all share, and a second one to its own key. Value i of its own key is i, so that a
// reader knows what must come next.
type appender struct {
	key   string
	acked atomic.Int64 // batches acknowledged as durable
	sent  atomic.Int64 // batches begun
}

// crowd is one run of TestConcurrentReadsAndWrites.
type crowd struct {
	db        *engine.DB
	appenders []*appender
	done      chan struct{} // closed when all appends are acknowledged
}

// TestConcurrentReadsAndWrites reads in every way while several appenders write,
// under options that rotate, flush and seal all the time. Run it with -race.
func TestConcurrentReadsAndWrites(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	ctx, cancel := context.WithTimeout(t.Context(), concurrentTimeout)
	defer cancel()
	store := mem.New(mem.Options{})
	o := tinyOptions()
	o.Env = base.SystemEnv()
	slow := &weather{latency: time.Millisecond, random: rand.New(rand.NewPCG(seed, 1))}
	db, err := engine.Open(ctx, fault.New(store, slow.hook), o)
	require.NoError(t, err)
	defer kill(db)

	c := &crowd{db: db, done: make(chan struct{})}
	writers, wctx := errgroup.WithContext(ctx)
	for i := range appenders {
		a := &appender{key: fmt.Sprint("own", i)}
		c.appenders = append(c.appenders, a)
		random := rand.New(rand.NewPCG(seed, uint64(i+2)))
		writers.Go(func() error { return c.append(wctx, a, random) })
	}
	readers, rctx := errgroup.WithContext(ctx)
	for i := range scannersAKind {
		for j, read := range []func(context.Context, *rand.Rand) error{
			c.scanWhole, c.scanLast, c.count, c.keys, c.together, c.flush,
		} {
			random := rand.New(rand.NewPCG(seed, uint64(100+10*i+j)))
			readers.Go(func() error { return c.untilDone(rctx, func() error { return read(rctx, random) }) })
		}
		readers.Go(func() error { return c.untilDone(rctx, c.frontier()) })
	}
	for _, a := range c.appenders {
		readers.Go(func() error { return c.follow(rctx, a) })
	}
	werr := writers.Wait()
	close(c.done)
	require.NoError(t, werr)
	require.NoError(t, readers.Wait())

	c.verify(t, ctx)
	s := db.Status()
	require.Greater(t, s.Segments, 3, "options that seal")
	require.Greater(t, s.Runs, 3, "options that rotate")
	require.NoError(t, db.Close(ctx))
	require.Equal(t, uint64(3*appenders*batchesAnAppender), check(t, store).TableRecords)
	c.db, err = engine.Open(ctx, store, o)
	require.NoError(t, err)
	defer kill(c.db)
	c.verify(t, ctx)
	check(t, store)
}

// verify requires that everything is there, in order.
func (c *crowd) verify(t *testing.T, ctx context.Context) {
	t.Helper()
	for _, a := range c.appenders {
		recs, err := collect(c.db.Scan(ctx, []byte(a.key), engine.All(), engine.ScanOptions{}))
		require.NoError(t, err)
		require.Len(t, recs, 2*batchesAnAppender)
		require.NoError(t, consecutive(recs, 0))
	}
	recs, err := collect(c.db.Scan(ctx, []byte(sharedKey), engine.All(), engine.ScanOptions{}))
	require.NoError(t, err)
	require.Len(t, recs, appenders*batchesAnAppender)
	next := map[string]int{}
	for i, rec := range recs {
		require.True(t, i == 0 || recs[i-1].Sequence < rec.Sequence && recs[i-1].Timestamp <= rec.Timestamp)
		key, n := parse(rec)
		require.Equal(t, next[key], n)
		next[key]++
	}
}

// untilDone repeats a reader until all appends are acknowledged, and once more.
func (c *crowd) untilDone(ctx context.Context, read func() error) error {
	for {
		last := false
		select {
		case <-c.done:
			last = true
		case <-ctx.Done():
			return ctx.Err()
		default:
		}
		if err := read(); err != nil || last {
			return err
		}
	}
}

func (c *crowd) some(random *rand.Rand) *appender { return c.appenders[random.IntN(len(c.appenders))] }

// append writes the appender's batches. Some are acknowledged from memory first.
func (c *crowd) append(ctx context.Context, a *appender, random *rand.Rand) error {
	var last uint64
	for i := range batchesAnAppender {
		value := func(key string, n int) []byte {
			return fmt.Appendf(nil, "%s %d %s", key, n, strings.Repeat("x", random.IntN(100)))
		}
		recs := []engine.Record{
			{Key: []byte(a.key), Value: value(a.key, 2*i)},
			{Key: []byte(sharedKey), Value: value(a.key, i)},
			{Key: []byte(a.key), Value: value(a.key, 2*i+1)},
		}
		ack := engine.Durable
		if random.IntN(4) == 0 {
			ack = engine.Memory
		}
		a.sent.Add(1)
		res, err := c.db.Append(ctx, recs, engine.AppendOptions{Ack: ack})
		if err != nil {
			return err
		}
		if i > 0 && res.First <= last || res.Last != res.First+2 {
			return fmt.Errorf("batch %d of %s has %+v, the one before ended at %d", i, a.key, res, last)
		}
		last = res.Last
		if ack == engine.Memory {
			if err := c.db.WaitDurable(ctx, last); err != nil {
				return err
			}
		}
		a.acked.Add(1)
	}
	return nil
}

// parse returns the key and the number that a value carries.
func parse(rec engine.Record) (key string, n int) {
	if _, err := fmt.Sscanf(string(rec.Value), "%s %d", &key, &n); err != nil {
		panic(fmt.Sprintf("value %q: %v", rec.Value, err))
	}
	return key, n
}

// consecutive requires the numbers from first on, in ascending sequence.
func consecutive(recs []engine.Record, first int) error {
	for i, rec := range recs {
		key, n := parse(rec)
		if key != string(rec.Key) || n != first+i {
			return fmt.Errorf("record %d of key %q has value %.20q, want number %d", i, rec.Key, rec.Value, first+i)
		}
		if i > 0 && (rec.Sequence <= recs[i-1].Sequence || rec.Timestamp < recs[i-1].Timestamp) {
			return fmt.Errorf("number %d of key %q does not follow the one before", n, rec.Key)
		}
	}
	return nil
}

// within requires that a number of the appender's records is of whole batches: those
// acknowledged before the read, and none that was begun after it.
func within(a *appender, acked int64, records int) error {
	if records%2 != 0 || int64(records) < 2*acked || int64(records) > 2*a.sent.Load() {
		return fmt.Errorf("%s: %d records read, %d batches acknowledged before, %d begun", a.key, records, acked, a.sent.Load())
	}
	return nil
}

func (c *crowd) scanWhole(ctx context.Context, random *rand.Rand) error {
	a := c.some(random)
	acked := a.acked.Load()
	recs, err := collect(c.db.Scan(ctx, []byte(a.key), engine.All(), engine.ScanOptions{}))
	return errors.Join(err, consecutive(recs, 0), within(a, acked, len(recs)))
}

func (c *crowd) scanLast(ctx context.Context, random *rand.Rand) error {
	a := c.some(random)
	n := 1 + random.IntN(20)
	acked := a.acked.Load()
	recs, err := collect(c.db.Scan(ctx, []byte(a.key), engine.All(), engine.ScanOptions{Last: n}))
	if err != nil || len(recs) == 0 {
		return errors.Join(err, within(a, acked, 0))
	}
	_, first := parse(recs[0])
	if len(recs) != min(n, first+len(recs)) {
		return fmt.Errorf("%s: %d records of the last %d", a.key, len(recs), n)
	}
	return errors.Join(consecutive(recs, first), within(a, acked, first+len(recs)))
}

func (c *crowd) count(ctx context.Context, random *rand.Rand) error {
	a := c.some(random)
	acked := a.acked.Load()
	n, err := c.db.Count(ctx, []byte(a.key), engine.All())
	return errors.Join(err, within(a, acked, int(n)))
}

func (c *crowd) keys(ctx context.Context, _ *rand.Rand) error {
	var must []string
	for _, a := range c.appenders {
		if a.acked.Load() > 0 {
			must = append(must, a.key)
		}
	}
	if len(must) > 0 {
		must = append(must, sharedKey)
	}
	page, err := c.db.Keys(ctx, engine.KeysOptions{})
	if err != nil {
		return err
	}
	listed := map[string]bool{}
	for i, key := range page.Keys {
		if i > 0 && string(page.Keys[i-1]) >= string(key) {
			return fmt.Errorf("keys %q out of order", page.Keys)
		}
		listed[string(key)] = true
	}
	for _, key := range must {
		if !listed[key] {
			return fmt.Errorf("keys %q lack %q", page.Keys, key)
		}
	}
	return nil
}

// together requires that what is readable is a prefix of whole batches: below the
// frontier that one scan observed, the shared key has one record for every two of the
// appenders' own.
func (c *crowd) together(ctx context.Context, _ *rand.Rand) error {
	it := c.db.Scan(ctx, []byte(sharedKey), engine.All(), engine.ScanOptions{})
	shared, err := collect(it)
	if err != nil {
		return err
	}
	var own uint64
	for _, a := range c.appenders {
		n, err := c.db.Count(ctx, []byte(a.key), engine.Between(0, it.Next()))
		if err != nil {
			return err
		}
		own += n
	}
	if own != 2*uint64(len(shared)) {
		return fmt.Errorf("below %d are %d shared records and %d own", it.Next(), len(shared), own)
	}
	return nil
}

func (c *crowd) flush(ctx context.Context, _ *rand.Rand) error { return c.db.Flush(ctx) }

// frontier requires that it never falls, and that segments stay adjacent.
func (c *crowd) frontier() func() error {
	var last uint64
	return func() error {
		f := c.db.Frontier()
		if f < last {
			return fmt.Errorf("the frontier fell from %d to %d", last, f)
		}
		last = f
		page, err := c.db.Segments(context.Background(), engine.SegmentsOptions{})
		for i, s := range page.Segments {
			if s.ID != uint32(i+1) || i > 0 && s.Start <= page.Segments[i-1].Start ||
				s.Sealed && (i+1 == len(page.Segments) || page.Segments[i+1].Start != s.End) {
				return fmt.Errorf("segments %+v", page.Segments)
			}
		}
		return err
	}
}

// follow waits for each of the appender's records and reads on from its cursor.
func (c *crowd) follow(ctx context.Context, a *appender) error {
	cursor, n := uint64(0), 0
	for n < 2*batchesAnAppender {
		if err := c.db.Wait(ctx, []byte(a.key), engine.From(cursor)); err != nil {
			return err
		}
		it := c.db.Scan(ctx, []byte(a.key), engine.From(cursor), engine.ScanOptions{Limit: 7})
		recs, err := collect(it)
		if err != nil {
			return err
		}
		if len(recs) == 0 {
			return fmt.Errorf("%s: woken at %d for nothing", a.key, cursor)
		}
		if err := consecutive(recs, n); err != nil {
			return err
		}
		n += len(recs)
		cursor = it.Next()
	}
	return nil
}
