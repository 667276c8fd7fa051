package compaction

import (
	"bytes"
	"context"
	"math"
	"slices"

	"github.com/annalsdb/annals/internal/base"
	"github.com/annalsdb/annals/manifest"
	"github.com/annalsdb/annals/sst"
)

const (
	// dirAhead is the number of tables that are opened ahead of the one whose directory
	// is being read.
	dirAhead = 4
	// hashMemory is what a hash takes in memory.
	hashMemory = 8
	// minPassHashes is the least number of hashes that a pass collects at most.
	minPassHashes = 1 << 10
	// endOfHashes is above all hashes.
	endOfHashes = manifest.KeyHash(1) << 40
)

// addSegment adds a segment with the tables of its one run.
func (g *grouping) addSegment(s *manifest.Segment) {
	at := len(g.segments)
	g.streams = append(g.streams, &directoryStream{task: g.task, run: s.Runs[0], at: at})
	g.segments, g.keys = append(g.segments, s), append(g.keys, 0)
}

// directoryStream gives the hashes of all keys of a segment. Directories are in key order,
// so it reads them several times if there are many keys, and each pass collects the
// hashes of one interval, as many as memory allows.
//
// An interval is chosen as if hashes were spread evenly, so that it fills seven eighths of the
// room. Should more fall into it than there is room for, the pass keeps the lower half
// and ends there. With n keys and room for r hashes there are at most 8n/7r + 1 passes that
// are not cut short, and 2n/r that are, however keys were chosen.
type directoryStream struct {
	task *task
	run  *manifest.Run
	at   int // of the segment in the output

	b      *manifest.IndexBuilder
	most   uint64 // keys of the tables with which entries are not even tried
	room   int    // hashes of a pass
	hashes []manifest.KeyHash
	from   manifest.KeyHash // where the next pass begins
	keys   uint64           // distinct, by the directories
}

func (s *directoryStream) begin(b *manifest.IndexBuilder, streams int) {
	s.b, s.most = b, math.MaxUint64
	if streams == 1 {
		// A sixty-fourth more than fits, for keys with equal hashes.
		s.most = manifest.MaxEntryBytes/uint64(manifest.EntryBytes(1))*65/64 + uint64(len(s.run.Tables))
	}
	s.room = int(max(minPassHashes, s.task.bufferBytes()/int64(hashMemory*streams)))
}

// next makes a pass, or several until one finds something.
func (s *directoryStream) next(ctx context.Context) (hashPart, error) {
	if s.from == 0 && s.tableKeys() > s.most {
		s.from = endOfHashes
		s.b.AddBase(0, endOfHashes-1, 1<<s.at) // any key may be in the segment
		var err error
		s.keys, err = s.walk(ctx, func([]byte) {})
		return hashPart{}, err
	}
	for s.from < endOfHashes && !s.b.Coarse() {
		if err := s.pass(ctx); err != nil {
			return hashPart{}, err
		}
		if len(s.hashes) > 0 {
			return hashPart{hashes: s.hashes, mask: 1 << s.at}, nil
		}
	}
	return hashPart{}, nil
}

// pass collects the hashes of the next interval.
func (s *directoryStream) pass(ctx context.Context) error {
	if s.hashes == nil {
		s.hashes = make([]manifest.KeyHash, 0, min(uint64(s.room), s.tableKeys()))
	}
	s.hashes = s.hashes[:0]
	end := s.passEnd()
	keys, err := s.walk(ctx, func(key []byte) {
		h := manifest.HashKey(key)
		if h < s.from || h >= end {
			return
		}
		if len(s.hashes) == s.room {
			if s.sort(); len(s.hashes) > s.room/2 {
				end = s.hashes[s.room/2]
				s.hashes = s.hashes[:s.room/2]
			}
			if h >= end {
				return
			}
		}
		s.hashes = append(s.hashes, h)
	})
	if err != nil {
		return err
	}
	s.sort()
	s.keys, s.from = keys, end
	return nil
}

// sort sorts the hashes collected so far and drops what is there twice.
func (s *directoryStream) sort() {
	slices.Sort(s.hashes)
	s.hashes = slices.Compact(s.hashes)
}

// passEnd returns where the next interval ends.
func (s *directoryStream) passEnd() manifest.KeyHash {
	part := float64(endOfHashes) * float64(s.room) * 7 / 8 / float64(max(1, s.tableKeys()))
	if part >= float64(endOfHashes-s.from) {
		return endOfHashes
	}
	return s.from + max(1, manifest.KeyHash(part))
}

// tableKeys is how many keys the tables have, those that go on in the next one twice.
func (s *directoryStream) tableKeys() (n uint64) {
	for _, t := range s.run.Tables {
		n = addSaturating(n, t.Keys)
	}
	return n
}

func (s *directoryStream) end(b *manifest.IndexBuilder) error {
	b.SetKeys(s.at, s.keys)
	return nil
}

// openDirectory is a table that is opened ahead.
type openDirectory struct {
	line  *manifest.Table
	name  string
	done  chan struct{}
	table *sst.Reader
	err   error
}

// openDirectory starts to open a table.
func (t *task) openDirectory(ctx context.Context, line *manifest.Table) *openDirectory {
	id := line.Ref.ID()
	o := &openDirectory{line: line, name: id.Name(), done: make(chan struct{})}
	t.start("compaction open directory", func() {
		defer close(o.done)
		o.table, o.err = sst.Open(ctx, sst.ReaderOptions{
			Name: o.name, ID: id.ULID, Size: int64(line.Size), MetaOffset: int64(line.MetaOffset),
			Source: &tableParts{task: t, id: id, size: int64(line.Size)},
		})
		if o.err == nil {
			o.err = compareProperties(o.name, line, o.table.Properties())
		}
	})
	return o
}

// tableParts is a sst.RangeReader that reads what it is asked for.
type tableParts struct {
	task *task
	id   base.ObjectID
	size int64
}

func (p *tableParts) ReadRange(ctx context.Context, off, n int64) ([]byte, error) {
	return p.task.getPart(ctx, p.id, p.size, off, n)
}

// walk calls visit for every distinct key of the run, in order, and returns how many there
// are. It reads directories only, and checks that they have the keys and records that the
// manifest counts, in order (F27).
func (s *directoryStream) walk(ctx context.Context, visit func(key []byte)) (keys uint64, err error) {
	w := directoryWalk{visit: visit}
	waiting := s.run.Tables
	var open []*openDirectory
	for len(waiting) > 0 || len(open) > 0 {
		for len(waiting) > 0 && len(open) <= dirAhead {
			open, waiting = append(open, s.task.openDirectory(ctx, waiting[0])), waiting[1:]
		}
		o := open[0]
		open = open[1:]
		select {
		case <-o.done:
		case <-ctx.Done():
			return 0, ctx.Err()
		}
		if o.err != nil {
			return 0, o.err
		}
		if err := w.table(ctx, o); err != nil {
			return 0, err
		}
	}
	return w.keys, nil
}

// directoryWalk is one walk through the directories of a run.
type directoryWalk struct {
	visit func(key []byte)
	keys  uint64 // distinct so far
	last  sst.KeyInfo
}

// table visits the keys of one table. The first may have begun in the table before.
func (w *directoryWalk) table(ctx context.Context, o *openDirectory) error {
	var keys, records uint64
	for it := o.table.Keys(nil); ; keys++ {
		k, ok, err := it.Next(ctx)
		if err != nil {
			return err
		}
		if !ok {
			break
		}
		records = addSaturating(records, k.Count)
		if w.keys > 0 {
			c := bytes.Compare(w.last.Key, k.Key)
			if c > 0 || c == 0 && (keys > 0 || w.last.LastSequence >= k.FirstSequence) {
				return base.Corruptf(o.name, int64(o.line.MetaOffset), "key %q, record %d, is not above the one before", k.Key, k.FirstSequence)
			}
			if c == 0 {
				w.last = k
				continue
			}
		}
		w.keys, w.last = w.keys+1, k
		w.visit(k.Key)
	}
	if keys != o.line.Keys || records != o.line.Records {
		return base.Corruptf(o.name, int64(o.line.MetaOffset), "the directory has %d keys with %d records, the manifest says %d with %d",
			keys, records, o.line.Keys, o.line.Records)
	}
	return nil
}
