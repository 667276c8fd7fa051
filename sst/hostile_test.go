package sst

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"testing"

	"github.com/klauspost/compress/s2"
	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/internal/base"
)

// exercise reads a table in every way and compares each answer that is not an
// error with recs. It returns the errors.
func exercise(t *testing.T, opts ReaderOptions, recs []base.Record) []error {
	t.Helper()
	ctx := context.Background()
	opts.Cache = newMapCache()
	r, err := Open(ctx, opts)
	if err != nil {
		return []error{err}
	}
	var errs []error
	note := func(err error) bool {
		if err != nil {
			errs = append(errs, err)
		}
		return err == nil
	}
	drain := func(it interface {
		Next(context.Context) (base.Record, bool, error)
	}) ([]base.Record, bool) {
		var out []base.Record
		for {
			rec, ok, err := it.Next(ctx)
			if !note(err) || !ok {
				return out, err == nil
			}
			out = append(out, rec)
		}
	}
	if got, ok := drain(r.All(0)); ok {
		requireRecords(t, recs, got)
	}
	var keys [][]byte
	for i, rec := range recs {
		if i == 0 || !bytes.Equal(rec.Key, recs[i-1].Key) {
			keys = append(keys, rec.Key)
		}
	}
	rng := base.Range{Start: 20, End: 1010}
	for i, key := range keys {
		if i%6 != 0 && len(key) > 3 {
			continue // the short keys are the interesting ones
		}
		want := ofKey(recs, key, rng)
		if got, ok := drain(r.Scan(key, rng, Hint{})); ok {
			requireRecords(t, want, got)
		}
		if got, ok := drain(r.ScanBackward(key, rng, Hint{})); ok {
			slices.Reverse(got)
			requireRecords(t, want, got)
		}
		if n, err := r.Count(ctx, key, rng); note(err) {
			require.Equal(t, uint64(len(want)), n)
		}
		if seq, ok, err := r.SeekTimestamp(ctx, key, rng, 0); note(err) {
			require.Equal(t, len(want) > 0, ok)
			if ok {
				require.Equal(t, want[0].Sequence, seq)
			}
		}
	}
	listed := 0
	for it := r.Keys(nil); ; listed++ {
		info, ok, err := it.Next(ctx)
		if !note(err) || !ok {
			if err == nil {
				require.Equal(t, len(keys), listed)
			}
			break
		}
		require.Equal(t, keys[listed], append([]byte{}, info.Key...))
	}
	return errs
}

// TestEveryByteFlip: any wrong byte is found by Verify, and no read returns
// anything but an error or the right answer (I8, F14).
func TestEveryByteFlip(t *testing.T) {
	for _, c := range []Compression{Dense, Fast} {
		body, info := goldenTableOf(c)
		everyByteFlip(t, body, info)
	}
}

func everyByteFlip(t *testing.T, body []byte, info Info) {
	recs := goldenRecords()
	for i := range body {
		for _, mask := range []byte{0x01, 0xFF} {
			bad := bytes.Clone(body)
			bad[i] ^= mask
			opts, _ := readerOptions(bad, info)
			for _, err := range exercise(t, opts, recs) {
				require.ErrorIs(t, err, base.ErrCorrupt)
			}
			r, err := Open(context.Background(), opts)
			if err == nil {
				err = r.Verify(context.Background(), nil)
			}
			var corrupt *base.CorruptError
			require.ErrorAs(t, err, &corrupt, "byte %d", i)
			require.Equal(t, "test.sst", corrupt.Object)
		}
	}
}

// TestEveryTruncation: the same for tables that end early, whether or not the
// manifest knows.
func TestEveryTruncation(t *testing.T) {
	body, info := goldenTable()
	for n := range body {
		opts, _ := readerOptions(body[:n], info)
		require.NotEmpty(t, exercise(t, opts, goldenRecords()))
		opts.Size = int64(n)
		_, err := Open(context.Background(), opts)
		require.ErrorIs(t, err, base.ErrCorrupt)
	}
}

// shortSource breaks the contract of RangeReader: it returns too little.
type shortSource struct{ memSource }

func (s *shortSource) ReadRange(ctx context.Context, off, n int64) ([]byte, error) {
	b, err := s.memSource.ReadRange(ctx, off, n)
	return b[:len(b)-1], err
}

func TestShortReadIsAnError(t *testing.T) {
	body, info := goldenTable()
	opts, _ := readerOptions(body, info)
	opts.Source = &shortSource{memSource{body: body}}
	_, err := Open(context.Background(), opts)
	require.ErrorIs(t, err, base.ErrCorrupt)
}

// TestMisplacedBlock: intact blocks that have changed places, or belong to
// another table, fail (I8).
func TestMisplacedBlock(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	recs := stream(400, func(int) []byte { return []byte("k") }, func(int) []byte { return random(rng, 100) })
	body, info := write(WriterOptions{BlockBytes: 1000}, recs)
	r, _ := open(t, body, info, nil)
	c := r.indexCursor()
	var refs []blockRef
	for {
		ok, err := c.next(context.Background())
		require.NoError(t, err)
		if !ok {
			break
		}
		refs = append(refs, c.ref())
	}
	swapped := 0
	for i := 1; i+1 < len(refs); i++ {
		a, b := refs[i], refs[i+1]
		if a.size != b.size {
			continue
		}
		swapped++
		bad := bytes.Clone(body)
		copy(bad[a.offset:], body[b.offset:b.end()])
		copy(bad[b.offset:], body[a.offset:a.end()])
		r, _ := open(t, bad, info, nil)
		it := r.Scan([]byte("k"), base.Range{Start: a.seq, End: base.MaxSequence}, Hint{})
		_, _, err := it.Next(context.Background())
		var corrupt *base.CorruptError
		require.ErrorAs(t, err, &corrupt)
		require.Equal(t, a.offset, corrupt.Offset)
		_, _, again := it.Next(context.Background())
		require.Equal(t, err, again, "the error stays")
	}
	require.NotZero(t, swapped)

	opts, _ := readerOptions(body, info)
	opts.ID[3]++
	_, err := Open(context.Background(), opts)
	require.ErrorIs(t, err, base.ErrCorrupt)
}

func TestUnknownVersion(t *testing.T) {
	body, info := goldenTable()
	at := len(body) - footerSize
	binary.LittleEndian.PutUint32(body[at+footerVersion:], Version+1)
	opts, _ := readerOptions(body, info)
	_, err := Open(context.Background(), opts)
	require.ErrorIs(t, err, base.ErrCorrupt, "the checksum does not cover this version: damage")

	binary.LittleEndian.PutUint64(body[at+footerChecksum:], checksumFooter(body[at:], testID, int64(at)))
	_, err = Open(context.Background(), opts)
	require.ErrorIs(t, err, ErrVersion)
	require.NotErrorIs(t, err, base.ErrCorrupt)
	require.ErrorContains(t, err, "unknown sst format version 3")
}

func TestOpenRefusesImpossibleSizes(t *testing.T) {
	body, info := goldenTable()
	for _, c := range [][2]int64{
		{0, 0}, {footerSize, 1}, {-1, 5}, {math.MaxInt64, math.MaxInt64 - 100},
		{info.Size, 0}, {info.Size, -1}, {info.Size, info.Size},
		{info.Size, info.MetaOffset - 1}, {info.Size, info.MetaOffset + 1},
	} {
		opts, _ := readerOptions(body, info)
		opts.Size, opts.MetaOffset = c[0], c[1]
		_, err := Open(context.Background(), opts)
		require.Error(t, err, "size %d, metadata at %d", c[0], c[1])
	}
}

// frameOf seals a payload as the frame at offset 0.
func frameOf(payload []byte, c codec, decoded int) []byte {
	return appendTrailer(bytes.Clone(payload), 0, c, decoded, testID, 0)
}

// TestDecodedLengthIsBounded: an intact frame cannot make a reader allocate
// more than maxDecoded, nor decode to another length than it claims.
func TestDecodedLengthIsBounded(t *testing.T) {
	enc := newEncoder()
	zeros := enc.EncodeAll(make([]byte, 8<<20), nil)
	require.Less(t, maxDecoded(len(zeros)), 8<<20)
	same := s2.Encode(nil, make([]byte, 8<<20))
	require.Less(t, maxDecoded(len(same)), 8<<20)
	for _, frame := range [][]byte{
		frameOf(zeros, codecZstd, 8<<20),
		frameOf(zeros, codecZstd, maxDecoded(len(zeros))),
		frameOf(zeros, codecZstd, 0),
		frameOf(zeros, codecRaw, len(zeros)+1),
		frameOf(zeros, codecS2+1, len(zeros)),
		frameOf(same, codecS2, 8<<20),
		frameOf(same, codecS2, maxDecoded(len(same))),
		frameOf(same, codecS2, 0),
		frameOf(s2.Encode(nil, make([]byte, 100)), codecS2, 99),
		frameOf(s2.Encode(nil, make([]byte, 100)), codecS2, 101),
		frameOf(binary.AppendUvarint(nil, 1<<31), codecS2, 10),
		frameOf(nil, codecS2, 0),
		frameOf(nil, codecS2, 10),
		frameOf([]byte("nonsense"), codecS2, 10),
		frameOf(nil, codecZstd, 10),
		frameOf([]byte("nonsense"), codecZstd, 10),
		{},
		make([]byte, trailerSize),
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, _, err := decodeFrame(frame, "test.sst", testID, 0)
		runtime.ReadMemStats(&after)
		require.ErrorIs(t, err, base.ErrCorrupt)
		require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(32<<20))
	}
	// The writer keeps the bound by storing such a block raw.
	recs := []base.Record{
		{Key: []byte("a"), Value: []byte("small"), Sequence: 1},
		{Key: []byte("b"), Value: make([]byte, 16<<20), Sequence: 2},
		{Key: []byte("c"), Value: bytes.Repeat([]byte("log line "), 2_000_000), Sequence: 3},
		{Key: []byte("d"), Sequence: 4},
	}
	for _, c := range []Compression{Dense, Fast} {
		body, info := write(WriterOptions{Compression: c}, recs)
		require.Equal(t, uint64(4), info.Properties.Blocks, "a huge value is a block of its own (F42)")
		r, _ := open(t, body, info, nil)
		require.NoError(t, r.Verify(context.Background(), nil))
		requireRecords(t, recs, collect(t, r.All(0)))
		requireRecords(t, recs[1:2], collect(t, r.Scan([]byte("b"), base.All(), Hint{})))
	}
}

var errFault = errors.New("injected fault")

// faultSource fails the read with number at.
type faultSource struct {
	memSource
	at int
}

func (s *faultSource) ReadRange(ctx context.Context, off, n int64) ([]byte, error) {
	s.at--
	if s.at == -1 {
		return nil, errFault
	}
	return s.memSource.ReadRange(ctx, off, n)
}

// TestFaultSweep fails each read in turn: the caller gets the error, and a
// later try succeeds.
func TestFaultSweep(t *testing.T) {
	recs := stream(30_000, benchKey, func(int) []byte { return []byte("0123456789") })
	body, info := write(WriterOptions{}, recs)
	require.Greater(t, info.Size-info.MetaOffset, int64(wholeMetadata))
	key := recs[len(recs)/2].Key
	ctx := context.Background()
	ops := map[string]func(r *Reader) error{
		"scan":     func(r *Reader) error { _, _, err := r.Scan(key, base.All(), Hint{}).Next(ctx); return err },
		"backward": func(r *Reader) error { _, _, err := r.ScanBackward(key, base.All(), Hint{}).Next(ctx); return err },
		"count":    func(r *Reader) error { _, err := r.Count(ctx, key, base.All()); return err },
		"time":     func(r *Reader) error { _, _, err := r.SeekTimestamp(ctx, key, base.All(), 0); return err },
		"keys":     func(r *Reader) error { _, _, err := r.Keys(key).Next(ctx); return err },
		"verify":   func(r *Reader) error { return r.Verify(ctx, nil) },
	}
	for name, op := range ops {
		t.Run(name, func(t *testing.T) {
			for i := 0; ; i++ {
				opts, _ := readerOptions(body, info)
				src := &faultSource{memSource{body: body}, i}
				opts.Source = src
				r, err := Open(ctx, opts)
				if err == nil {
					err = op(r)
				}
				if src.at >= 0 {
					require.NoError(t, err)
					require.Greater(t, i, 1)
					return
				}
				require.ErrorIs(t, err, errFault, "read %d", i)
				require.ErrorContains(t, err, "test.sst")
				if r != nil {
					require.NoError(t, op(r), "a fault is not kept")
				}
			}
		})
	}
}

// TestConcurrentReaders: one Reader serves many goroutines while its cache
// loses blocks. (For the race detector.)
func TestConcurrentReaders(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	recs := stream(2000, func(i int) []byte { return benchKey(i % 20) }, func(int) []byte { return halfRandom(rng, 100) })
	body, info := write(WriterOptions{BlockBytes: 2000, PartitionBytes: 500}, recs)
	r, _ := open(t, body, info, newLossyCache(1))
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for i := range 20 {
				key := benchKey((g + i) % 20)
				want := ofKey(recs, key, base.All())
				var n int
				for it := r.Scan(key, base.All(), Hint{}); ; n++ {
					rec, ok, err := it.Next(context.Background())
					if err != nil || !ok {
						break
					}
					if !bytes.Equal(rec.Value, want[n].Value) {
						t.Errorf("record %d of key %s differs", n, key)
					}
				}
				if count, err := r.Count(context.Background(), key, base.Range{Start: 500, End: 1500}); err != nil || count != 50 {
					t.Errorf("count %d, %v", count, err)
				}
				if n != len(want) {
					t.Errorf("%d records of key %s", n, key)
				}
			}
		})
	}
	wg.Wait()
}

func TestWriterPanics(t *testing.T) {
	add := func(key string, seq uint64, ts int64, value []byte) func(*Writer) {
		return func(w *Writer) { w.Add([]byte(key), seq, ts, value) }
	}
	for name, steps := range map[string][]func(*Writer){
		"empty table":       {func(w *Writer) { w.Finish() }},
		"key order":         {add("b", 1, 1, nil), add("a", 2, 1, nil)},
		"same sequence":     {add("a", 1, 1, nil), add("a", 1, 1, nil)},
		"sequence falls":    {add("a", 2, 1, nil), add("a", 1, 1, nil)},
		"timestamp falls":   {add("a", 1, 2, nil), add("a", 2, 1, nil)},
		"sequence too high": {add("a", base.MaxSequence, 1, nil)},
		"key too long":      {add(string(make([]byte, MaxKeyBytes+1)), 1, 1, nil)},
		"add after finish":  {add("a", 1, 1, nil), func(w *Writer) { w.Finish() }, add("b", 2, 1, nil)},
		"finish twice":      {add("a", 1, 1, nil), func(w *Writer) { w.Finish() }, func(w *Writer) { w.Finish() }},
	} {
		t.Run(name, func(t *testing.T) {
			w := NewWriter(WriterOptions{ID: testID})
			last := len(steps) - 1
			for _, step := range steps[:last] {
				step(w)
			}
			require.Panics(t, func() { steps[last](w) })
		})
	}
}

// TestEstimatedSize: callers cut tables by it, so it must be near, from above
// rather than from below.
func TestEstimatedSize(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	for _, c := range []struct{ keys, size int }{{1, 1000}, {100, 100}, {20_000, 20}} {
		t.Run(fmt.Sprint(c), func(t *testing.T) {
			w := NewWriter(WriterOptions{ID: testID})
			for _, r := range stream(20_000, func(i int) []byte { return benchKey(i % c.keys) }, func(int) []byte { return halfRandom(rng, c.size) }) {
				w.Add(r.Key, r.Sequence, r.Timestamp, r.Value)
			}
			estimate := w.EstimatedSize()
			require.Equal(t, uint64(20_000), w.Records())
			_, info := w.Finish()
			require.InEpsilon(t, float64(info.Size), float64(estimate), 0.05)
		})
	}
}
