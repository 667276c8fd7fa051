package base

import (
	"encoding/binary"
	"encoding/hex"
	"testing"

	"github.com/cespare/xxhash/v2"
	"github.com/stretchr/testify/require"
)

// The values are part of every format: they must never change.
func TestChecksumValues(t *testing.T) {
	require.Equal(t, uint64(0xef46db3751d8e999), Seed(nil), "xxhash64 of nothing with seed 0")
	require.Equal(t, uint64(0xef46db3751d8e999), Checksum(0))
	require.Equal(t, uint64(0x44bc2cf5ad770999), Checksum(0, []byte("abc")), "xxhash64's own test value")

	// A seed is the hash of the id and the numbers, laid out as documented.
	want := append([]byte("id"), 1, 0, 0, 0, 0, 0, 0, 0)
	want = binary.LittleEndian.AppendUint64(want, 1<<63)
	require.Equal(t, xxhash.Sum64(want), Seed([]byte("id"), 1, 1<<63))
}

func TestChecksumTellsPlacesApart(t *testing.T) {
	seen := map[uint64]string{}
	for _, id := range []string{"", "a", "b", "ab"} {
		for _, place := range [][]uint64{nil, {0}, {1}, {0, 1}, {1, 0}} {
			sum := Checksum(Seed([]byte(id), place...), []byte("same block"))
			require.NotContains(t, seen, sum)
			seen[sum] = hex.EncodeToString([]byte(id))
		}
	}
}

func TestChecksumOfPartsIsThatOfTheWhole(t *testing.T) {
	whole := make([]byte, 100)
	for i := range whole {
		whole[i] = byte(i * 7)
	}
	for cut := range whole {
		require.Equal(t, Checksum(9, whole), Checksum(9, whole[:cut], nil, whole[cut:]))
	}
}

func BenchmarkChecksum64KiB(b *testing.B) {
	block := make([]byte, 64<<10)
	b.SetBytes(int64(len(block)))
	for b.Loop() {
		Checksum(1, block)
	}
}
