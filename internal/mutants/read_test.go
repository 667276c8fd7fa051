package mutants

// Reads: tables, views, replicas.
var readMutants = []mutant{
	{
		name: "table: the checksum of a block is not compared",
		file: "sst/frame.go",
		old:  "b[:n+5]) {",
		new:  "b[:n+5]) && false {",
		pkg:  "sst", run: "TestEveryByteFlip|TestMisplacedBlock",
	},
	{
		name: "table: claimed lengths are believed",
		file: "sst/frame.go",
		old:  "if decoded > uint64(maxDecoded(n)) {",
		new:  "if decoded > uint64(maxDecoded(n)) && false {",
		pkg:  "sst", run: "TestDecodedLengthIsBounded",
	},
	{
		name: "view: a stale one is read",
		file: "engine/core.go",
		old:  "age > c.staleAfter {",
		new:  "age > c.staleAfter && false {",
		pkg:  "fuzz", run: "TestF51",
	},
	{
		name: "view: its age counts from the answer",
		file: "manifest/load.go",
		old:  "return nil, sent, nil",
		new:  "return nil, env.Elapsed(), nil",
		pkg:  "fuzz", run: "TestF51",
	},
	{
		name: "view: a missing object is not looked for in a newer one",
		file: "engine/core.go",
		old:  "if c.view.Load().names(gone) {",
		new:  "if true {",
		pkg:  "engine", run: "TestF25",
	},
	{
		name: "view: it is published behind the frontier",
		file: "engine/db.go",
		old:  "memories = append(memories, db.frozen...)",
		new:  "_ = db.frozen",
		pkg:  "fuzz", run: "TestF54",
	},
	{
		name: "disk cache: the checksum of a file is not compared",
		file: "engine/diskfile.go",
		old:  "if sum != base.Checksum(k.seed(), file[:checked], body) ||",
		new:  "if sum == 1 ||",
		pkg:  "engine", run: "TestF36",
	},
	{
		name: "replica: a fence counts without a MANIFEST that was read after it",
		file: "engine/replica_tail.go",
		old:  "if _, err := r.passed(ctx, fence); err != nil {",
		new:  "if err := ctx.Err(); err != nil {",
		pkg:  "fuzz", run: "TestF47",
	},
	{
		name: "replica: an id that is missing is skipped",
		file: "engine/replica_tail.go",
		old:  "case errors.Is(look.End, objstore.ErrNotFound):\n",
		new:  "case errors.Is(look.End, objstore.ErrNotFound):\n\t\tr.mu.Lock()\n\t\tr.cursor.ID++\n\t\tr.mu.Unlock()\n",
		pkg:  "fuzz", run: "TestReplicaBesideAZombie",
	},
	{
		name: "replica: what was read at a cursor that has moved is applied",
		file: "engine/replica_tail.go",
		old:  "if r.cursor != (manifest.Pos{Epoch: o.Epoch, ID: o.ID}) {",
		new:  "if r.cursor != (manifest.Pos{Epoch: o.Epoch, ID: o.ID}) && false {",
		pkg:  "fuzz", run: "TestF33",
	},
	{
		name: "replica: it does not jump when it missed something",
		file: "engine/replica_adopt.go",
		old:  "r.cursor, r.loaded = position, false",
		new:  "r.loaded = false",
		pkg:  "fuzz", run: "TestF33",
	},
	{
		name: "replica: memory that does not reach up to the tables is kept",
		file: "engine/replica_adopt.go",
		old:  "missed := r.chain.End < flushed",
		new:  "missed := false",
		pkg:  "fuzz", run: "TestF33",
	},
}
