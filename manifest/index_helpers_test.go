package manifest

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/annalsdb/annals/internal/base"
)

// indexID names an index of the compactor of epoch 1 of tree 7.
func indexID(n int) base.ObjectID {
	return base.ObjectID{Tree: 7, Kind: base.KindIndex, Role: base.RoleCompactor, Epoch: 1, ULID: base.ULID(id16(n))}
}

// sealedSegment has one run of the window, in so many tables of a record a sequence.
func sealedSegment(id uint32, first, end uint64, tables int) *Segment {
	r := &Run{Id: id16(int(id)), Start: first, End: end}
	for i := range tables {
		n := uint64(tables)
		tb := table(1000*int(id)+i, first+uint64(i)*(end-first)/n, first+uint64(i+1)*(end-first)/n-1)
		tb.Keys = tb.Records
		tb.LowerKey, tb.UpperKey = []byte{byte(i >> 8), byte(i)}, []byte{byte(i >> 8), byte(i), 1}
		r.Tables = append(r.Tables, tb)
	}
	return &Segment{Id: id, FirstSequence: first, StartTimeMs: int64(10 * id), Sealed: true, EndSequence: end,
		SealTimeMs: int64(1000 + id), Runs: []*Run{r}}
}

// contents is what an index is to answer: by hash the segments that hold such a key.
type contents map[KeyHash]uint64

// hashes returns them in order.
func (c contents) hashes() []KeyHash {
	out := make([]KeyHash, 0, len(c))
	for h := range c {
		out = append(out, h)
	}
	slices.Sort(out)
	return out
}

// segmentsFor returns neighbouring segments from an id on that are just large enough for the hashes.
func (c contents) segmentsFor(firstID uint32, start uint64, n, tables int) (segments []*Segment, keys []uint64) {
	keys = make([]uint64, n)
	for _, mask := range c {
		for i := range keys {
			keys[i] += mask >> i & 1
		}
	}
	for i := range n {
		end := start + max(keys[i], uint64(tables))
		s := sealedSegment(firstID+uint32(i), start, end, tables)
		segments, start = append(segments, s), end
		keys[i] = end - s.FirstSequence // some of them collide
	}
	return segments, keys
}

// index is a built index and what it was built from.
type index struct {
	id       base.ObjectID
	segments []*Segment
	want     contents
	body     []byte
	line     *Group
}

// build makes an index of the contents. change may add to the builder before it is finished.
func (c contents) build(t testing.TB, id base.ObjectID, firstID uint32, start uint64, n, tables int, change func(*IndexBuilder)) index {
	t.Helper()
	segments, keys := c.segmentsFor(firstID, start, n, tables)
	b := NewIndexBuilder(segments)
	if change != nil {
		change(b)
	}
	for i, k := range keys {
		b.SetKeys(i, k)
	}
	for _, h := range c.hashes() {
		b.Add(h, c[h])
	}
	body, line, err := b.Finish(id)
	require.NoError(t, err)
	return index{id, segments, c, body, line}
}

// open opens the index by its tail, and checks its line.
func (x index) open(t testing.TB) *Index {
	t.Helper()
	size := int64(len(x.body))
	opened, err := ParseIndex(x.id, size, x.body[size-min(size, IndexTailBytes):])
	require.NoError(t, err)
	require.NoError(t, opened.Check(x.line))
	return opened
}

// shard reads one key shard.
func (x index) shard(t testing.TB, shape Shape, i int) *Shard {
	t.Helper()
	off, n := shape.Range(i)
	s, err := ParseShard(x.id, shape, off, x.body[off:off+n])
	require.NoError(t, err)
	return s
}

// reader returns a lookup that does what a reader does with the line alone.
func (x index) reader(t testing.TB) func(KeyHash) (uint64, bool) {
	shards := map[int64]*Shard{}
	return func(h KeyHash) (uint64, bool) {
		off, n := ShardRange(x.line, h)
		if shards[off] == nil {
			s, err := ParseShard(x.id, x.line.Shape(), off, x.body[off:off+n])
			require.NoError(t, err)
			shards[off] = s
		}
		return shards[off].Lookup(h)
	}
}

// someContents has n hashes, each in one or a few of the segments; each segment has one.
func someContents(seed uint64, n, segments int) contents {
	rng := rand.New(rand.NewPCG(seed, 2))
	c := make(contents, n)
	for i := range max(n, segments) {
		mask := uint64(1) << (i % segments)
		for range rng.IntN(3) {
			mask |= 1 << rng.IntN(segments)
		}
		c[KeyHash(rng.Uint64())&maxHash] |= mask
	}
	return c
}

// bump changes a number of a message.
func bump(m protoreflect.Message, f protoreflect.FieldDescriptor) {
	switch f.Kind() {
	case protoreflect.Uint32Kind:
		m.Set(f, protoreflect.ValueOfUint32(uint32(m.Get(f).Uint())+1))
	case protoreflect.Uint64Kind:
		m.Set(f, protoreflect.ValueOfUint64(m.Get(f).Uint()+1))
	case protoreflect.Int64Kind:
		m.Set(f, protoreflect.ValueOfInt64(m.Get(f).Int()+1))
	default:
		panic("field " + string(f.Name()))
	}
}

// sortBy sorts by a number, stably.
func sortBy[T any](s []T, key func(T) KeyHash) {
	slices.SortStableFunc(s, func(a, b T) int { return cmp.Compare(key(a), key(b)) })
}

// trimRight makes map keys with trailing spaces, which tell equal texts apart, the texts.
func trimRight(s string) string { return strings.TrimRight(s, " ") }
