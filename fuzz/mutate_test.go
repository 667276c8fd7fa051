package fuzz

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/compaction"
	"github.com/annalsdb/annals/engine"
	"github.com/annalsdb/annals/objstore"
)

// Structure-aware mutation: objects of a valid log are changed, and everything that reads them
// gives the right answer, or an error that names a changed object. The checksums are left as they are, so
// that only what is no mutation at all may pass. Places are drawn; that whole blocks, frames and parts which change places
// are found is tested beside the codecs (TestMisplaced...).

// damaged is a specimen after mutations.
type damaged struct {
	t       *testing.T
	s       *specimen
	objects objects
	changed []string // names
	how     string
}

func (s *specimen) damage(t *testing.T, mutations []mutation) *damaged {
	d := &damaged{t: t, s: s, objects: make(objects)}
	for name, body := range s.objects {
		d.objects[name] = body
	}
	for _, m := range mutations {
		d.how += d.objects.mutate(m, s.foreign) + "\n"
	}
	for name, body := range d.objects {
		if before, was := s.objects[name]; !was || !bytes.Equal(before, body) {
			d.changed = append(d.changed, name)
		}
	}
	return d
}

// patience is how long anything may take, on simulated time: what goes on for ever fails.
const patience = 10 * time.Minute

// blames requires that an error is damage and names a changed object.
func (d *damaged) blames(what string, err error) {
	d.t.Helper()
	if !errors.Is(err, engine.ErrCorrupt) {
		d.t.Fatalf("%s\n%s: %v", d.how, what, err)
	}
	for _, name := range d.changed {
		if strings.Contains(err.Error(), name) {
			return
		}
	}
	d.t.Fatalf("%s\n%s: the error names another object: %v", d.how, what, err)
}

// all requires all of a damaged log, and reports whether nothing is wrong with it. What Check does not
// find must not matter.
func (d *damaged) all() bool {
	sound := d.checked(d.objects.store(d.t))
	for what, f := range map[string]func() bool{"writer": d.writer, "replica": d.replica, "compactor": d.compactor} {
		if whole := f(); sound && !whole {
			d.t.Fatalf("%s\nCheck finds nothing, but a %s does not read everything", d.how, what)
		}
	}
	return sound
}

// checked runs Check and reports whether it found nothing.
func (d *damaged) checked(store objstore.Store) bool {
	ctx, cancel := context.WithTimeout(d.t.Context(), patience)
	defer cancel()
	report, err := engine.Check(ctx, store, engine.CheckOptions{Env: simEnv()})
	require.NoError(d.t, err, d.how)
	for _, err := range report.Damage {
		d.blames("check", err)
	}
	return len(report.Damage) == 0
}

// writer opens the log and reads everything. It reports whether that was possible.
func (d *damaged) writer() bool {
	ctx, cancel := context.WithTimeout(d.t.Context(), patience)
	defer cancel()
	db, err := engine.Open(ctx, d.objects.store(d.t), specimenOptions())
	if err != nil {
		d.blames("open", err)
		return false
	}
	defer kill(db)
	require.GreaterOrEqual(d.t, db.Frontier(), d.s.end, "%s\nthe end of the log is missing", d.how)
	return d.reads(ctx, "writer", db)
}

// replica opens one, lets it read what it can, and reads everything there: a prefix of the log.
func (d *damaged) replica() bool {
	ctx, cancel := context.WithTimeout(d.t.Context(), patience)
	defer cancel()
	r, err := engine.OpenReader(ctx, d.objects.store(d.t), engine.ReaderOptions{Env: simEnv(), CacheBytes: 1})
	if err != nil {
		d.blames("open a replica", err)
		return false
	}
	defer func() { require.NoError(d.t, r.Close(context.Background())) }()
	time.Sleep(10 * time.Second)
	synctest.Wait()
	err = r.Ready(ctx)
	if err != nil { // perhaps behind a fence only, with all records
		d.blames("ready", err)
	} else {
		require.GreaterOrEqual(d.t, r.Frontier(), d.s.end, "%s\na replica is ready", d.how)
	}
	return d.reads(ctx, "replica", r) && err == nil
}

// compactor opens the log, lets everything be compacted that is due, and reads it.
func (d *damaged) compactor() bool {
	ctx, cancel := context.WithTimeout(d.t.Context(), patience)
	defer cancel()
	store := d.objects.store(d.t)
	o := specimenOptions()
	o.DisableCompaction = false
	db, err := engine.Open(ctx, store, o)
	if err != nil {
		d.blames("open", err)
		return false
	}
	time.Sleep(2 * takesOver)
	for range 10 {
		if len(compaction.Plan(db.Head(), limitsOf(o))) == 0 {
			break
		}
		time.Sleep(2 * time.Second)
	}
	whole := d.reads(ctx, "compacted", db)
	_ = db.Close(ctx) // an error of what it could not read is not the last word
	if sound := d.checked(store); sound && !whole {
		d.t.Fatalf("%s\nafter compaction Check finds nothing, but reads fail", d.how)
	}
	return whole
}

// reads reads everything below a reader's frontier in several ways and reports whether all of it
// could be read.
func (d *damaged) reads(ctx context.Context, what string, r engine.LogReader) bool {
	whole := true
	failed := func(what string, err error) bool {
		if err != nil {
			d.blames(what, err)
			whole = false
		}
		return err != nil
	}
	for _, key := range sweepKeys {
		end := r.Frontier()
		var want []engine.Record
		for _, rec := range d.s.records[key] {
			if rec.Sequence < end {
				want = append(want, rec)
			}
		}
		require.True(d.t, end < d.s.end || len(want) == len(d.s.records[key]))
		window := engine.Between(0, end)
		d.scan(ctx, what+": scan", r, key, want, engine.ScanOptions{}, failed)
		d.scan(ctx, what+": last", r, key, want[max(0, len(want)-5):], engine.ScanOptions{Last: 5}, failed)
		if n, err := r.Count(ctx, []byte(key), window); !failed(what+": count", err) {
			require.Equal(d.t, uint64(len(want)), n, "%s\n%s: count of %q", d.how, what, key)
		}
	}
	if page, err := r.Keys(ctx, engine.KeysOptions{}); !failed(what+": keys", err) {
		require.Len(d.t, page.Keys, len(sweepKeys), "%s\n%s: keys", d.how, what)
	}
	if _, replica := r.(*engine.Reader); !replica || whole && r.Frontier() >= d.s.end {
		if cursors, err := cursorsOf(ctx, r); !failed(what+": cursors", err) {
			require.Equal(d.t, d.s.cursors, cursors, "%s\n%s: cursors", d.how, what)
		}
	}
	return whole
}

// scan requires that a scan returns the records, or some of the first of them and an error.
func (d *damaged) scan(ctx context.Context, what string, r engine.LogReader, key string, want []engine.Record,
	o engine.ScanOptions, failed func(string, error) bool) {
	got, err := collect(r.Scan(ctx, []byte(key), engine.All(), o))
	if failed(what, err) {
		require.LessOrEqual(d.t, len(got), len(want), "%s\n%s of %q", d.how, what, key)
		want = want[:len(got)]
	}
	require.True(d.t, sameRecords(want, got), "%s\n%s of %q:\n got %s\nwant %s", d.how, what, key, describe(got), describe(want))
}

// mutationSeed starts the random mutations; it is printed when one fails.
func mutationSeed() uint64 { return uint64(time.Now().UnixNano()) }

// mutationRounds is how often each mutator is tried on each kind of object.
func mutationRounds(t *testing.T, byDefault int) int {
	s := os.Getenv("ANNALS_FUZZ_RUNS")
	if s == "" {
		return byDefault
	}
	n, err := strconv.Atoi(s)
	require.NoError(t, err, "ANNALS_FUZZ_RUNS")
	return max(1, byDefault*n/defaultRuns)
}

// TestUndamagedSpecimen holds the oracle against a log that nothing is wrong with.
func TestUndamagedSpecimen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSpecimen(t)
		d := s.damage(t, nil)
		require.True(t, d.checked(d.objects.store(t)))
		require.True(t, d.writer())
		require.True(t, d.replica())
		require.True(t, d.compactor())
	})
}

// TestMutatedObjects tries every mutator on every kind of object.
func TestMutatedObjects(t *testing.T) {
	seed := mutationSeed()
	rng := rand.New(rand.NewPCG(seed, 0))
	unchanged, found, runs := 0, 0, 0
	for round := range mutationRounds(t, 1) {
		for op := range mutators {
			for class := range 7 {
				m := mutation{op: byte(op), class: byte(class), object: byte(rng.Uint32()), other: byte(rng.Uint32()),
					at: uint16(rng.Uint32()), to: uint16(rng.Uint32())}
				name := fmt.Sprintf("seed %d, round %d, %v", seed, round, m)
				synctest.Test(t, func(t *testing.T) {
					d := newSpecimen(t).damage(t, []mutation{m})
					d.how = name + "\n" + d.how
					if runs++; len(d.changed) == 0 {
						unchanged++
					}
					if !d.all() {
						found++
					}
				})
				if t.Failed() {
					t.FailNow()
				}
			}
		}
	}
	t.Logf("seed %d: of %d mutations %d are found, and %d change nothing", seed, runs, found, unchanged)
	require.Greater(t, found, runs/2, "most objects matter")
}

// FuzzMutatedLog is TestMutatedObjects with mutations that a fuzzer makes, several at once.
func FuzzMutatedLog(f *testing.F) {
	for _, m := range sampleMutations() {
		f.Add(m.bytes())
	}
	f.Add([]byte("two mutations..."))
	f.Fuzz(func(t *testing.T, data []byte) {
		synctest.Test(t, func(t *testing.T) {
			newSpecimen(t).damage(t, parseMutations(data)).all()
		})
	})
}

// sampleMutations has each mutator, and each kind of object, once at least.
func sampleMutations() (all []mutation) {
	for i := range mutators {
		all = append(all, mutation{op: byte(i), class: byte(i), object: byte(i), other: byte(11 * i), at: uint16(5000 * i), to: uint16(6000 * i)})
	}
	return all
}
