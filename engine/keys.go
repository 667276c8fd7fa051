package engine

import (
	"bytes"
	"container/heap"
	"context"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/annalsdb/annals/internal/base"
	"github.com/annalsdb/annals/manifest"
	"github.com/annalsdb/annals/sst"
	"github.com/annalsdb/annals/trace"
)

// A page of keys is merged from the key directories of tables and the keys in memory. Its memory does not
// depend on how many of either there are (I9): keysBatch sources are merged at a time, with what
// the page holds so far, and only the page's smallest keys are kept.
const (
	// keysBatch is how many sources are open at the same time; of the tables of a run, which follow one
	// another in key order, one at a time is.
	keysBatch = 64
	// Of a source firstKeys keys are read at first, then twice as many each time, up to maxKeys.
	firstKeys = 16
	maxKeys   = 256
	// keysReadAhead is how much of a key directory one request reads.
	keysReadAhead = 128 << 10
	// maxKeysBytes bounds the keys of one page, beside their number.
	maxKeysBytes = 4 << 20
	// keysGroups is how many groups are looked into at the same time.
	keysGroups = 16
)

// Keys implements LogReader.
func (c *core) Keys(ctx context.Context, o KeysOptions) (KeysPage, error) {
	if err := c.stopped(); err != nil {
		return KeysPage{}, err
	}
	if !c.keys.overlapsPrefix(o.Prefix) {
		return KeysPage{}, fmt.Errorf("list keys with prefix %.64q: %w: %s", o.Prefix, ErrOutOfRange, c.keys)
	}
	ctx, span := trace.Begin(c.tracer, ctx, trace.Keys)
	span.Key("prefix", o.Prefix)
	frontier := c.frontier.Load()
	var page KeysPage
	err := c.withView(ctx, func(v *view) error {
		l := newKeyLister(c, o)
		err := l.list(ctx, v, Between(0, frontier))
		page = KeysPage{Keys: l.page.keys, More: l.page.more}
		return err
	})
	span.Int("keys", int64(len(page.Keys)))
	span.End(err)
	if err != nil {
		return KeysPage{}, err
	}
	return page, nil
}

// keysWithin lists, like Keys, keys that have a record in the range, which lies below the frontier. A page has
// about maxBytes of keys at most.
func (c *core) keysWithin(ctx context.Context, o KeysOptions, r Range, maxBytes int) (KeysPage, error) {
	var page KeysPage
	err := c.withView(ctx, func(v *view) error {
		l := newKeyLister(c, o)
		l.page.maxBytes = maxBytes
		err := l.list(ctx, v, r)
		page = KeysPage{Keys: l.page.keys, More: l.page.more}
		return err
	})
	return page, err
}

// keyLister makes one page of keys. It belongs to one goroutine.
type keyLister struct {
	c     *core
	p     parallel
	o     KeysOptions
	rng   Range  // keys without a record in it are left out
	start []byte // the least key asked for
	end   []byte // above all keys asked for; nil: no upper end
	page  keyPage
	batch []*keySource // not yet merged into page
}

func newKeyLister(c *core, o KeysOptions) *keyLister {
	l := &keyLister{c: c, p: parallel{c: c}, o: o, start: o.Prefix, page: keyPage{limit: pageLimit(o.Limit), maxBytes: maxKeysBytes}}
	if o.After != nil {
		if next := append(bytes.Clone(o.After), 0); bytes.Compare(next, l.start) > 0 {
			l.start = next // the smallest key behind After
		}
	}
	l.end, _ = base.PrefixEnd(o.Prefix)
	// A scoped replica lists the keys of its range only.
	if bytes.Compare(c.keys.Start, l.start) > 0 {
		l.start = c.keys.Start
	}
	if c.keys.End != nil && (l.end == nil || bytes.Compare(c.keys.End, l.end) < 0) {
		l.end = c.keys.End
	}
	return l
}

// beyond reports whether the key, and with it every larger one, is not asked for. Of those from
// start on that are below end all have the prefix.
func (l *keyLister) beyond(key []byte) bool { return l.end != nil && bytes.Compare(key, l.end) >= 0 }

// keyPage is the smallest keys of those that were merged so far.
type keyPage struct {
	limit    int
	maxBytes int
	keys     [][]byte
	bytes    int
	more     bool // there are larger ones too
}

// add appends a key that is above all others, or notes that there is one if the page is full.
func (p *keyPage) add(key []byte) bool {
	if len(p.keys) == p.limit || p.bytes >= p.maxBytes {
		p.more = true
		return false
	}
	p.keys = append(p.keys, key)
	p.bytes += len(key)
	return true
}

// excludes reports whether nothing from key on can be on the page.
func (p *keyPage) excludes(key []byte) bool {
	return p.more && bytes.Compare(key, p.keys[len(p.keys)-1]) > 0
}

// list merges all sources of the segments asked for.
func (l *keyLister) list(ctx context.Context, v *view, r Range) error {
	l.rng = r
	if err := l.listGroups(ctx, v.groupsIn(v.onDisk(r))); err != nil {
		return err
	}
	runs := v.runsIn(v.onDisk(r))
	for i := range runs {
		if !l.o.wants(runs[i].segment, runs[i].lastSegment) {
			continue
		}
		if err := l.add(ctx, &keySource{run: &runs[i]}); err != nil {
			return err
		}
	}
	for i := range v.memories {
		mr := v.memoryRange(i, r)
		if mr.Empty() {
			continue
		}
		if first, last, err := l.spanOf(ctx, v, v.memories[i].segment); err != nil {
			return err
		} else if !l.o.wants(first, last) {
			continue
		}
		keys := v.memories[i].table.KeysFrom(nil, l.start, mr, l.page.limit+1)
		for len(keys) > 0 && l.beyond(keys[len(keys)-1]) {
			keys = keys[:len(keys)-1]
		}
		if err := l.add(ctx, &keySource{keys: keys, drained: true}); err != nil {
			return err
		}
	}
	return l.merge(ctx)
}

// spanOf returns the ids that the segment spans which now holds what was appended to a segment: others
// may have been merged with it since.
func (l *keyLister) spanOf(ctx context.Context, v *view, id uint32) (first, last uint32, err error) {
	for _, s := range v.segments {
		if s.GetId() <= id && id <= s.Last() {
			return s.GetId(), s.Last(), nil
		}
	}
	for i := range v.groups {
		if !v.groups[i].holdsSegment(id) || l.o.StartSegment == 0 && l.o.EndSegment == 0 {
			continue
		}
		x, err := l.c.groupIndex(ctx, &v.groups[i], nil)
		if err != nil {
			return 0, 0, err
		}
		if at, ok := x.Find(id); ok {
			s := x.Segment(at).GetSegment()
			return s.GetId(), s.Last(), nil
		}
	}
	return id, id, nil // not flushed yet
}

// listGroups adds the segments of groups. A group without a segment that is asked for is not opened.
func (l *keyLister) listGroups(ctx context.Context, groups []viewGroup) error {
	var wanted []*viewGroup
	for i := range groups {
		g := groups[i].line
		if g.GetLastSegment() >= l.o.StartSegment && (l.o.EndSegment == 0 || g.GetFirstSegment() < l.o.EndSegment) {
			wanted = append(wanted, &groups[i])
		}
	}
	for batch := range slices.Chunk(wanted, keysGroups) {
		opened := make([]*manifest.Index, len(batch))
		err := l.p.each(ctx, len(batch), func(ctx context.Context, i int, reads *atomic.Uint32) (err error) {
			opened[i], err = l.c.groupIndex(ctx, batch[i], reads)
			return err
		})
		if err != nil {
			return err
		}
		for i, x := range opened {
			from, to := x.Live(batch[i].line)
			for at := from; at < to; at++ {
				s := indexedRun{group: batch[i], x: x, at: at}
				if seg := s.segment(); !l.o.wants(seg.GetId(), seg.Last()) || seg.GetFirstSequence() >= l.rng.End || seg.GetEndSequence() <= l.rng.Start {
					continue
				}
				if err := l.add(ctx, &keySource{indexed: s}); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// add adds a source, and merges when there are enough of them.
func (l *keyLister) add(ctx context.Context, s *keySource) error {
	l.batch = append(l.batch, s)
	if len(l.batch) < keysBatch {
		return nil
	}
	return l.merge(ctx)
}

// merge merges the batch into the page.
func (l *keyLister) merge(ctx context.Context) error {
	if err := l.fill(ctx, l.batch); err != nil {
		return err
	}
	have := &keySource{keys: l.page.keys, drained: true, own: true}
	sources := make(keyHeap, 0, len(l.batch)+1)
	for _, s := range append(l.batch, have) {
		if len(s.keys) > 0 {
			sources = append(sources, s)
		}
	}
	clear(l.batch)
	l.batch = l.batch[:0]
	heap.Init(&sources)
	page := keyPage{limit: l.page.limit, maxBytes: l.page.maxBytes, more: l.page.more, keys: make([][]byte, 0, len(l.page.keys))}
	for len(sources) > 0 {
		s := sources[0]
		if key := s.keys[0]; len(page.keys) == 0 || !bytes.Equal(page.keys[len(page.keys)-1], key) {
			if !s.own {
				key = bytes.Clone(key) // else it keeps other keys in memory
			}
			if !page.add(key) {
				break
			}
		}
		if s.keys = s.keys[1:]; len(s.keys) == 0 && !s.drained {
			// The others will need more soon too: ask for all of it at the same time.
			if err := l.fill(ctx, sources); err != nil {
				return err
			}
		}
		if len(s.keys) == 0 {
			heap.Pop(&sources)
		} else {
			heap.Fix(&sources, 0)
		}
	}
	l.page = page
	return nil
}

// fill reads more keys of the sources that have used most of theirs.
func (l *keyLister) fill(ctx context.Context, sources []*keySource) error {
	var low []*keySource
	for _, s := range sources {
		if !s.drained && len(s.keys) <= s.want/2 {
			low = append(low, s)
		}
	}
	return l.p.each(ctx, len(low), func(ctx context.Context, i int, reads *atomic.Uint32) error {
		return low[i].fill(ctx, l, reads)
	})
}

// keySource is a sorted stream of keys: those of a run, table by table, or of a memory. A key may come
// twice.
type keySource struct {
	indexed indexedRun // whose run is not loaded yet; group is nil if there is none
	run     *viewRun
	next    int // table of the run
	table   *viewTable
	iter    *sst.KeyIter // of table; nil: none is open

	keys    [][]byte // read already
	want    int      // how many there were after the last read
	drained bool     // keys is all that is left
	own     bool     // keys are those of the page
}

// fill reads keys: one at least, unless the source is drained.
func (s *keySource) fill(ctx context.Context, l *keyLister, reads *atomic.Uint32) error {
	if s.run == nil {
		var err error
		if s.run, err = s.indexed.load(ctx, l.c, reads); err != nil {
			return err
		}
	}
	s.want = min(max(firstKeys, 2*s.want), maxKeys)
	keys := make([][]byte, 0, s.want)
	for s.keys = append(keys, s.keys...); len(s.keys) < s.want; {
		if s.iter == nil {
			if s.drained = s.next == len(s.run.tables); s.drained {
				return nil
			}
			s.table = &s.run.tables[s.next]
			s.next++
			if err := s.open(ctx, l, reads); err != nil {
				return err
			}
			continue
		}
		info, ok, err := s.iter.Next(ctx)
		switch {
		case err != nil:
			return tableError(s.table, err)
		case !ok:
			s.iter = nil
		case l.beyond(info.Key) || l.page.excludes(info.Key):
			s.drained, s.iter = true, nil
			return nil
		case info.FirstSequence >= l.rng.End || info.LastSequence < l.rng.Start:
		default:
			s.keys = append(s.keys, info.Key)
		}
	}
	return nil
}

// open opens the next table, if it may have keys for the page. All of its keys are readable: only durable
// records are ever flushed.
func (s *keySource) open(ctx context.Context, l *keyLister, reads *atomic.Uint32) error {
	if !s.table.overlaps(l.rng) || !s.table.mayHoldFrom(l.start) || l.beyond(s.table.lower) || l.page.excludes(s.table.lower) {
		return nil
	}
	if err := l.c.checkFresh(); err != nil {
		return err
	}
	reader, err := l.c.tables.open(ctx, s.table, opening{reads: reads, readAhead: keysReadAhead})
	if err != nil {
		return tableError(s.table, err)
	}
	s.iter = reader.Keys(l.start)
	return nil
}

// keyHeap orders sources by their next key. It implements heap.Interface.
type keyHeap []*keySource

func (h keyHeap) Len() int           { return len(h) }
func (h keyHeap) Less(i, j int) bool { return bytes.Compare(h[i].keys[0], h[j].keys[0]) < 0 }
func (h keyHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *keyHeap) Push(x any)        { *h = append(*h, x.(*keySource)) }
func (h *keyHeap) Pop() any {
	old := *h
	s := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	return s
}

// wants reports whether a segment that spans the ids from first to last is asked for.
func (o *KeysOptions) wants(first, last uint32) bool {
	return last >= o.StartSegment && (o.EndSegment == 0 || first < o.EndSegment)
}

// mayHoldFrom reports whether the table can hold a key at or after start.
func (t *viewTable) mayHoldFrom(start []byte) bool {
	return !t.bounded || bytes.Compare(t.upper, start) >= 0
}
