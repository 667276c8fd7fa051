package state

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// sized returns the full size of a benchmark's data; with -short, when one iteration shows that the
// benchmark still works, a small one.
func sized(full, short int) int {
	if testing.Short() {
		return short
	}
	return full
}

// benchKeys are the keys of which each of the 20 consumers of a benchmark has a cursor: a million cursors.
func benchKeys() int { return sized(50_000, 2000) }

// filled returns tables with cursors of 20 consumers, with the same n keys of 16 bytes each.
func filled(n int) *Tables {
	t := New(everything)
	var key [16]byte
	for c := range 20 {
		name := fmt.Sprintf("consumer-%02d", c)
		for i := range n {
			t.SetCursor(name, benchKey(&key, i), uint64(i)*1000)
		}
	}
	return t
}

func benchKey(key *[16]byte, i int) []byte {
	copy(key[:], "user/key")
	binary.BigEndian.PutUint64(key[8:], uint64(i))
	return key[:]
}

func BenchmarkSetCursor(b *testing.B) {
	for _, name := range []string{"move", "move after a clone", "new"} {
		b.Run(name, func(b *testing.B) {
			n := benchKeys()
			t, rng := filled(n), rand.New(rand.NewPCG(1, 2))
			var key [16]byte
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				k := rng.IntN(n)
				switch name {
				case "new":
					k = n + rng.IntN(1<<30)
				case "move after a clone":
					if i%10_000 == 0 {
						t.Clone()
					}
				}
				t.SetCursor("consumer-07", benchKey(&key, k), uint64(i)+1<<40)
			}
		})
	}
}

func BenchmarkCursor(b *testing.B) {
	n := benchKeys()
	t, rng := filled(n), rand.New(rand.NewPCG(1, 2))
	var key [16]byte
	b.ReportAllocs()
	for b.Loop() {
		if _, ok := t.Cursor("consumer-07", benchKey(&key, rng.IntN(n))); !ok {
			b.Fatal("not there")
		}
	}
}

func BenchmarkMark(b *testing.B) {
	t := New(Limits{Producers: 10_000})
	names := make([]string, 20_000)
	for i := range names {
		names[i] = fmt.Sprintf("producer-%d", i)
	}
	next := make([]uint64, len(names))
	b.ReportAllocs()
	for i := uint64(0); b.Loop(); i++ {
		p := i * i % uint64(len(names))
		t.Mark(names[p], Mark{Sequence: next[p], First: i * 3, Count: 3, Timestamp: int64(i)})
		next[p]++
	}
}

func BenchmarkEncodeBase(b *testing.B) {
	t := filled(benchKeys())
	size := 0
	for b.Loop() {
		size = len(t.EncodeBase(idOf(1)))
	}
	b.ReportMetric(float64(size)/float64(20*benchKeys()), "bytes/cursor")
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(20*benchKeys()), "ns/cursor")
}

func BenchmarkDecodeBase(b *testing.B) {
	body := filled(benchKeys()).EncodeBase(idOf(1))
	for b.Loop() {
		_, err := DecodeBase("base", idOf(1), body, everything)
		require.NoError(b, err)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(20*benchKeys()), "ns/cursor")
}

// Of a million cursors, 1 in 1,000 changed.
func BenchmarkEncodeChanges(b *testing.B) {
	t := filled(benchKeys())
	t.Rebase(t.Clone())
	var key [16]byte
	for i := range 1000 {
		t.SetCursor("consumer-07", benchKey(&key, i*benchKeys()/1000), 1<<50)
	}
	for b.Loop() {
		t.EncodeChanges(idOf(2), idOf(1))
	}
}
