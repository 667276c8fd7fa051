package engine

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/annalsdb/annals/internal/base"
	"github.com/annalsdb/annals/manifest"
	"github.com/annalsdb/annals/objstore"
)

// consolidated makes a log of sealed segments of one table each, all in groups of up to size, and
// one active segment. Each segment holds the keys that keysOf returns.
func consolidated(t testing.TB, segments, size int, keysOf func(segment int) []string) *layout {
	l := newLayout(t)
	for s := range segments {
		keys := keysOf(s)
		l.segment(true, l.records(len(keys), func(i int) (string, string) { return keys[i], fmt.Sprint("value ", s, i) }))
	}
	for n := segments; n > 0; n -= min(n, size) {
		l.group(min(n, size))
	}
	l.segment(false)
	return l
}

// The target of the design: a key that one of 1,000 consolidated segments holds costs, cold, at most 20
// GETs of metadata and 1 of data, in both directions; and none when it is warm.
func TestCostOfASparseKey(t *testing.T) {
	const segments, holder = 1000, 700
	l := consolidated(t, segments, 64, func(s int) []string {
		keys := []string{fmt.Sprint("common", s%3)}
		for i := range 20 {
			keys = append(keys, fmt.Sprintf("key %d %d", s, i))
		}
		if s == holder {
			keys = append(keys, "sparse", "sparse")
		}
		return keys
	})
	require.Len(t, l.state.Groups, 16)
	want := l.want("sparse", All())
	require.Len(t, want, 2)
	for name, read := range map[string]func(c *core) []Record{
		"all":     func(c *core) []Record { return scan(t, c, "sparse", All(), ScanOptions{}) },
		"last=10": func(c *core) []Record { return scan(t, c, "sparse", All(), ScanOptions{Last: 10}) },
		"limit=10": func(c *core) []Record {
			return scan(t, c, "sparse", All(), ScanOptions{Limit: 10})
		},
		"count": func(c *core) []Record {
			n, err := c.Count(t.Context(), []byte("sparse"), All())
			require.NoError(t, err)
			require.EqualValues(t, 2, n)
			return want
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := l.metered()
			c := l.open(m, 64<<20)
			requireSame(t, want, read(c))
			meta, data := m.gets()
			require.LessOrEqual(t, meta, 20)
			require.LessOrEqual(t, data, 1)
			require.GreaterOrEqual(t, meta, 16+2, "a shard of each group, the index's tail, a table")
			m.reset()
			requireSame(t, want, read(c))
			meta, data = m.gets()
			require.Zero(t, meta+data, "warm")
		})
	}
}

// small makes a log of three groups of four segments; "k" is in all of them.
func small(t testing.TB) *layout {
	l := newLayout(t)
	oneEach(l, 12)
	for range 3 {
		l.group(4)
	}
	l.segment(false)
	return l
}

// allReads reads the log in every way and returns the errors, by what was read.
func allReads(c *core) map[string]error {
	ctx := context.Background()
	errs := map[string]error{}
	for name, o := range map[string]ScanOptions{"scan": {}, "scan backward": {Last: 100}} {
		it := c.Scan(ctx, []byte("k"), All(), o)
		for range it.All() {
		}
		errs[name] = it.Err()
	}
	_, errs["count"] = c.Count(ctx, []byte("k"), All())
	_, errs["keys"] = c.Keys(ctx, KeysOptions{})
	_, errs["segments"] = c.Segments(ctx, SegmentsOptions{})
	return errs
}

// A missing object that the log still needs is damage, and the error names it; one that it does
// not need any more is no error: the read goes on with what the log is now.
func TestMissingObjectsOfGroups(t *testing.T) {
	index := func(l *layout) base.ObjectID { return l.state.Groups[0].Index.ID() }
	table := func(l *layout) base.ObjectID { return l.full[2].Runs[0].Tables[0].Ref.ID() }
	for name, c := range map[string]struct {
		gone    func(l *layout) base.ObjectID
		refresh func(l *layout) // what became of the log meanwhile
		damage  bool
		needs   []string // the reads that need the object
	}{
		"index":                   {index, func(*layout) {}, true, []string{"scan", "scan backward", "count", "keys", "segments"}},
		"index, regrouped":        {index, func(l *layout) { l.regroup(0, 3) }, false, nil},
		"index, dropped":          {index, func(l *layout) { l.trim(4) }, false, nil},
		"index, trimmed":          {index, func(l *layout) { l.trimLine(2) }, true, []string{"scan", "scan backward", "count", "keys", "segments"}},
		"table":                   {table, func(*layout) {}, true, []string{"scan", "scan backward", "count", "keys"}},
		"table, regrouped":        {table, func(l *layout) { l.regroup(0, 3) }, true, []string{"scan", "scan backward", "count", "keys"}},
		"table, dropped":          {table, func(l *layout) { l.trim(4) }, false, nil},
		"table, trimmed":          {table, func(l *layout) { l.trim(2) }, false, nil},
		"table, trimmed below it": {table, func(l *layout) { l.trim(1) }, true, []string{"scan", "scan backward", "count", "keys"}},
	} {
		t.Run(name, func(t *testing.T) {
			l := small(t)
			core := l.open(l.store, 1)
			id := c.gone(l)
			refreshes := 0
			core.refresh = func(context.Context) error {
				if refreshes++; refreshes == 1 {
					c.refresh(l)
				}
				core.publish(l.view())
				return nil
			}
			require.NoError(t, l.store.Delete(t.Context(), []string{id.Name()}))
			for read, err := range allReads(core) {
				if !slices.Contains(c.needs, read) {
					require.NoError(t, err, read)
					continue
				}
				require.ErrorIs(t, err, ErrCorrupt, read)
				require.ErrorIs(t, err, objstore.ErrNotFound, read)
				require.ErrorContains(t, err, id.Name(), read)
			}
			require.NotZero(t, refreshes)
			if !c.damage {
				requireSame(t, l.want("k", From(core.FirstSequence())), scan(t, core, "k", All(), ScanOptions{}))
			}
		})
	}
}

// A wrong byte anywhere in an index gives an error that names it, or is not read; it never gives a wrong result.
func TestWrongBytesOfAnIndex(t *testing.T) {
	l := small(t)
	clean := allResults(t, l.open(l.store, 1))
	name := l.state.Groups[1].Index.ID().Name()
	obj, err := l.store.Get(t.Context(), name, objstore.GetOptions{})
	require.NoError(t, err)
	failed := 0
	for at := 0; at < len(obj.Body); at += 1 + at%3 {
		store := &flipped{Store: l.store, name: name, at: int64(at)}
		for read, err := range allReads(l.open(store, 1)) {
			if err == nil {
				continue
			}
			failed++
			var corrupt *base.CorruptError
			if !errors.Is(err, manifest.ErrVersion) {
				require.ErrorAs(t, err, &corrupt, "byte %d, %s", at, read)
				require.Equal(t, name, corrupt.Object)
				require.Less(t, corrupt.Offset, int64(len(obj.Body)))
			}
		}
		if at%20 == 0 { // right whatever was cached before the byte turned
			c := l.open(l.store, 1<<20)
			require.Equal(t, clean, allResults(t, c))
			c.tables.store = store
			require.Equal(t, clean, allResults(t, c))
		}
	}
	require.Greater(t, failed, len(obj.Body)/2, "most bytes matter to several reads")
}

func allResults(t *testing.T, c *core) string {
	page, err := c.Keys(t.Context(), KeysOptions{})
	require.NoError(t, err)
	segments, err := c.Segments(t.Context(), SegmentsOptions{})
	require.NoError(t, err)
	return fmt.Sprint(scan(t, c, "k", All(), ScanOptions{}), page, segments)
}

// flipped changes one byte of an object.
type flipped struct {
	objstore.Store
	name string
	at   int64
}

func (s *flipped) Get(ctx context.Context, name string, o objstore.GetOptions) (objstore.Object, error) {
	obj, err := s.Store.Get(ctx, name, o)
	if i := s.at - o.Offset; err == nil && name == s.name && i >= 0 && i < int64(len(obj.Body)) {
		obj.Body = bytes.Clone(obj.Body)
		obj.Body[i] ^= 0x10
	}
	return obj, err
}

// An index whose key shard and contents disagree with each other, or with the MANIFEST's line, is damaged.
func TestIndexThatIsNotThatOfTheGroup(t *testing.T) {
	l := small(t)
	for name, change := range map[string]func(g *manifest.Group){
		"records":  func(g *manifest.Group) { g.Records-- },
		"tables":   func(g *manifest.Group) { g.Tables++ },
		"contents": func(g *manifest.Group) { g.TocOffset-- },
	} {
		t.Run(name, func(t *testing.T) {
			line := proto.CloneOf(l.state.Groups[1])
			change(line)
			old := l.state.Groups[1]
			l.state.Groups[1] = line
			defer func() { l.state.Groups[1] = old }()
			for read, err := range allReads(l.open(l.store, 1)) {
				require.ErrorIs(t, err, ErrCorrupt, read)
				require.ErrorContains(t, err, line.Index.ID().Name(), read)
			}
		})
	}
}

// What a disk cache keeps of indexes is not trusted more than what it keeps of tables (F35, F36).
func TestDiskCacheOfIndexes(t *testing.T) {
	l := small(t)
	dir := t.TempDir()
	m := l.metered()
	open := func() (*core, func()) {
		c := l.open(m, 1)
		life, end := context.WithCancel(t.Context())
		var running sync.WaitGroup
		require.NoError(t, c.tables.openDisk(life, func(_ string, f func()) { running.Go(f) }, dir, minDiskCacheBytes, newTroubles(slog.New(slog.DiscardHandler), c.env)))
		return c, func() { end(); running.Wait() }
	}
	c, end := open()
	clean := allResults(t, c)
	require.Eventually(t, func() bool {
		m.reset()
		require.Equal(t, clean, allResults(t, c))
		meta, data := m.gets()
		return meta+data == 0
	}, patience, time.Millisecond, "everything comes from the disk")
	end()

	// A file that holds wrong bytes under a right checksum, as if they were received so.
	changed := 0
	for _, g := range l.state.Groups {
		files, err := filepath.Glob(filepath.Join(dir, "*", "*-*-*"))
		require.NoError(t, err)
		for _, f := range files {
			k, ok := parseDiskName(filepath.Base(f))
			require.True(t, ok)
			if k.id != g.Index.ID().ULID {
				continue
			}
			b, err := os.ReadFile(f)
			require.NoError(t, err)
			body := b[diskHeader:]
			body[len(body)/2] ^= 1
			require.NoError(t, os.WriteFile(f, diskFile(k, body), 0o600))
			changed++
		}
	}
	require.Greater(t, changed, 3)
	c, end = open()
	defer end()
	for range changed { // each read tries once more
		err := errors.Join(slices.Collect(maps.Values(allReads(c)))...)
		if err == nil {
			break
		}
		require.ErrorIs(t, err, ErrCorrupt)
	}
	require.Equal(t, clean, allResults(t, c))
}

// A reader that could not look at the head for too long does not read groups either (I7).
func TestStaleGroups(t *testing.T) {
	l := small(t)
	env := newTestEnv()
	l.env = env.Env
	c := l.open(l.store, 1)
	env.advance(2 * time.Hour)
	for read, err := range allReads(c) {
		require.ErrorIs(t, err, ErrStale, read)
	}
}

// Status knows of groups what their lines say, without I/O; views count from the oldest group.
func TestViewOfGroups(t *testing.T) {
	l := small(t)
	m := l.metered()
	c := l.open(m, 1)
	require.Zero(t, c.FirstSequence())
	l.trim(5)
	c.publish(l.view())
	require.Equal(t, l.full[6].FirstSequence, c.FirstSequence())
	v := c.view.Load()
	require.Len(t, v.groupsIn(All()), 2)
	require.Len(t, v.groupsIn(From(l.full[9].FirstSequence)), 1)
	require.Empty(t, v.groupsIn(From(l.full[12].EndSequence)))
	require.Empty(t, v.groupsIn(Between(0, l.full[6].FirstSequence)))
	require.Len(t, v.groupsIn(Between(0, l.full[6].FirstSequence+1)), 1)
	meta, data := m.gets()
	require.Zero(t, meta+data)
}

// Reads go on while the log is grouped, regrouped, flushed and trimmed under them: nothing is missing and
// nothing comes twice, but what was dropped.
func TestReadsWhileTheLogChanges(t *testing.T) {
	for seed := range uint64(30) {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(seed, 4))
			l := newLayout(t)
			big := strings.Repeat("v", 60<<10) // so that a scan has many chunks
			recs := func(n int) []Record {
				return l.records(n, func(i int) (string, string) {
					return fmt.Sprint("k", rnd.IntN(2)), big + fmt.Sprint(i)
				})
			}
			for range 20 {
				l.segment(true, recs(4+rnd.IntN(8)))
			}
			l.segment(false)
			for range 6 {
				l.memory(recs(5))
			}
			c := l.open(l.store, 1<<rnd.IntN(26))
			c.refresh = func(context.Context) error { c.publish(l.view()); return nil }
			for _, o := range []ScanOptions{{}, {Last: 1000}} {
				it := c.Scan(t.Context(), []byte("k0"), All(), o)
				var got []Record
				for rec := range it.All() {
					got = append(got, rec)
					if rnd.IntN(3) == 0 {
						l.change(rnd)
						if rnd.IntN(2) == 0 {
							c.publish(l.view())
						}
					}
				}
				require.NoError(t, it.Err())
				c.publish(l.view())
				want := l.want("k0", All())
				kept := l.want("k0", From(c.FirstSequence()))
				for i, n := 0, 0; i < len(want); i++ {
					if n < len(got) && got[n].Sequence == want[i].Sequence {
						n++
						continue
					}
					require.Less(t, want[i].Sequence, c.FirstSequence(), "a record that was not dropped is missing")
				}
				requireSame(t, kept, got[len(got)-len(kept):])
				require.True(t, slices.IsSortedFunc(got, func(a, b Record) int { return cmp.Compare(a.Sequence, b.Sequence) }))
				require.LessOrEqual(t, len(got), len(want))
			}
		})
	}
}

// change makes one random step that a log makes as it ages.
func (l *layout) change(rnd *rand.Rand) {
	l.state.Version++
	sealed := len(l.state.Segments) - 1
	switch groups := l.state.Groups; rnd.IntN(6) {
	case 0, 1:
		if sealed > 0 {
			l.group(1 + rnd.IntN(sealed))
		}
	case 2:
		if len(groups) > 1 {
			from := rnd.IntN(len(groups) - 1)
			to := min(len(groups), from+2+rnd.IntN(3))
			var old []string
			for _, g := range groups[from:to] {
				old = append(old, g.Index.ID().Name())
			}
			l.regroup(from, to)
			require.NoError(l.t, l.store.Delete(context.Background(), old)) // at once: the worst case
		}
	case 3:
		if len(groups) > 0 && rnd.IntN(3) == 0 {
			l.trim(groups[0].FirstSegment + rnd.Uint32N(groups[len(groups)-1].LastSegment-groups[0].FirstSegment+1))
		}
	case 4: // a memtable is flushed, and stays for the tip
		for _, m := range l.memories[:len(l.memories)-1] {
			if m.start == l.state.FlushedEnd {
				s := l.state.Segments[sealed]
				s.Runs = append(s.Runs, l.run(s.Id, l.all[m.start:m.end]))
				break
			}
		}
	case 5: // one that stayed is let go, which changes no MANIFEST
		l.state.Version--
		if l.memories[0].end <= l.state.FlushedEnd {
			l.memories = l.memories[1:]
		}
	}
}
