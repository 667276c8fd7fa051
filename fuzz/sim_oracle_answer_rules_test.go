package fuzz

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/engine"
	"github.com/annalsdb/annals/objstore"
	walfile "github.com/annalsdb/annals/wal"
)

// read returns records of the log as a process would return them.
func (f *forge) read(seqs ...uint64) (recs []engine.Record) {
	for _, seq := range seqs {
		r := f.o.log.named[seq]
		recs = append(recs, engine.Record{Key: []byte(r.key), Value: []byte(r.value), Sequence: r.seq, Timestamp: r.timestamp})
	}
	return recs
}

// scans is a scan of key a, which has the sequences 0, 2, 3, 5 and 6.
func scans(change func(*forge, *simCall)) func(*forge) {
	return func(f *forge) {
		c := simCall{kind: simScan, key: []byte("a"), rng: engine.All(), next: 7, recs: f.read(0, 2, 3, 5, 6)}
		change(f, &c)
		f.ended(c)
	}
}

// lands makes sequence 7 of key a part of the log.
func (f *forge) lands() {
	f.landBatch(4, 7, engine.AppendOptions{}, f.value("a"))
}

// replica returns a process that reads, and shows what p does.
func (f *forge) reader() *simProcess { return &simProcess{id: 101, role: simReplica, log: f.show} }

// TestSimOracleCatchesScans answers scans wrongly.
func TestSimOracleCatchesScans(t *testing.T) {
	catches(t, []forgery{
		{"one is missing", "without 3", scans(func(f *forge, c *simCall) { c.recs = f.read(0, 2, 5, 6) })},
		{"the first is missing", "without 0", scans(func(f *forge, c *simCall) { c.recs = f.read(2, 3, 5, 6) })},
		{"the last is missing", "without 6", scans(func(f *forge, c *simCall) { c.recs = f.read(0, 2, 3, 5) })},
		{"one comes twice", "returns sequence 3", scans(func(f *forge, c *simCall) { c.recs = f.read(0, 2, 3, 3, 5, 6) })},
		{"out of order", "returns sequence 2", scans(func(f *forge, c *simCall) { c.recs = f.read(0, 3, 2, 5, 6) })},
		{"of another key", "of key \"b\"", scans(func(f *forge, c *simCall) { c.recs = f.read(0, 1, 2, 3, 5, 6) })},
		{"behind the range", "returns sequence 6", scans(func(f *forge, c *simCall) { c.rng.End = 6 })},
		{"before the range", "returns sequence 0", scans(func(f *forge, c *simCall) { c.rng.Start = 1 })},
		{"another value", "I3", scans(func(f *forge, c *simCall) { c.recs[1].Value = []byte("x") })},
		{"another timestamp", "I3", scans(func(f *forge, c *simCall) { c.recs[1].Timestamp++ })},
		{"never sent", "which was never sent", scans(func(f *forge, c *simCall) {
			c.recs = append(c.recs, engine.Record{Key: []byte("a"), Sequence: 7})
		})},
		{"on its way", "I2: call", scans(func(f *forge, c *simCall) {
			rec := f.value("a")
			f.ask(engine.AppendOptions{}, rec)
			f.send(4, f.object(4, 7, nil, records(7, rec)))
			c.recs = f.read(0, 2, 3, 5, 6, 7)
		})},
		{"dead behind a fence (F5)", "which is not part of the log", scans(func(f *forge, c *simCall) {
			f.takeover()
			f.land(4, walfile.EncodeFence(f.o.log.identity(), 1, 4, 2))
			f.ask(engine.AppendOptions{})
			f.send(4, f.object(4, 7, nil))
			f.landBatch(5, 7, engine.AppendOptions{}, f.value("a"))
			c.recs = f.read(0, 2, 3, 5, 6, 7)
		})},
		{"half a batch", "the middle of the batch [5, 7)", scans(func(f *forge, c *simCall) { c.recs, c.next = f.read(0, 2, 3, 5), 6 })},
		{"too far", "only those below 7 are durable", scans(func(_ *forge, c *simCall) { c.next = 8 })},
		{"less than was acknowledged", "I2: scan", scans(func(f *forge, c *simCall) { c.recs, c.next = f.read(0, 2, 3), 5 })},
		{"less than the process has shown", "I2: scan", scans(func(f *forge, c *simCall) {
			c.proc = f.reader()
			c.recs, c.next = f.read(0, 2, 3), 5
		})},
		{"less than the scan before", "I2: scan", func(f *forge) {
			f.lands()
			c := simCall{kind: simScan, key: []byte("b"), rng: engine.From(1), next: 8, recs: f.read(1, 4)}
			f.ended(c)
			require.NoError(f.t, f.o.err())
			c.next = 7
			f.ended(c)
		}},
		{"more than the limit", "I9", scans(func(f *forge, c *simCall) { c.scan.Limit = 4 })},
		{"less than the limit", "without 5", scans(func(f *forge, c *simCall) { c.scan.Limit, c.recs = 4, f.read(0, 2, 3) })},
		{"stopped before the limit", "I2: scan", scans(func(f *forge, c *simCall) {
			c.scan.Limit, c.recs, c.next = 4, f.read(0, 2), 3
		})},
		{"stopped before the bytes", "I2: scan", scans(func(f *forge, c *simCall) {
			c.scan.MaxBytes, c.recs, c.next = 1000, f.read(0, 2), 3
		})},
		{"more than the bytes", "I2: scan", scans(func(f *forge, c *simCall) {
			c.scan.MaxBytes, c.recs, c.next = 1, f.read(0, 2), 3
		})},
		{"not the newest", "without 6", scans(func(f *forge, c *simCall) { c.scan.Last, c.recs = 2, f.read(3, 5) })},
		{"too many of the newest", "I9", scans(func(f *forge, c *simCall) { c.scan.Last = 2 })},
		{"too few of the newest", "without 5", scans(func(f *forge, c *simCall) { c.scan.Last, c.recs = 2, f.read(6) })},
		{"the newest of few bytes", "without 5", scans(func(f *forge, c *simCall) {
			c.scan.Last, c.recs = 4, f.read(6)
			c.scan.MaxBytes = int64(2*len(c.recs[0].Value) + 1)
		})},
		{"older than since", "returns timestamp", scans(func(f *forge, c *simCall) {
			c.scan.Since = time.UnixMilli(f.o.log.named[3].timestamp)
		})},
		{"not all since", "without 3", scans(func(f *forge, c *simCall) {
			c.scan.Since, c.recs = time.UnixMilli(f.o.log.named[3].timestamp), f.read(5, 6)
		})},
		{"a hole before an error", "without 2", scans(func(f *forge, c *simCall) {
			c.recs, c.err = f.read(0, 3), engine.ErrClosed
		})},
		{"what was dropped", "returns sequence 0", func(f *forge) {
			time.Sleep(2 * time.Hour)
			f.drop(1, 1)
			f.show.first = 3
			f.o.step(9, []*simProcess{f.p})
			scans(func(*forge, *simCall) {})(f)
		}},
	})
}

// TestSimOracleAcceptsScans are answers that are right, each near to one that is not.
func TestSimOracleAcceptsScans(t *testing.T) {
	for name, change := range map[string]func(*forge, *simCall){
		"all":            func(*forge, *simCall) {},
		"limit":          func(f *forge, c *simCall) { c.scan.Limit, c.recs, c.next = 3, f.read(0, 2, 3), 4 },
		"the last limit": func(_ *forge, c *simCall) { c.scan.Limit = 5 },
		"bytes": func(f *forge, c *simCall) {
			c.scan.MaxBytes, c.recs, c.next = int64(2*len(c.recs[0].Value)+1), f.read(0, 2), 3
		},
		"one too large": func(f *forge, c *simCall) { c.scan.MaxBytes, c.recs, c.next = 1, f.read(0), 1 },
		"the newest":    func(f *forge, c *simCall) { c.scan.Last, c.recs = 2, f.read(5, 6) },
		"a range":       func(f *forge, c *simCall) { c.rng, c.recs, c.next = engine.Between(2, 6), f.read(2, 3, 5), 6 },
		"above all":     func(f *forge, c *simCall) { c.rng, c.recs, c.next = engine.From(100), nil, 100 },
		"since": func(f *forge, c *simCall) {
			c.scan.Since, c.recs = time.UnixMilli(f.o.log.named[3].timestamp), f.read(3, 5, 6)
		},
		"an error": func(f *forge, c *simCall) { c.recs, c.next, c.err = f.read(0, 2), 3, engine.ErrStale },
		"a replica that lags": func(f *forge, c *simCall) {
			f.show.frontier = 5
			c.proc, c.recs, c.next = f.reader(), f.read(0, 2, 3), 5
			f.o.procs[c.proc.id] = nil
			delete(f.o.procs, c.proc.id)
		},
		"memory": func(f *forge, c *simCall) {
			f.p.opts.ReadVisibility = engine.Memory
			rec := f.value("a")
			f.ask(engine.AppendOptions{}, rec)
			rec.Sequence = 7
			c.recs, c.next = append(c.recs, rec), 8
		},
	} {
		failure(t, name, func(t *testing.T) {
			f := newForge(t)
			if name == "a replica that lags" {
				f.p.dead = true // which shows more
			}
			scans(change)(f)
			require.NoError(t, f.o.err())
		})
	}
}

// TestSimOracleCatchesAnswers answers other questions wrongly.
func TestSimOracleCatchesAnswers(t *testing.T) {
	counts := func(n uint64) func(*forge) {
		return func(f *forge) { f.ended(simCall{kind: simCount, key: []byte("a"), rng: engine.All(), count: n}) }
	}
	lists := func(o engine.KeysOptions, more bool, keys ...string) func(*forge) {
		return func(f *forge) {
			c := simCall{kind: simKeys, page: o, more: more}
			for _, key := range keys {
				c.keys = append(c.keys, []byte(key))
			}
			f.ended(c)
		}
	}
	fails := func(kind simKind, err error) func(*forge) {
		return func(f *forge) { f.ended(simCall{kind: kind, key: []byte("a"), rng: engine.All(), err: err}) }
	}
	follows := func(start uint64, seqs ...uint64) func(*forge) {
		return func(f *forge) {
			c := &simCall{id: 99, proc: f.p, kind: simFollow, key: []byte("a"), rng: engine.From(start)}
			f.o.began(c)
			for i := range seqs {
				c.recs = append(c.recs, f.read(seqs[i])...)
				f.o.step(f.step, nil)
			}
		}
	}
	catches(t, []forgery{
		{"too few", "I4: count", counts(4)},
		{"too many", "I4: count", counts(6)},
		{"half a batch", "I4: count", func(f *forge) {
			f.show.frontier = 3
			p := f.reader()
			f.p.dead = true
			f.ended(simCall{kind: simCount, proc: p, key: []byte("a"), rng: engine.All(), count: 4})
		}},
		{"a key is missing", "does not have \"b\"", lists(engine.KeysOptions{}, false, "a")},
		{"a key too many", "has \"c\", which has no record", lists(engine.KeysOptions{}, false, "a", "b", "c")},
		{"keys out of order", "has \"a\" after \"b\"", lists(engine.KeysOptions{}, false, "b", "a")},
		{"a key of another prefix", "has \"b\" after", lists(engine.KeysOptions{Prefix: []byte("a")}, false, "a", "b")},
		{"a key before the page", "has \"a\" after \"a\"", lists(engine.KeysOptions{After: []byte("a")}, false, "a", "b")},
		{"too many keys", "I9: page", lists(engine.KeysOptions{Limit: 1}, false, "a", "b")},
		{"more, and room", "I9: page", lists(engine.KeysOptions{Limit: 2}, true, "a")},
		{"a follow leaves one out", "has not delivered 3", follows(2, 2, 5)},
		{"a follow starts late", "has not delivered 0", follows(0, 2)},
		{"a follow delivers twice", "delivers sequence 2", follows(0, 0, 2, 2)},
		{"a follow delivers what is older", "delivers sequence 0", follows(1, 0)},
		{"a follow of another key", "delivers sequence 1", follows(0, 0, 1)},
		{"corrupt (I8)", "I8: call", fails(simScan, fmt.Errorf("x: %w", engine.ErrCorrupt))},
		{"missing (I7)", "I7: call", fails(simCount, fmt.Errorf("x: %w", objstore.ErrNotFound))},
		{"invalid", "I9: call", fails(simScan, engine.ErrInvalid)},
		{"out of range", "I4: call", fails(simScan, engine.ErrOutOfRange)},
		{"conflict", "which is no append", fails(simScan, engine.ErrConflict)},
		{"not flushed", "sequence 5 was there", func(f *forge) { f.ended(simCall{kind: simFlush}) }},
		{"a frontier falls", "went back", func(f *forge) {
			f.show.frontier--
			f.o.step(9, []*simProcess{f.p})
		}},
		{"a first sequence falls", "went back", func(f *forge) {
			f.o.procs[f.p.id].first = 1
			f.o.step(9, []*simProcess{f.p})
		}},
		{"a first sequence that never was", "says that the log begins at 2", func(f *forge) {
			f.show.first = 2
			f.o.step(9, []*simProcess{f.p})
		}},
		{"a frontier in a batch", "the middle of the batch", func(f *forge) {
			f.o.procs[f.p.id].frontier, f.show.frontier = 5, 6
			f.o.step(9, []*simProcess{f.p})
		}},
		{"a frontier above what is durable", "I1: process", func(f *forge) {
			f.show.frontier = 8
			f.o.step(9, []*simProcess{f.p})
		}},
		{"serves less than was acknowledged", "I2: writer", func(f *forge) {
			f.p.dead = true
			f.o.opened(&simProcess{id: 7, role: simWriter, epoch: 1, log: &shown{frontier: 5}})
		}},
		{"serves, and replay starts before it", "replay would start at (1, 3)", func(f *forge) {
			f.takeover()
			f.o.opened(&simProcess{id: 7, role: simWriter, epoch: 2, log: &shown{frontier: f.o.log.epochs[2].begins}})
		}},
		{"ends and has not begun", "had not begun", func(f *forge) { f.o.ended(&simCall{id: 77, proc: f.p}) }},
	})
	failure(t, "a follow that is right", func(t *testing.T) {
		f := newForge(t)
		follows(1, 2, 3, 5, 6)(f)
		require.NoError(t, f.o.err())
	})
}

// TestSimOracleCatchesCursors answers wrongly about cursors.
func TestSimOracleCatchesCursors(t *testing.T) {
	at := func(next uint64) engine.Cursor { return engine.Cursor{Key: []byte("a"), Next: next} }
	sets := func(f *forge, force bool, want, is engine.Cursor) {
		f.ended(simCall{kind: simSetCursors, consumer: "x", force: force, cursors: []engine.Cursor{want}, found: []engine.Cursor{is}})
	}
	lands := func(f *forge, id, next uint64) {
		f.land(id, f.object(id, 7, nil, func(b *walfile.Builder) {
			b.AddCursor(walfile.CursorChange{Op: walfile.CursorSet, Consumer: "x", Key: []byte("a"), Next: next})
		}))
		f.step++
		f.o.step(f.step, nil)
	}
	asks := func(f *forge, force bool, next uint64) {
		f.ended(simCall{kind: simSetCursors, consumer: "x", force: force, cursors: []engine.Cursor{at(next)}, err: engine.ErrClosed})
	}
	reads := func(f *forge, p *simProcess, found ...engine.Cursor) {
		f.ended(simCall{kind: simCursors, proc: p, consumer: "x", found: found})
	}
	catches(t, []forgery{
		{"not durable", "is durable at 3, and it is not", func(f *forge) { sets(f, false, at(3), at(3)) }},
		{"below what was asked", "in force is 3", func(f *forge) {
			asks(f, false, 3)
			lands(f, 4, 3)
			sets(f, false, at(4), at(3))
		}},
		{"not forced", "in force is 5", func(f *forge) {
			asks(f, false, 5)
			lands(f, 4, 5)
			sets(f, true, at(4), at(5))
		}},
		{"too few", "are in force", func(f *forge) {
			f.ended(simCall{kind: simSetCursors, consumer: "x", cursors: []engine.Cursor{at(3)}})
		}},
		{"back without force", "from 5 to 3, and nobody wanted that (asked true, forced false)", func(f *forge) {
			asks(f, false, 5)
			asks(f, false, 3)
			lands(f, 4, 5)
			lands(f, 5, 3)
		}},
		{"that nobody asked for", "nobody wanted that (asked false", func(f *forge) { lands(f, 4, 5) }},
		{"not deleted", "is deleted, and it is not", func(f *forge) {
			asks(f, false, 5)
			lands(f, 4, 5)
			f.step += 2
			f.ended(simCall{kind: simDeleteCursors, consumer: "x", key: []byte("a")})
		}},
		{"read before it was set", "I2: process 100 has cursors map[a:5]", func(f *forge) { reads(f, nil, at(5)) }},
		{"an old one at the writer", "I2: process 100 has cursors map[]", func(f *forge) {
			asks(f, false, 5)
			lands(f, 4, 5)
			f.step += 2
			reads(f, nil)
		}},
		{"back at a replica", "I2: process 101 has cursors map[]", func(f *forge) {
			asks(f, false, 5)
			lands(f, 4, 5)
			p := f.reader()
			f.o.opened(p)
			reads(f, p, at(5))
			require.NoError(f.t, f.o.err())
			reads(f, p)
		}},
		{"that nobody set, from memory", "which nobody set", func(f *forge) {
			f.p.opts.ReadVisibility = engine.Memory
			reads(f, nil, at(5))
		}},
	})
	synctest.Test(t, func(t *testing.T) {
		f := newForge(t)
		asks(f, false, 5)
		asks(f, true, 3)
		lands(f, 4, 5)
		reads(f, nil, at(5))
		sets(f, false, at(4), at(5))
		lands(f, 5, 3)
		p := f.reader()
		f.o.opened(p)
		reads(f, p) // it lags
		reads(f, p, at(5))
		reads(f, p, at(3))
		require.NoError(t, f.o.err())
	})
}
