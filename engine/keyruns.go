package engine

import (
	"context"
	"sync/atomic"

	"github.com/annalsdb/annals/manifest"
)

// KeyRuns says where the records of one key lie: what a read of all of them has to look at.
type KeyRuns struct {
	Runs     int        // runs that hold records of the key
	Tables   []KeyTable // of these runs, those that hold some, oldest first
	InMemory uint64     // records that memory serves
}

// KeyTable is a table that holds records of a key.
type KeyTable struct {
	Name      string // of its object
	DataBytes int64  // its records lie in these first bytes of the object, its metadata behind them
	Records   uint64 // of the key
}

// KeyRuns tells in how many runs the readable records of a key in a range lie. It costs what a Count that
// looks at every table costs, and reads one after another: it is for benchmarks and for whoever wonders
// why a read is slow.
func (c *core) KeyRuns(ctx context.Context, key []byte, r Range) (KeyRuns, error) {
	var k KeyRuns
	if err := c.stopped(); err != nil {
		return k, err
	}
	if err := c.checkKey(key); err != nil {
		return k, err
	}
	r.End = min(r.End, c.frontier.Load())
	err := c.withView(ctx, func(v *view) (err error) {
		k, err = c.keyRuns(ctx, v, key, r)
		return err
	})
	return k, err
}

// keyRuns implements KeyRuns on one view.
func (c *core) keyRuns(ctx context.Context, v *view, key []byte, r Range) (k KeyRuns, err error) {
	onDisk := v.onDisk(r)
	q := counting{c: c, parallel: parallel{c: c}, key: key, rng: onDisk}
	var reads atomic.Uint32
	groups := v.groupsIn(onDisk)
	for i := range groups {
		segments, err := c.lookUp(ctx, &groups[i], manifest.HashKey(key), onDisk, nil, &reads)
		if err != nil {
			return k, err
		}
		for j := range segments {
			run, err := segments[j].load(ctx, c, &reads)
			if err != nil {
				return k, err
			}
			if err := k.add(ctx, &q, run, segments[j].exact); err != nil {
				return k, err
			}
		}
	}
	runs := v.runsIn(onDisk)
	for i := range runs {
		if err := k.add(ctx, &q, &runs[i], false); err != nil {
			return k, err
		}
	}
	for i := v.memoriesFrom(r.Start); i < len(v.memories); i++ {
		if mr := v.memoryRange(i, r); !mr.Empty() {
			k.InMemory += v.memories[i].table.Count(key, mr)
		}
	}
	return k, nil
}

// add counts one run.
func (k *KeyRuns) add(ctx context.Context, q *counting, run *viewRun, exact bool) error {
	var reads atomic.Uint32
	tables := len(k.Tables)
	for _, t := range run.candidates(nil, q.key, q.rng, exact) {
		n, err := q.table(ctx, t, &reads)
		if err != nil {
			return tableError(t.table, err)
		}
		if n > 0 {
			k.Tables = append(k.Tables, KeyTable{t.table.name, t.table.metaOffset, n})
		}
	}
	if len(k.Tables) > tables {
		k.Runs++
	}
	return nil
}
