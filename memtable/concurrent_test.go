package memtable

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/internal/base"
)

// seqKey is the key of the record with a given sequence: every eighth a new
// one, half of the rest a hot one, so that a reader can tell what it must see.
func seqKey(seq uint64) []byte {
	switch {
	case seq%8 == 0:
		return fmt.Appendf(nil, "new %016x", seq*0x9E3779B97F4A7C15)
	case seq%2 == 0:
		return []byte("hot")
	}
	return fmt.Appendf(nil, "shared %d", seq%37)
}

func seqValue(seq uint64) []byte { return bytes.Repeat([]byte{byte(seq)}, int(seq%300)) }

// TestReadersDuringAdds has readers check every kind of read below the
// frontier while one goroutine adds and then freezes. Run it with -race.
func TestReadersDuringAdds(t *testing.T) {
	const batches, batchRecords, readers = 120, 300, 3
	table := New()
	var frontier atomic.Uint64
	var done atomic.Bool
	var wg sync.WaitGroup
	for r := range readers {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(uint64(r), 1))
			for last := false; !last; {
				last = done.Load() // one more round on the frozen table
				if !checkBelow(t, table, frontier.Load(), rnd) {
					return
				}
			}
		})
	}
	recs := make([]base.Record, batchRecords)
	for b := range uint64(batches) {
		for i := range recs {
			seq := b*batchRecords + uint64(i)
			recs[i].Key = append(recs[i].Key[:0], seqKey(seq)...)
			recs[i].Value = append(recs[i].Value[:0], seqValue(seq)...)
		}
		table.AddBatch(b*batchRecords, int64(b), recs)
		frontier.Store((b + 1) * batchRecords)
	}
	table.Freeze()
	done.Store(true)
	wg.Wait()
	require.Len(t, slices.Collect(table.All()), batches*batchRecords)
}

// checkBelow reads one random key in a random range below the frontier and
// compares with what seqKey and seqValue say. It reports success.
func checkBelow(t *testing.T, table *Table, frontier uint64, rnd *rand.Rand) bool {
	if frontier == 0 {
		return true
	}
	key := seqKey(rnd.Uint64N(frontier))
	rng := base.Range{End: 1 + rnd.Uint64N(frontier)}
	rng.Start = rng.End - min(rng.End, 4000)
	var want []uint64
	keys := map[string]bool{}
	for seq := rng.Start; seq < rng.End; seq++ {
		k := seqKey(seq)
		if bytes.Equal(k, key) {
			want = append(want, seq)
		}
		keys[string(k)] = true
	}
	var up, down []uint64
	for _, r := range table.Scan(nil, key, rng, 1<<30, 1<<40) {
		up = append(up, r.Sequence)
		if !assert.Equal(t, key, r.Key) || !assert.True(t, bytes.Equal(seqValue(r.Sequence), r.Value)) {
			return false
		}
	}
	for _, r := range table.ScanBackward(nil, key, rng, 1<<30, 1<<40) {
		down = append(down, r.Sequence)
	}
	slices.Reverse(down)
	last, ok := table.LastSequenceOf(key, rng)
	listed := table.KeysFrom(nil, nil, rng, 1<<30)
	return assert.Equal(t, want, up) && assert.Equal(t, want, down) &&
		assert.Equal(t, uint64(len(want)), table.Count(key, rng)) &&
		assert.Equal(t, len(want) > 0, ok) && (!ok || assert.Equal(t, want[len(want)-1], last)) &&
		assert.Len(t, listed, len(keys)) && assert.True(t, slices.IsSortedFunc(listed, bytes.Compare)) &&
		assert.Positive(t, table.Bytes()) && assert.GreaterOrEqual(t, table.LastSequence()+1, frontier)
}
