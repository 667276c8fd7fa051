package engine

import (
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/annalsdb/annals/internal/base"
	"github.com/annalsdb/annals/objstore"
)

// TroubleKind is something that can fail for a while. docs/TROUBLE.md tells what to do about each.
type TroubleKind uint8

// All kinds; of several that last, Ready tells the first. Their names are labels of a metric, and what they say is in
// the log: neither is for changing.
const (
	NotDurable       TroubleKind = iota // WAL objects cannot be written
	HeadUnreadable                      // MANIFEST cannot be read
	HeadUnwritable                      // MANIFEST cannot be replaced
	TablesUnwritable                    // tables, or state objects, cannot be written
	TablesUnreadable                    // tables, indexes or state objects cannot be read
	NotFollowing                        // a replica cannot read the WAL
	NotCompacting                       // compactions fail
	GarbageStays                        // the collector fails
	NothingDropped                      // retention fails
	DiskCacheWrites                     // the disk cache cannot be written
	DiskCacheReads                      // files of the disk cache cannot be read

	// NumTroubleKinds is the number of kinds.
	NumTroubleKinds = iota
)

// troubleKinds say what there is to say of each kind.
var troubleKinds = [NumTroubleKinds]struct {
	name, says string
	// stops: the log is not ready while it lasts, if it lasts for more than patience or will not end by itself.
	stops    bool
	patience time.Duration
}{
	NotDurable:       {name: "wal_write", says: "records cannot be made durable", stops: true}, // walTrouble is patient
	HeadUnreadable:   {name: "head_read", says: "the log's head cannot be read"},               // Ready knows more of it
	HeadUnwritable:   {name: "head_write", says: "the log's head cannot be written", stops: true, patience: longTrouble},
	TablesUnwritable: {name: "table_write", says: "tables cannot be written", stops: true, patience: longTrouble},
	TablesUnreadable: {name: "table_read", says: "tables cannot be read", stops: true, patience: longTrouble},
	NotFollowing:     {name: "wal_read", says: "the log cannot be followed"}, // Ready of a replica knows more of it
	NotCompacting:    {name: "compaction", says: "compaction fails"},
	GarbageStays:     {name: "garbage", says: "garbage cannot be collected"},
	NothingDropped:   {name: "retention", says: "retention fails"},
	DiskCacheWrites:  {name: "disk_cache_write", says: "the disk cache cannot be written"},
	DiskCacheReads:   {name: "disk_cache_read", says: "the disk cache cannot be read"},
}

// longTrouble is how long what appends and reads do not wait for may fail before the log is not ready, unless it
// is certain that it will not end by itself.
const longTrouble = 30 * time.Second

// String returns the kind's name, as in "wal_write".
func (k TroubleKind) String() string {
	if k >= NumTroubleKinds {
		return fmt.Sprintf("TroubleKind(%d)", k)
	}
	return troubleKinds[k].name
}

// Says returns the message of the log's line when it begins. The line when it ends has ": over" behind it.
func (k TroubleKind) Says() string { return troubleKinds[k].says }

// Trouble is something that fails now.
type Trouble struct {
	Kind TroubleKind
	For  time.Duration // since it failed first
	Err  error         // what it failed with last
}

// trouble tells operators that something fails: at once, then now and then, and when it is over. Safe for concurrent use;
// a nil one does nothing.
type trouble struct {
	kind  TroubleKind
	stops bool // the log is not ready while it lasts; as its kind says, but where an option says more
	log   *slog.Logger
	env   *base.Env

	lasts atomic.Bool // set under mu, and read without: that all is well is noted often

	mu    sync.Mutex
	since time.Duration // Elapsed() of the first failure
	told  time.Duration // of the last line
	err   error         // of the last failure
	tries int           // repeated until they succeed, which have failed: it lasts until none is left
}

// tellEvery is how often a failure that goes on is logged.
const tellEvery = 30 * time.Second

// note takes what came of it now: nil ends it, unless a try that failed is still repeated.
func (t *trouble) note(err error) {
	if t == nil || err == nil && !t.lasts.Load() {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.change(err)
}

// change is note under mu.
func (t *trouble) change(err error) {
	now := t.env.Elapsed()
	switch {
	case err == nil:
		if t.tries == 0 && t.lasts.Load() {
			t.log.Info(t.kind.Says()+": over", "lasted", (now - t.since).Round(time.Second).String())
			t.err = nil
			t.lasts.Store(false)
		}
		return
	case !t.lasts.Load():
		t.since, t.told = now, now
		t.lasts.Store(true)
		t.log.Warn(t.kind.Says(), "error", err)
	case now-t.told >= tellEvery:
		t.told = now
		t.log.Warn(t.kind.Says(), "error", err, "for", (now - t.since).Round(time.Second).String())
	}
	t.err = err
}

// try is something that is repeated until it succeeds. It belongs to one goroutine.
type try struct {
	of     *trouble
	failed bool
}

// note takes what came of the last repetition. After nil there is none any more.
func (y *try) note(err error) {
	if y.of == nil || err == nil && !y.failed {
		return
	}
	t := y.of
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case err == nil:
		t.tries--
		y.failed = false
	case !y.failed:
		t.tries++
		y.failed = true
	}
	t.change(err)
}

// now returns what fails, or false.
func (t *trouble) now() (Trouble, bool) {
	if !t.lasts.Load() {
		return Trouble{}, false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.err == nil {
		return Trouble{}, false // over since
	}
	return Trouble{Kind: t.kind, For: t.env.Elapsed() - t.since, Err: t.err}, true
}

// troubles are all that a log can have.
type troubles [NumTroubleKinds]trouble

func newTroubles(log *slog.Logger, env *base.Env) *troubles {
	ts := new(troubles)
	for i := range ts {
		ts[i].kind, ts[i].stops, ts[i].log, ts[i].env = TroubleKind(i), troubleKinds[i].stops, log, env
	}
	return ts
}

// requireDisk says that the log is not ready while its disk cache cannot be written.
func (ts *troubles) requireDisk() { ts[DiskCacheWrites].stops = true }

// list returns those that last.
func (ts *troubles) list() (list []Trouble) {
	for i := range ts {
		if t, ok := ts[i].now(); ok {
			list = append(list, t)
		}
	}
	return list
}

// stops returns why the log is not ready, or nil.
func (ts *troubles) stops() error {
	for i := range ts {
		kind := &troubleKinds[i]
		if !ts[i].stops {
			continue
		}
		if t, ok := ts[i].now(); ok && (t.For >= kind.patience || objstore.Lasting(t.Err)) {
			return fmt.Errorf("%s: %w", kind.says, t.Err)
		}
	}
	return nil
}
