package engine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/manifest"
	"github.com/annalsdb/annals/objstore"
	"github.com/annalsdb/annals/objstore/fault"
)

// logLines are the messages that were logged.
type logLines struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logLines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *logLines) logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(l, &slog.HandlerOptions{Level: slog.LevelInfo}))
}

// count returns how many lines have exactly this message.
func (l *logLines) count(msg string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.buf.String(), fmt.Sprintf(" msg=%q ", msg))
}

// badDay is something that goes wrong while a writer runs, and what comes of it.
type badDay struct {
	name string
	op   fault.Kind // 0: every one
	part string     // of the objects' names
	err  error
	// meanwhile is what is done while it lasts; it begins 1 s after.
	meanwhile func(t *testing.T, db *DB)
	after     time.Duration // how long it takes to notice
	shows     TroubleKind
	ready     bool // all the same
}

// appends waits for a batch that cannot become durable. Its outcome must be unknown.
func appendsInVain(t *testing.T, db *DB) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	_, err := db.Append(ctx, []Record{record("k", "meanwhile")}, AppendOptions{})
	var failed *AppendError
	require.ErrorAs(t, err, &failed)
	require.Equal(t, Unknown, failed.Outcome)
}

// appendsAndFlushes appends, and has what was appended flushed in the background.
func appendsAndFlushes(t *testing.T, db *DB) {
	mustAppend(t, db, record("k", "meanwhile"))
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	require.ErrorIs(t, db.Flush(ctx), context.DeadlineExceeded)
}

func readsInVain(t *testing.T, db *DB) {
	mustAppend(t, db, record("k", "meanwhile"))
	require.Error(t, readAll(t, db, nil))
}

// readAll appends the values of k to list and returns why it ended early.
func readAll(t *testing.T, from LogReader, list *[]string) error {
	it := from.Scan(t.Context(), []byte("k"), All(), ScanOptions{})
	for rec := range it.All() {
		if list != nil {
			*list = append(*list, string(rec.Value))
		}
	}
	return it.Err()
}

func nothing(*testing.T, *DB) {}

var badDays = []badDay{
	{"puts denied", fault.Put, "", objstore.ErrDenied, appendsInVain, 0, NotDurable, false},
	{"puts denied while idle", fault.Put, "", objstore.ErrDenied, nothing, beatEvery, HeadUnwritable, false},
	{"bucket gone", 0, "", objstore.ErrNoBucket, appendsInVain, 0, NotDurable, false},
	{"credentials expired", 0, "", objstore.ErrCredentials, appendsInVain, 0, NotDurable, false},
	{"credentials expired while idle", 0, "", objstore.ErrCredentials, nothing, 7 * time.Second, HeadUnreadable, false},
	{"disk of the store full", fault.Put, "", objstore.ErrFull, appendsInVain, 0, NotDurable, false},
	{"throttled", 0, "", objstore.ErrUnavailable, appendsInVain, 7 * time.Second, NotDurable, false},
	{"WAL denied", fault.Put, "/wal/", objstore.ErrDenied, appendsInVain, 0, NotDurable, false},
	{"WAL throttled", fault.Put, "/wal/", objstore.ErrUnavailable, appendsInVain, walLate - 2*time.Second, NotDurable, false},
	{"tables denied", fault.Put, "/sst/", objstore.ErrDenied, appendsAndFlushes, 0, TablesUnwritable, false},
	{"tables throttled", fault.Put, "/sst/", objstore.ErrUnavailable, appendsAndFlushes, 20 * time.Second, TablesUnwritable, true},
	{"tables throttled for long", fault.Put, "/sst/", objstore.ErrUnavailable, appendsAndFlushes, longTrouble, TablesUnwritable, false},
	{"head denied", fault.Put, "/MANIFEST", objstore.ErrDenied, appendsAndFlushes, 0, HeadUnwritable, false},
	{"gets denied", fault.Get, "", objstore.ErrDenied, readsInVain, 7 * time.Second, HeadUnreadable, false},
	{"gets of tables denied", fault.Get, "/sst/", objstore.ErrDenied, readsInVain, 0, TablesUnreadable, false},
	{"lists denied", fault.List, "", objstore.ErrDenied, nothing, time.Minute, GarbageStays, true},
	{"deletes denied", fault.Delete, "", objstore.ErrDenied, appendsAndFlushesDurably, time.Minute, GarbageStays, true},
	{"time denied", fault.Time, "", objstore.ErrDenied, nothing, time.Minute, NothingDropped, true},
}

// appendsAndFlushesDurably leaves WAL objects to be collected.
func appendsAndFlushesDurably(t *testing.T, db *DB) {
	mustAppend(t, db, record("k", "meanwhile"))
	require.NoError(t, db.Flush(t.Context()))
}

// What goes wrong is told once, and shows in Ready, unless nobody who appends or reads misses anything; when it is mended
// all is well by itself, and nothing is lost.
func TestBadDays(t *testing.T) {
	shown := map[TroubleKind]bool{}
	for _, day := range badDays {
		t.Run(day.name, func(t *testing.T) {
			simulated(t, func(t *testing.T, r *garbageRig) { day.run(t, r) })
		})
		shown[day.shows] = true
	}
	// Of the others: TestBadDaysOfReplica, TestCompactionTroubleEnds, TestDiskCacheTroubles.
	require.Len(t, shown, NumTroubleKinds-4)
}

func (day *badDay) run(t *testing.T, r *garbageRig) {
	var logged logLines
	o := r.options()
	o.Logger = logged.logger()
	o.DisableCompaction = false
	o.RecentBytes = 1 // reads of what was flushed go to the store
	o.Retention, o.RetentionInterval, o.GCInterval = 24*time.Hour, time.Minute, time.Minute
	db := r.open(o)
	mustAppend(t, db, record("k", "before"))
	require.NoError(t, db.Flush(t.Context()))
	elapse(time.Minute)
	require.NoError(t, db.Ready(t.Context()))
	require.Empty(t, db.Status().Troubles)
	require.Zero(t, logged.count(day.shows.Says()))

	r.rule(func(_ context.Context, op fault.Op) fault.Plan {
		if (day.op == 0 || op.Kind == day.op) && strings.Contains(op.Name, day.part) {
			return fault.Refuse(day.err)
		}
		return fault.Plan{}
	})
	elapse(time.Second)
	day.meanwhile(t, db)
	elapse(day.after)
	elapse(2 * time.Second)
	err := db.Ready(t.Context())
	require.Equal(t, day.ready, err == nil, "%v", err)
	if err != nil {
		require.ErrorIs(t, err, day.err)
	}
	require.True(t, shows(db.Status().Troubles, day.shows), "%v", db.Status().Troubles)
	lines := logged.count(day.shows.Says())
	require.NotZero(t, lines)
	require.LessOrEqual(t, lines, 1+int(day.after/tellEvery), "one when it begins, and now and then:\n%s", logged.buf.String())

	r.rule(nil)
	elapse(maintenanceBackoffLimit + time.Minute) // readiness comes back at once, see below; the rest at its next turn
	require.NoError(t, db.Ready(t.Context()))
	require.Empty(t, db.Status().Troubles)
	require.Equal(t, 1, logged.count(day.shows.Says()+": over"), "and one when it ends:\n%s", logged.buf.String())
	mustAppend(t, db, record("k", "after"))
	var values []string
	require.NoError(t, readAll(t, db, &values))
	require.Contains(t, [][]string{{"before", "after"}, {"before", "meanwhile", "after"}}, values)
}

func shows(list []Trouble, kind TroubleKind) bool {
	for _, t := range list {
		if t.Kind == kind {
			return true
		}
	}
	return false
}

// Ready comes back within seconds, without anybody who appends or reads.
func TestReadyComesBackByItself(t *testing.T) {
	for _, day := range badDays {
		if day.ready {
			continue
		}
		t.Run(day.name, func(t *testing.T) {
			simulated(t, func(t *testing.T, r *garbageRig) {
				o := r.options()
				o.DisableCompaction, o.RecentBytes = false, 1
				db := r.open(o)
				mustAppend(t, db, record("k", "before"))
				require.NoError(t, db.Flush(t.Context()))
				r.rule(func(_ context.Context, op fault.Op) fault.Plan {
					if (day.op == 0 || op.Kind == day.op) && strings.Contains(op.Name, day.part) {
						return fault.Refuse(day.err)
					}
					return fault.Plan{}
				})
				day.meanwhile(t, db)
				elapse(5 * time.Minute)
				require.Error(t, db.Ready(t.Context()))
				r.rule(nil)
				elapse(flushBackoffLimit + 2*time.Second)
				require.NoError(t, db.Ready(t.Context()))
			})
		})
	}
}

// A store that does not answer when it is tried again keeps nobody from looking at the head.
func TestTryAgainHoldsNothingUp(t *testing.T) {
	simulated(t, func(t *testing.T, r *garbageRig) {
		o := r.options()
		o.RecentBytes = 1
		db := r.open(o)
		mustAppend(t, db, record("k", "v"))
		require.NoError(t, db.Flush(t.Context()))
		gets := func(plan fault.Plan) fault.Hook {
			return fault.On(func(op fault.Op) bool { return op.Kind == fault.Get && strings.Contains(op.Name, "/sst/") }, fault.Always(plan))
		}
		r.rule(gets(fault.Refuse(objstore.ErrDenied)))
		require.Error(t, readAll(t, db, nil))
		r.rule(gets(fault.Plan{Before: func(ctx context.Context) error {
			<-ctx.Done()
			return ctx.Err()
		}}))
		elapse(2*tryLimit + time.Second)
		require.LessOrEqual(t, db.Status().HeadAge, pollInterval)
		require.ErrorIs(t, db.Ready(t.Context()), objstore.ErrUnavailable)
		r.rule(nil)
		elapse(tryLimit + 2*pollInterval) // the try under way ends, and the next one comes
		require.NoError(t, db.Ready(t.Context()))
	})
}

// Failures that go on are logged now and then, however many there are.
func TestTroubleIsNotAFlood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var logged logLines
		ts := newTroubles(logged.logger(), bubbleEnv())
		broken := errors.New("broken")
		time.Sleep(time.Second)
		for range 1000 {
			ts[TablesUnwritable].note(broken)
			time.Sleep(100 * time.Millisecond)
		}
		require.Equal(t, 4, logged.count("tables cannot be written"), "in 100 s")
	})
}

// While one of several things is still repeated, the trouble lasts.
func TestTroubleLastsUntilTheLastTry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var logged logLines
		ts := newTroubles(logged.logger(), bubbleEnv())
		a, b := try{of: &ts[TablesUnwritable]}, try{of: &ts[TablesUnwritable]}
		a.note(objstore.ErrDenied)
		b.note(objstore.ErrDenied)
		a.note(nil)
		require.ErrorIs(t, ts.stops(), objstore.ErrDenied)
		require.Zero(t, logged.count("tables cannot be written: over"))
		b.note(nil)
		require.NoError(t, ts.stops())
		require.Equal(t, 1, logged.count("tables cannot be written"))
		require.Equal(t, 1, logged.count("tables cannot be written: over"))
	})
}

// What a replica must be able to do is to read.
func TestBadDaysOfReplica(t *testing.T) {
	for _, test := range []struct {
		name, part string
		shows      TroubleKind
	}{
		{"everything", "", HeadUnreadable},
		{"the head", "/MANIFEST", HeadUnreadable},
		{"the WAL", "/wal/", NotFollowing},
		{"tables", "/sst/", TablesUnreadable},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				rig := newReplicaRig(t, smallOptions())
				mustAppend(t, rig.db, record("k", "flushed"))
				require.NoError(t, rig.db.Flush(t.Context()))
				var logged logLines
				r := rig.open(ReaderOptions{Logger: logged.logger(), CacheBytes: 1})
				elapse(2 * time.Second)
				require.NoError(t, r.Ready(t.Context()))
				rig.store.breaks(func(name string) fault.Plan {
					if strings.Contains(name, test.part) {
						return fault.Refuse(objstore.ErrDenied)
					}
					return fault.Plan{}
				})
				err := readAll(t, r, nil)
				if test.shows == TablesUnreadable {
					require.ErrorIs(t, err, objstore.ErrDenied)
				}
				elapse(10 * time.Second)
				require.ErrorIs(t, r.Ready(t.Context()), objstore.ErrDenied)
				require.True(t, shows(r.Status().Troubles, test.shows), "%v", r.Status().Troubles)
				require.Equal(t, 1, logged.count(test.shows.Says()))
				rig.store.breaks(nil)
				elapse(5 * time.Second)
				require.NoError(t, r.Ready(t.Context()))
				require.Empty(t, r.Status().Troubles)
				require.Equal(t, 1, logged.count(test.shows.Says()+": over"))
				var values []string
				require.NoError(t, readAll(t, r, &values))
				require.Equal(t, []string{"flushed"}, values)
			})
		})
	}
}

// docs/TROUBLE.md has all that is told, in the words of the log and of the metric, and nothing else.
func TestTroubleIsDocumented(t *testing.T) {
	doc, err := os.ReadFile("../docs/TROUBLE.md")
	require.NoError(t, err)
	var want []string
	for kind := range TroubleKind(NumTroubleKinds) {
		want = append(want, fmt.Sprintf("| `%s` | `%s` |", kind.Says(), kind))
	}
	for _, err := range []error{
		objstore.ErrDenied, objstore.ErrCredentials, objstore.ErrNoBucket, objstore.ErrFull, objstore.ErrUnavailable,
	} {
		require.Contains(t, string(doc), fmt.Sprintf("\n| `%v` | ", err))
	}
	require.ElementsMatch(t, want, regexp.MustCompile("(?m)^\\| `[^`]*` \\| `[a-z_]*` \\|").FindAllString(string(doc), -1))
}

// putsDenied is a store on which PUTs of some names are denied while a test says so.
func putsDenied(part string) (store objstore.Store, deny func(bool)) {
	var denied atomic.Bool
	store = fault.New(newStore(), func(_ context.Context, op fault.Op) fault.Plan {
		if denied.Load() && op.Kind == fault.Put && strings.Contains(op.Name, part) {
			return fault.Refuse(objstore.ErrDenied)
		}
		return fault.Plan{}
	})
	return store, denied.Store
}

// A job that fails is told, and no reason not to be ready.
func TestCompactionTroubleEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var logged logLines
		o := simulatedOptions()
		o.Logger = logged.logger()
		store, deny := putsDenied("/c0")
		deny(true)
		db := openTest(t, store, o)
		for range 2 {
			mustAppend(t, db, record("k", "a"))
			require.NoError(t, db.Flush(t.Context()))
		}
		db.mu.Lock()
		db.rotate(true)
		db.mu.Unlock()
		elapse(10 * time.Second)
		require.NoError(t, db.Ready(t.Context()))
		require.True(t, shows(db.Status().Troubles, NotCompacting))
		require.Equal(t, 1, logged.count(NotCompacting.Says()))
		deny(false)
		elapse(jobBackoffLimit)
		require.Empty(t, db.Status().Troubles)
		require.Equal(t, 1, logged.count(NotCompacting.Says()+": over"))
		require.NotZero(t, db.Status().Compaction.Jobs)
	})
}

// A compactor without a writer tells that it cannot commit, and goes on when it can.
func TestCompactorOfItsOwnTellsTrouble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var logged logLines
		o := simulatedOptions()
		o.DisableCompaction = true
		store, deny := putsDenied("/MANIFEST")
		openTest(t, store, o)
		ended := make(chan error)
		ctx, stop := context.WithCancel(t.Context())
		go func() { ended <- Compact(ctx, store, CompactOptions{Env: o.Env, Logger: logged.logger()}) }()
		elapse(time.Second)
		deny(true)
		elapse(beatEvery)
		require.Equal(t, 1, logged.count(HeadUnwritable.Says()))
		deny(false)
		elapse(10 * time.Second)
		require.Equal(t, 1, logged.count(HeadUnwritable.Says()+": over"))
		stop()
		require.NoError(t, <-ended)
	})
}

// Of a compactor that another one has replaced nothing fails any more, whatever did before.
func TestCompactionTroubleEndsWithTheEpoch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := simulatedOptions()
		store, deny := putsDenied("/c0")
		deny(true)
		db := openTest(t, store, o)
		for range 2 {
			mustAppend(t, db, record("k", "a"))
			require.NoError(t, db.Flush(t.Context()))
		}
		db.mu.Lock()
		db.rotate(true)
		db.mu.Unlock()
		elapse(10 * time.Second)
		require.True(t, shows(db.Status().Troubles, NotCompacting))
		taken, err := db.committer.Commit(t.Context(), manifest.OpenCompactor(db.Head().GetCompactor().GetEpoch(), newOwner(db.env)))
		require.NoError(t, err)
		elapse(2 * watchEvery)
		require.Empty(t, db.Status().Troubles)

		// It stands by, and cannot tell what fails the other one.
		db.troubles[NotCompacting].note(objstore.ErrUnavailable) // of a look before
		epoch := taken.State.GetCompactor().GetEpoch()
		for beat := range 3 {
			_, err := db.committer.Commit(t.Context(), manifest.Beat(epoch, uint64(beat+2)))
			require.NoError(t, err)
			elapse(2 * watchEvery)
		}
		require.Empty(t, db.Status().Troubles)
	})
}

// A job that failed is of no interest once its segment was dropped, however much else there is to do.
func TestCompactionTroubleEndsWithTheJob(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := simulatedOptions()
		o.DisableCompaction = true
		db := openTest(t, newStore(), o)
		for range 2 {
			mustAppend(t, db, record("k", "a"))
			require.NoError(t, db.Flush(t.Context()))
		}
		db.mu.Lock()
		db.rotate(true)
		db.mu.Unlock()
		elapse(time.Second)
		c := &compactor{env: db.env, limits: db.opts.compactionLimits(), fails: &db.troubles[NotCompacting]}
		aside := newSetAside()
		later := jobFailure{times: 1, until: db.env.Elapsed() + time.Hour}
		job, ok := c.next(db.Head(), aside)
		require.True(t, ok)
		aside.failed[job.First], aside.failed[job.First+7] = later, later
		c.fails.note(objstore.ErrUnavailable)
		_, ok = c.next(db.Head(), aside)
		require.False(t, ok)
		require.Equal(t, map[uint32]jobFailure{job.First: later}, aside.failed)
		require.True(t, shows(db.Status().Troubles, NotCompacting), "one is still to be done")
		delete(aside.failed, job.First)
		aside.failed[job.First+7] = later
		_, ok = c.next(db.Head(), aside)
		require.True(t, ok)
		require.Empty(t, db.Status().Troubles)
	})
}

// A table that can be read again just when it is told that it could not does not leave a trouble for ever.
func TestTableTroubleEndsWhateverOvertakes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := bubbleEnv()
		var ts *tables
		again := func() { ts.tryAgain(t.Context(), func(_ string, f func()) { f() }) }
		overtaken := false
		elapsed := env.Elapsed
		env.Elapsed = func() time.Duration {
			if !overtaken {
				overtaken = true
				again() // before the trouble has begun
			}
			return elapsed()
		}
		store := newStore()
		_, err := store.Put(t.Context(), "x", []byte("x"), objstore.PutOptions{})
		require.NoError(t, err)
		troubles := newTroubles(slog.New(slog.DiscardHandler), env)
		ts = &tables{store: store, env: env, unreadable: &troubles[TablesUnreadable]}
		ts.note("x", objstore.ErrDenied)
		require.True(t, overtaken)
		require.Error(t, troubles.stops())
		again()
		require.NoError(t, troubles.stops())
	})
}

// A compactor without a writer ends when another log takes the place of its own.
func TestCompactorOfItsOwnEndsWithItsLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := simulatedOptions()
		o.DisableCompaction = true
		store := newStore()
		db := openTest(t, store, o)
		mustAppend(t, db, record("k", "a"))
		require.NoError(t, db.Close(t.Context()))
		ended := make(chan error, 1)
		go func() { ended <- Compact(t.Context(), store, CompactOptions{Env: o.Env}) }()
		elapse(time.Second)
		page, err := store.List(t.Context(), "", "", 1000)
		require.NoError(t, err)
		for _, obj := range page.Entries {
			require.NoError(t, store.Delete(t.Context(), []string{obj.Name}))
		}
		openTest(t, store, o)
		elapse(time.Minute)
		select {
		case err := <-ended:
			require.ErrorIs(t, err, manifest.ErrOtherLog)
		default:
			t.Fatal("it goes on")
		}
	})
}
