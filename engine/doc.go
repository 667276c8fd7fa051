// Package engine is the log database: every key is its own ordered stream, and
// all data lies in one object store. It is usable without the server.
//
// A log has one writer at a time, a DB, which Open makes by taking the next
// epoch and fencing every earlier writer. There is nothing to provision: a
// stream exists by appending to its key.
//
//	store := mem.New(mem.Options{})                  // or dir.Open, s3.Open
//	db, err := engine.Open(ctx, store, engine.Options{})
//	a, err := db.Append(ctx, []engine.Record{{Key: k, Value: v}}, engine.AppendOptions{})
//	it := db.Scan(ctx, k, engine.From(a.First), engine.ScanOptions{Limit: 100})
//	for rec := range it.All() { ... }
//	err = it.Err()                                   // and it.Next() is the cursor
//
// What holds, by number (the code and the tests cite these):
//
//	I1  Acknowledged is durable: an append returns when its batch and every earlier
//	    one are in the store, unless Memory was asked for.
//	I2  One writer: nothing acknowledged as durable by an old writer is missing after
//	    a new one opened, and an old writer's later work is never acknowledged.
//	I3  A sequence names one record for ever, across crashes.
//	I4  Per key, records come in sequence order, none missing, none twice.
//	I5  Runs of a segment, and segments, cover disjoint ascending intervals.
//	I6  A memtable never spans segments; sealing leaves nothing unflushed.
//	I7  Every object that a reader may touch exists; one that cannot know answers
//	    ErrStale.
//	I8  Bytes from the store are checked before they are believed.
//	I9  Everything is bounded.
package engine
