package mutants

// What fails around the log: told once, in readiness, and over by itself.
var troubleMutants = []mutant{
	{
		name: "trouble: a permission that is gone counts as a moment's failure",
		file: "engine/trouble.go",
		old:  "|| objstore.Lasting(t.Err)) {",
		new:  "|| false && objstore.Lasting(t.Err)) {",
		pkg:  "engine", run: "TestBadDays$",
	},
	{
		name: "trouble: each failure is a line",
		file: "engine/trouble.go",
		old:  "case now-t.told >= tellEvery:",
		new:  "case true:",
		pkg:  "engine", run: "TestTroubleIsNotAFlood",
	},
	{
		name: "trouble: over when the first of several has got on",
		file: "engine/trouble.go",
		old:  "if t.tries == 0 && t.lasts.Load() {",
		new:  "if t.lasts.Load() {",
		pkg:  "engine", run: "TestTroubleLastsUntilTheLastTry",
	},
	{
		name: "trouble: commits that fail are not told",
		file: "engine/open.go",
		old:  "OnTrouble: db.troubles[HeadUnwritable].note,",
		new:  "OnTrouble: nil,",
		pkg:  "engine", run: "TestBadDays$",
	},
	{
		name: "trouble: a table that could not be read is not tried again",
		file: "engine/db.go",
		old:  "db.tables.tryAgain(db.life, db.spawn)",
		new:  "_ = db.tables",
		pkg:  "engine", run: "TestReadyComesBackByItself",
	},
	{
		name: "trouble: a table is tried again by who looks at the head",
		file: "engine/cache.go",
		old:  "\tspawn(\"try a table again\", func() {",
		new:  "\tspawn = func(_ string, f func()) { f() }\n\tspawn(\"\", func() {",
		pkg:  "engine", run: "TestTryAgainHoldsNothingUp",
	},
	{
		name: "trouble: a writer goes on in another log",
		file: "engine/db.go",
		old:  "if errors.Is(err, manifest.ErrOtherLog) {",
		new:  "if false {",
		pkg:  "engine", run: "TestLogMadeAnew",
	},
	{
		name: "trouble: a replica goes on with a log that is gone",
		file: "engine/replica.go",
		old:  "return errors.Is(err, manifest.ErrOtherLog) || ",
		new:  "return ",
		pkg:  "engine", run: "TestLogMadeAnew",
	},
	{
		name: "trouble: refused credentials stay",
		file: "objstore/s3/retry.go",
		old:  "s.keys.renew(ctx, signed) {",
		new:  "s.keys.renew(ctx, signed) && false {",
		pkg:  "objstore/s3", run: "TestCredentialsAreRenewed",
	},
	{
		name: "trouble: a folder that is gone looks like a lost race",
		file: "objstore/dir/put.go",
		old:  "!errors.Is(gone, objstore.ErrNotFound) {",
		new:  "false && gone != nil {",
		pkg:  "objstore/dir", run: "TestBroken",
	},
	{
		name: "trouble: a store that fails looks like damage",
		file: "server/errors.go",
		old:  "case errors.Is(err, objstore.ErrUnavailable), objstore.Lasting(err) && !errors.Is(err, engine.ErrCorrupt):",
		new:  "case errors.Is(err, objstore.ErrUnavailable) && objstore.Lasting(err):",
		pkg:  "server", run: "TestAppendFailures",
	},
}
