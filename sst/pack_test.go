package sst

import (
	"context"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/internal/base"
)

// literals makes records of which zstd finds no match for a half: random bytes, or random letters,
// which entropy coding makes smaller.
func literals(rng *rand.Rand, n, seq int, letters bool) []base.Record {
	recs := make([]base.Record, n)
	for i := range recs {
		v := random(rng, 512)
		for j := range v {
			if letters {
				v[j] = 'a' + v[j]%16
			}
		}
		recs[i] = base.Record{Key: []byte("k"), Value: append(v, make([]byte, 512)...), Sequence: uint64(seq + i)}
	}
	return recs
}

// TestEntropyCodingIsProbed: blocks of bytes without a pattern do without entropy coding, and the
// first ones with a pattern find out.
func TestEntropyCodingIsProbed(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	const each = 2 * probeEvery * 32 // 32 records are a block: two probes
	recs := append(literals(rng, each, 0, false), literals(rng, each, each, true)...)
	w := NewWriter(WriterOptions{ID: testID})
	for i, rec := range recs {
		w.Add(rec.Key, rec.Sequence, rec.Timestamp, rec.Value)
		switch i {
		case each / 4:
			require.Nil(t, w.pack.plain, "a small table needs no second encoder")
		case each - 1:
			require.True(t, w.pack.useless)
		}
	}
	body, info := w.Finish()
	require.False(t, w.pack.useless)
	r, _ := open(t, body, info, nil)
	require.NoError(t, r.Verify(context.Background(), nil))
	requireRecords(t, recs, collect(t, r.All(0)))
	// Random halves stay, letters take a half of theirs; the blocks up to the next probe missed that.
	require.Less(t, info.Size, int64(each)*(512+256+100)+int64(probeEvery)*32*256)
}

// TestProbeKeepsNoLargeMemory: a value of many MiB may be the one that is encoded twice.
func TestProbeKeepsNoLargeMemory(t *testing.T) {
	var p packer
	p.blocks = probeEvery - 1
	b, c := p.appendData(nil, append(random(rand.New(rand.NewPCG(1, 1)), 1<<20), make([]byte, 3<<20)...))
	require.Equal(t, codecZstd, c)
	require.Less(t, len(b), 2<<20)
	require.NotNil(t, p.plain)
	require.LessOrEqual(t, cap(p.probe), keepDecoded)
}
