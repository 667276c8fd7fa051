package manifest

import (
	"fmt"
	"testing"
)

// sized returns the full size of a benchmark's data; with -short, when one iteration shows that the
// benchmark still works, a small one.
func sized(full, short int) int {
	if testing.Short() {
		return short
	}
	return full
}

func BenchmarkHashKey(b *testing.B) {
	key := []byte("user-0123456789abcdef")
	for b.Loop() {
		HashKey(key)
	}
}

// indexedKeys are in the index of a benchmark.
func indexedKeys() int { return sized(1_000_000, 50_000) }

// largeIndex has all of them, in 64 segments.
func largeIndex(b *testing.B) (index, contents) {
	c := someContents(1, indexedKeys(), MaxGroupSegments)
	return c.build(b, indexID(1), 1, 0, MaxGroupSegments, 256, nil), c
}

func BenchmarkLookup(b *testing.B) {
	x, c := largeIndex(b)
	shard := x.shard(b, x.line.Shape(), 3)
	first, _ := shard.Hashes()
	step := KeyHash(1) << (x.line.Shape().shift() - 10)
	b.Run("miss", func(b *testing.B) {
		i := KeyHash(0)
		for b.Loop() {
			shard.Lookup(first + i%1024*step)
			i++
		}
	})
	b.Run("hit", func(b *testing.B) {
		i := 0
		for b.Loop() {
			h, _ := shard.Entry(i % shard.Len())
			if mask, _ := shard.Lookup(h); mask == 0 {
				b.Fatal(c[h])
			}
			i++
		}
	})
}

func BenchmarkParseShard(b *testing.B) {
	x, _ := largeIndex(b)
	off, n := x.line.Shape().Range(3)
	b.SetBytes(n)
	for b.Loop() {
		if _, err := ParseShard(x.id, x.line.Shape(), off, x.body[off:off+n]); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkParseIndex(b *testing.B) {
	x, _ := largeIndex(b)
	tail := x.body[len(x.body)-IndexTailBytes:]
	for b.Loop() {
		if _, err := ParseIndex(x.id, int64(len(x.body)), tail); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkParseList256Tables(b *testing.B) {
	x, _ := largeIndex(b)
	opened := x.open(b)
	frame := x.list(opened, 7)
	b.SetBytes(int64(len(frame)))
	for b.Loop() {
		if _, err := opened.ParseList(7, frame); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkIndexBuilder(b *testing.B) {
	for _, segments := range []int{1, 64} {
		b.Run(fmt.Sprintf("%d segments", segments), func(b *testing.B) {
			n := indexedKeys()
			c := someContents(1, n, segments)
			lines, keys := c.segmentsFor(1, 0, segments, 1)
			hashes := c.hashes()
			masks := make([]uint64, len(hashes))
			for i, h := range hashes {
				masks[i] = c[h]
			}
			b.ReportAllocs()
			for b.Loop() {
				x := NewIndexBuilder(lines)
				for i, k := range keys {
					x.SetKeys(i, k)
				}
				for i, h := range hashes {
					x.Add(h, masks[i])
				}
				body, _, err := x.Finish(indexID(1))
				if err != nil {
					b.Fatal(err)
				}
				b.SetBytes(int64(len(body)))
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*n), "ns/key")
		})
	}
}
