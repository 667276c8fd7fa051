package engine

import (
	"bytes"
	"context"

	"github.com/annalsdb/annals/internal/base"
	"github.com/annalsdb/annals/sst"
)

// Keys implements LogReader.
//
// It merges the key directories of the tables with the keys in memory. What it
// holds is one page of the memory's keys and one directory block a table at a
// time, however many keys there are.
func (c *core) Keys(ctx context.Context, o KeysOptions) (KeysPage, error) {
	if err := c.stopped(); err != nil {
		return KeysPage{}, err
	}
	frontier := c.frontier.Load()
	var page KeysPage
	err := c.withView(ctx, func(v *view) (err error) {
		page, err = c.keys(ctx, v, frontier, o)
		return err
	})
	return page, err
}

func (c *core) keys(ctx context.Context, v *view, frontier uint64, o KeysOptions) (KeysPage, error) {
	limit := pageLimit(o.Limit)
	start := o.Prefix
	if o.After != nil {
		if next := append(bytes.Clone(o.After), 0); bytes.Compare(next, start) > 0 {
			start = next // the smallest key behind After
		}
	}
	sources, err := c.keySources(ctx, v, start, frontier, o, limit+1)
	if err != nil {
		return KeysPage{}, err
	}
	var page KeysPage
	bytesOfKeys := 0
	for len(sources) > 0 {
		least := sources[0].key
		for _, s := range sources[1:] {
			if bytes.Compare(s.key, least) < 0 {
				least = s.key
			}
		}
		if !bytes.HasPrefix(least, o.Prefix) {
			break // all keys with the prefix come first
		}
		if len(page.Keys) == limit || bytesOfKeys >= maxKeysBytes {
			page.More = true
			break
		}
		bytesOfKeys += len(least)
		page.Keys = append(page.Keys, bytes.Clone(least))
		if sources, err = advanceSources(ctx, sources, page.Keys[len(page.Keys)-1]); err != nil {
			return KeysPage{}, err
		}
	}
	return page, nil
}

// maxKeysBytes bounds the keys of one page, beside their number (I9).
const maxKeysBytes = 4 << 20

// keySource is one sorted stream of distinct keys, positioned at key.
type keySource struct {
	key  []byte
	next func(ctx context.Context) ([]byte, bool, error)
}

// advanceSources moves every source that stands at key on, and drops those that
// are at their end.
func advanceSources(ctx context.Context, sources []keySource, key []byte) ([]keySource, error) {
	kept := sources[:0]
	for _, s := range sources {
		ok := true
		if bytes.Equal(s.key, key) {
			var err error
			if s.key, ok, err = s.next(ctx); err != nil {
				return nil, err
			}
		}
		if ok {
			kept = append(kept, s)
		}
	}
	return kept, nil
}

// keySources opens a source for every table and memory of the segments asked
// for that can hold a key from start on.
func (c *core) keySources(ctx context.Context, v *view, start []byte, frontier uint64, o KeysOptions, limit int) ([]keySource, error) {
	var sources []keySource
	add := func(next func(context.Context) ([]byte, bool, error)) error {
		key, ok, err := next(ctx)
		if err == nil && ok {
			sources = append(sources, keySource{key, next})
		}
		return err
	}
	for _, run := range v.runsIn(v.onDisk(Between(0, frontier))) {
		if !o.wants(run.segment) {
			continue
		}
		for j := range run.tables {
			t := &run.tables[j]
			if !t.mayHoldFrom(start, o.Prefix) {
				continue
			}
			if err := c.checkFresh(); err != nil {
				return nil, err
			}
			reader, err := c.tables.open(ctx, t)
			if err != nil {
				return nil, tableError(t, err)
			}
			if err := add(tableKeys(t, reader.Keys(start))); err != nil {
				return nil, err
			}
		}
	}
	for i := range v.memories {
		r := v.memoryRange(i, Between(0, frontier))
		if r.Empty() || !o.wants(v.memories[i].segment) {
			continue
		}
		keys := v.memories[i].table.KeysFrom(nil, start, r, limit)
		err := add(func(context.Context) ([]byte, bool, error) {
			if len(keys) == 0 {
				return nil, false, nil
			}
			key := keys[0]
			keys = keys[1:]
			return key, true, nil
		})
		if err != nil {
			return nil, err
		}
	}
	return sources, nil
}

// tableKeys streams the keys of a table. All of them are readable: only durable
// records are ever flushed.
func tableKeys(t *viewTable, it *sst.KeyIter) func(context.Context) ([]byte, bool, error) {
	return func(ctx context.Context) ([]byte, bool, error) {
		info, ok, err := it.Next(ctx)
		return info.Key, ok, tableError(t, err)
	}
}

func (o *KeysOptions) wants(segment uint32) bool {
	return segment >= o.StartSegment && (o.EndSegment == 0 || segment < o.EndSegment)
}

// mayHoldFrom reports whether the table can hold a key at or after start with
// the prefix.
func (t *viewTable) mayHoldFrom(start, prefix []byte) bool {
	if t.bounded && bytes.Compare(t.upper, start) < 0 {
		return false
	}
	end, bounded := base.PrefixEnd(prefix)
	return !bounded || bytes.Compare(t.lower, end) < 0
}
