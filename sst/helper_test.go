package sst

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/internal/base"
)

var testID = base.ULID{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}

// memSource serves ranges of a body and notes them.
type memSource struct {
	body []byte

	mu    sync.Mutex
	reads [][2]int64 // offset, length
}

func (s *memSource) ReadRange(ctx context.Context, off, n int64) ([]byte, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	s.mu.Lock()
	s.reads = append(s.reads, [2]int64{off, n})
	s.mu.Unlock()
	if off < 0 || n < 0 || off > int64(len(s.body)) || n > int64(len(s.body))-off {
		return nil, fmt.Errorf("range %d+%d is outside %d bytes", off, n, len(s.body))
	}
	return bytes.Clone(s.body[off : off+n]), nil
}

// take returns how many reads of metadata and of data there were since the last call.
func (s *memSource) take(metaOffset int64) (meta, data int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.reads {
		if r[0] >= metaOffset {
			meta++
		} else {
			data++
		}
	}
	s.reads = nil
	return meta, data
}

// mapCache keeps everything.
type mapCache struct {
	mu sync.Mutex
	m  map[BlockKey]Block
}

func newMapCache() *mapCache { return &mapCache{m: map[BlockKey]Block{}} }

func (c *mapCache) Get(k BlockKey) (Block, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	b, ok := c.m[k]
	return b, ok
}

func (c *mapCache) Put(k BlockKey, b Block, _ bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if b.MemoryBytes() <= 0 {
		panic("a block without size")
	}
	c.m[k] = b
}

// lossyCache forgets half of what it is given, and half of that a bit later.
type lossyCache struct {
	mapCache
	rng *rand.Rand
}

func newLossyCache(seed uint64) *lossyCache {
	return &lossyCache{mapCache{m: map[BlockKey]Block{}}, rand.New(rand.NewPCG(seed, 0))}
}

func (c *lossyCache) Get(k BlockKey) (Block, bool) {
	b, ok := c.mapCache.Get(k)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.rng.IntN(4) == 0 {
		delete(c.m, k)
		return nil, false
	}
	return b, ok
}

func (c *lossyCache) Put(k BlockKey, b Block, meta bool) {
	c.mu.Lock()
	lose := c.rng.IntN(2) == 0
	c.mu.Unlock()
	if !lose {
		c.mapCache.Put(k, b, meta)
	}
}

// write builds a table of recs, which must be in order.
func write(opts WriterOptions, recs []base.Record) ([]byte, Info) {
	if opts.ID == (base.ULID{}) {
		opts.ID = testID
	}
	w := NewWriter(opts)
	for _, r := range recs {
		w.Add(r.Key, r.Sequence, r.Timestamp, r.Value)
	}
	return w.Finish()
}

// dataCodecs counts the data blocks of a table by their codec.
func dataCodecs(t require.TestingT, r *Reader, body []byte) map[codec]int {
	n := map[codec]int{}
	for c := r.indexCursor(); ; {
		ok, err := c.next(context.Background())
		require.NoError(t, err)
		if !ok {
			return n
		}
		ref := c.ref()
		n[codec(body[ref.end()-trailerSize])]++
	}
}

func readerOptions(body []byte, info Info) (ReaderOptions, *memSource) {
	src := &memSource{body: body}
	return ReaderOptions{Name: "test.sst", ID: testID, Size: info.Size, MetaOffset: info.MetaOffset, Source: src}, src
}

func open(t testing.TB, body []byte, info Info, cache Cache) (*Reader, *memSource) {
	t.Helper()
	opts, src := readerOptions(body, info)
	opts.Cache = cache
	r, err := Open(context.Background(), opts)
	require.NoError(t, err)
	return r, src
}

// collect returns all records of an iterator that must not fail.
func collect(t require.TestingT, it interface {
	Next(context.Context) (base.Record, bool, error)
}) []base.Record {
	var out []base.Record
	for {
		rec, ok, err := it.Next(context.Background())
		require.NoError(t, err)
		if !ok {
			return out
		}
		out = append(out, rec)
	}
}

func requireRecords(t require.TestingT, want, got []base.Record, msg ...any) {
	if len(want) == len(got) {
		same := true
		for i := range want {
			w, g := &want[i], &got[i]
			same = same && bytes.Equal(w.Key, g.Key) && bytes.Equal(w.Value, g.Value) && w.Sequence == g.Sequence && w.Timestamp == g.Timestamp
		}
		if same {
			return
		}
	}
	require.Equal(t, summary(want), summary(got), msg...)
	require.Fail(t, "records differ in their values", msg...)
}

func summary(recs []base.Record) []string {
	var out []string
	for _, r := range recs {
		out = append(out, fmt.Sprintf("%q %d %d %d", r.Key, r.Sequence, r.Timestamp, len(r.Value)))
	}
	return out
}

// random makes n bytes that do not compress.
func random(rng *rand.Rand, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(rng.Uint32())
	}
	return b
}

// halfRandom makes n bytes that compress about 2:1.
func halfRandom(rng *rand.Rand, n int) []byte {
	b := make([]byte, n)
	for i := 0; i < n; i += 32 {
		copy(b[i:], random(rng, min(16, n-i)))
	}
	return b
}

// stream makes n records spread over keys by pick, with rising sequences and
// timestamps, in table order.
func stream(n int, pick func(i int) []byte, value func(i int) []byte) []base.Record {
	recs := make([]base.Record, n)
	for i := range recs {
		recs[i] = base.Record{Key: pick(i), Value: value(i), Sequence: uint64(i) + 100, Timestamp: 1_700_000_000_000 + int64(i/3)}
	}
	sortRecords(recs)
	return recs
}

func sortRecords(recs []base.Record) {
	slices.SortStableFunc(recs, func(a, b base.Record) int {
		return base.Compare(a.Key, a.Sequence, b.Key, b.Sequence)
	})
}

func ofKey(recs []base.Record, key []byte, rng base.Range) []base.Record {
	var out []base.Record
	for _, r := range recs {
		if bytes.Equal(r.Key, key) && r.Sequence >= rng.Start && r.Sequence < rng.End {
			out = append(out, r)
		}
	}
	return out
}
