package base

import (
	"bytes"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestRecordSize(t *testing.T) {
	require.Zero(t, (&Record{}).Size())
	require.Equal(t, 5, (&Record{Key: []byte("ab"), Value: []byte("cde"), Sequence: 1 << 40}).Size())
}

func TestCompare(t *testing.T) {
	ascending := []struct {
		key string
		seq uint64
	}{{"", 0}, {"", 9}, {"a", 0}, {"a", 1}, {"a", MaxSequence}, {"a\x00", 0}, {"b", 0}, {"\xFF", 0}}
	for i, a := range ascending {
		for j, b := range ascending {
			c := Compare([]byte(a.key), a.seq, []byte(b.key), b.seq)
			require.Equal(t, i < j, c < 0)
			require.Equal(t, i == j, c == 0)
		}
	}
}

func TestRange(t *testing.T) {
	for _, c := range []struct {
		a, b     Range
		overlaps bool
		both     Range
	}{
		{Range{0, 10}, Range{10, 20}, false, Range{10, 10}},
		{Range{0, 10}, Range{9, 20}, true, Range{9, 10}},
		{Range{0, 10}, Range{3, 5}, true, Range{3, 5}},
		{Range{0, 10}, All(), true, Range{0, 10}},
		{Range{0, 3}, Range{7, 9}, false, Range{7, 3}},
		{Range{0, 9}, Range{5, 2}, false, Range{5, 2}},
		{Range{0, 9}, Range{4, 4}, false, Range{4, 4}},
	} {
		require.Equal(t, c.overlaps, c.a.Overlaps(c.b))
		require.Equal(t, c.overlaps, c.b.Overlaps(c.a))
		require.Equal(t, c.both, c.a.Intersect(c.b))
		require.Equal(t, c.both, c.b.Intersect(c.a))
		require.Equal(t, !c.overlaps, c.both.Empty())
	}
	require.False(t, All().Empty())
	require.True(t, Range{5, 5}.Empty())
}

func TestPrefixEnd(t *testing.T) {
	for prefix, want := range map[string]string{
		"a": "b", "ab": "ac", "a\xFF": "b", "a\xFF\xFF": "b", "\x00": "\x01", "a\xFE": "a\xFF",
	} {
		end, ok := PrefixEnd([]byte(prefix))
		require.True(t, ok)
		require.Equal(t, want, string(end))
	}
	for _, prefix := range []string{"", "\xFF", "\xFF\xFF"} {
		_, ok := PrefixEnd([]byte(prefix))
		require.False(t, ok)
	}
}

// Bounds are at most 32 bytes, contain the key, and keep the order of keys.
func TestBoundsContainTheirKeys(t *testing.T) {
	key := rapid.Custom(func(t *rapid.T) []byte {
		k := bytes.Repeat([]byte{rapid.SampledFrom([]byte{0, 'k', 0xFF}).Draw(t, "fill")}, rapid.SampledFrom([]int{0, 5, 31, 32, 33, 50}).Draw(t, "n"))
		return append(k, rapid.SliceOfN(rapid.Byte(), 0, 2).Draw(t, "tail")...)
	})
	rapid.Check(t, func(t *rapid.T) { checkBounds(t, key.Draw(t, "a"), key.Draw(t, "b")) })
	// They are copies.
	k := []byte("key")
	LowerBound(k)[0] = 'x'
	up, _ := UpperBound(k)
	up[0] = 'x'
	require.Equal(t, "key", string(k))
}

func checkBounds(t interface {
	Fatal(...any)
	Fatalf(string, ...any)
}, a, b []byte) {
	if bytes.Compare(a, b) > 0 {
		a, b = b, a
	}
	lower, upper := LowerBound(a), []byte(nil)
	up, ok := UpperBound(a)
	if ok {
		upper = up
	}
	switch {
	case len(lower) > MaxBoundBytes || len(upper) > MaxBoundBytes:
		t.Fatal("bound too long")
	case bytes.Compare(lower, a) > 0 || ok && bytes.Compare(upper, a) < 0:
		t.Fatalf("%x is not within %x and %x", a, lower, upper)
	case bytes.Compare(lower, LowerBound(b)) > 0:
		t.Fatal("lower bounds out of order")
	}
	if upB, okB := UpperBound(b); okB && (!ok || bytes.Compare(upper, upB) > 0) {
		t.Fatal("upper bounds out of order")
	}
}

// FuzzBounds also compares the end of a prefix with the keys that begin with it.
func FuzzBounds(f *testing.F) {
	f.Add([]byte("key"), bytes.Repeat([]byte{0xFF}, 33))
	f.Add(bytes.Repeat([]byte("k"), 32), bytes.Repeat([]byte("k"), 33))
	f.Add([]byte{}, []byte{0xFF, 0xFF})
	f.Fuzz(func(t *testing.T, a, b []byte) {
		checkBounds(t, a, b)
		end, ok := PrefixEnd(a)
		within := bytes.Compare(b, a) >= 0 && (!ok || bytes.Compare(b, end) < 0)
		require.Equal(t, bytes.HasPrefix(b, a), within)
	})
}

func TestCorruptError(t *testing.T) {
	err := fmt.Errorf("read table: %w", Corruptf("trees/x", 42, "checksum %d", 7))
	require.ErrorIs(t, err, ErrCorrupt)
	require.EqualError(t, err, "read table: corrupt object trees/x at offset 42: checksum 7")
	var ce *CorruptError
	require.True(t, errors.As(err, &ce))
	require.Equal(t, int64(42), ce.Offset)
	require.NotErrorIs(t, errors.New("other"), ErrCorrupt)
}
