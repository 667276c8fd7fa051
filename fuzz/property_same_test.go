package fuzz

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/annalsdb/annals/engine"
	"github.com/annalsdb/annals/objstore/mem"
)

// One history, played under every set of options: what a client sees of it must be the same each time, and what the
// model says, with restarts in between.
//
// Options may show in three things, which are kept out of what is compared. How many sequences an unclean open leaves out
// depends on what was flushed when: records go by their number, not their sequence. Timestamps depend on how long
// appends take. And retention drops by time and bytes: no set that has it takes part.

// sameRuns is the number of histories that TestSameHistory plays, under all sets of options each.
const sameRuns = 5

// sameSets are the sets of options that must not show.
func sameSets() map[string]engine.Options {
	sets := optionSets()
	maps.DeleteFunc(sets, func(_ string, o engine.Options) bool { return o.Retention > 0 || o.RetentionBytes > 0 })
	delete(sets, "room for one batch") // it refuses what others take
	sets["room for few batches"] = engine.Options{MaxUnflushedBytes: 16 << 10, MaxKeyBytes: 300, MaxValueBytes: 3000, RecentBytes: 1}
	sets["grouped at once"] = engine.Options{SegmentBytes: 1, RecentBytes: 1, CacheBytes: 1, GCInterval: time.Second}
	return sets
}

// step is one operation of a history. Numbers of records are taken modulo those that there are, so that a step means
// something whatever is left of the steps before it.
type step struct {
	Do       string
	Key      int // of modelKeys
	From, To int // numbers of records
	N        int
	Sizes    []int // of values
	Keys     []int // of modelKeys
	Pause    time.Duration
}

// stepKinds, as often as they are to come.
var stepKinds = []string{
	"append", "append", "append", "append", "append if", "append again", "flush",
	"scan", "scan back", "scan by pages", "count", "keys", "set cursors", "read cursors",
	"time passes", "clean reopen", "crash", "takeover", "collect", "compactor",
}

func drawStep(t *rapid.T) step {
	key := rapid.IntRange(0, len(modelKeys)-1)
	s := step{
		Do:   rapid.SampledFrom(stepKinds).Draw(t, "do"),
		Key:  key.Draw(t, "key"),
		From: rapid.IntRange(0, 300).Draw(t, "from"),
		To:   rapid.IntRange(0, 300).Draw(t, "to"),
		N:    rapid.SampledFrom([]int{0, 1, 2, 5, 30}).Draw(t, "n"),
	}
	switch s.Do {
	case "append", "append if", "append again":
		s.Keys = rapid.SliceOfN(key, 1, 5).Draw(t, "keys")
		s.Sizes = rapid.SliceOfN(rapid.SampledFrom([]int{0, 8, 50, 400, 3000}), len(s.Keys), len(s.Keys)).Draw(t, "sizes")
	case "time passes":
		s.Pause = rapid.SampledFrom([]time.Duration{time.Millisecond, 200 * time.Millisecond, 5 * time.Second, time.Minute}).Draw(t, "pause")
	}
	return s
}

// TestSameHistory draws a history, plays it under each set of options, and compares.
func TestSameHistory(t *testing.T) {
	setRuns(t, sameRuns)
	sets := sameSets()
	names := slices.Sorted(maps.Keys(sets))
	rapid.MakeCheck(func(t *rapid.T) {
		rapid.SyncTest(t, func(t *rapid.T) {
			var steps []step
			t.Repeat(map[string]func(*rapid.T){ // draws about -rapid.steps of them
				"step": func(t *rapid.T) { steps = append(steps, drawStep(t)) },
			})
			seed := [32]byte{byte(rapid.IntRange(0, 255).Draw(t, "randomness"))}
			var first []string
			for i, name := range names {
				seen := play(t, sets[name], seed, steps)
				if i == 0 {
					first = seen
					continue
				}
				for j := range steps {
					require.Equal(t, first[j], seen[j], "step %d of the history, %+v:\nunder %q\nand %q", j, steps[j], names[0], name)
				}
			}
		})
	})(t)
}

// player plays a history on a machine, which compares it with the model, and notes what a client sees.
type player struct {
	*machine
	t        *rapid.T
	producer uint64 // the last number that was taken
}

// play returns what is seen at each step.
func play(t *rapid.T, o engine.Options, seed [32]byte, steps []step) (seen []string) {
	p := &player{t: t, machine: &machine{
		model: &model{}, ledger: newLedger(), seed: rand.NewChaCha8(seed),
		options: func(*rapid.T) engine.Options { return o },
	}}
	defer p.killAll()
	p.moveTo(t, rigOn(nil, mem.New(mem.Options{})))
	p.open(t, 0, true)
	for _, s := range steps {
		seen = append(seen, p.do(s))
		p.invariants(t)
	}
	p.reopen(t)
	p.settle(t)
	return seen
}

// do does one step and returns what it shows.
func (p *player) do(s step) string {
	t, key := p.t, modelKeys[s.Key]
	switch s.Do {
	case "append", "append if", "append again":
		return p.appended(s)
	case "flush":
		p.flush(t)
	case "scan":
		return p.scanned(key, p.rangeOf(s), engine.ScanOptions{Limit: s.N})
	case "scan back":
		return p.scanned(key, p.rangeOf(s), engine.ScanOptions{Last: s.N, MaxBytes: int64(s.N) * 100})
	case "scan by pages":
		return p.paged(key, max(1, s.N))
	case "count":
		n, err := p.db.Count(context.Background(), []byte(key), p.rangeOf(s))
		require.NoError(t, err)
		return fmt.Sprint(n)
	case "keys":
		page, err := p.db.Keys(context.Background(), engine.KeysOptions{After: []byte(key), Limit: s.N})
		require.NoError(t, err)
		return fmt.Sprintf("%q %v", page.Keys, page.More)
	case "set cursors":
		got, err := p.db.SetCursors(context.Background(), "c", []engine.Cursor{{Key: []byte(key), Next: uint64(s.From)}}, engine.CursorOptions{})
		require.NoError(t, err)
		p.ledger.change(true, func(m *smallModel) { m.set("c", []engine.Cursor{{Key: []byte(key), Next: uint64(s.From)}}, false) })
		return fmt.Sprint(got)
	case "read cursors":
		return fmt.Sprint(p.dump(t))
	case "time passes":
		time.Sleep(s.Pause)
	case "collect":
		p.collect(t)
	case "compactor":
		p.compactor(t)
	default:
		return p.restarted(s.Do)
	}
	return ""
}

// restarted ends the process in some way and returns what the next one reads. What is assigned is made durable
// first: that is all that an acknowledgement from memory leaves open.
func (p *player) restarted(how string) string {
	ctx, cancel := p.patient()
	defer cancel()
	if p.model.next > 0 {
		require.NoError(p.t, p.db.WaitDurable(ctx, p.model.next-1))
	}
	switch how {
	case "clean reopen":
		p.reopen(p.t)
	case "crash":
		p.crash(p.t)
	case "takeover":
		p.takeover(p.t)
	}
	var all []string
	for _, key := range modelKeys {
		all = append(all, p.scanned(key, engine.All(), engine.ScanOptions{}))
	}
	return strings.Join(all, "\n")
}

// appended appends a batch: as it is, or if a key has no record above a number, or as a producer's, the last one again
// now and then.
func (p *player) appended(s step) string {
	recs := make([]engine.Record, 0, len(s.Keys))
	for i, key := range s.Keys {
		p.values++
		value := fmt.Sprintf("%08d", p.values) + strings.Repeat("x", s.Sizes[i])
		recs = append(recs, engine.Record{Key: []byte(modelKeys[key]), Value: []byte(value[:s.Sizes[i]])})
	}
	var o engine.AppendOptions
	switch s.Do {
	case "append if":
		o.ExpectedNext = []engine.KeySequence{{Key: []byte(modelKeys[s.Key]), Next: p.sequence(s.From)}}
	case "append again":
		o.Producer, o.ProducerSequence = "p", p.producer+uint64(s.N%2)
		p.producer = o.ProducerSequence
	}
	res, err := p.appendThis(p.t, recs, o)
	var conflict *engine.ConditionError
	switch {
	case errors.As(err, &conflict):
		return fmt.Sprintf("conflict with record %d of %q", p.number(conflict.Last), conflict.Key)
	case err != nil:
		require.NoError(p.t, err)
	}
	return fmt.Sprintf("records %d to %d, repeated %v", p.number(res.First), p.number(res.Last), res.Repeated)
}

// scanned scans, and lets the machine compare the same with the model.
func (p *player) scanned(key string, r engine.Range, o engine.ScanOptions) string {
	p.scanAgrees(p.t, key, r, o)
	it := p.db.Scan(context.Background(), []byte(key), r, o)
	recs, err := collect(it)
	require.NoError(p.t, err)
	return p.describe(recs) + fmt.Sprintf("next %d", p.number(it.Next()))
}

// paged reads a key page by page.
func (p *player) paged(key string, limit int) string {
	var all []engine.Record
	for cursor := uint64(0); ; {
		it := p.db.Scan(context.Background(), []byte(key), engine.From(cursor), engine.ScanOptions{Limit: limit})
		recs, err := collect(it)
		require.NoError(p.t, err)
		all, cursor = append(all, recs...), it.Next()
		if len(recs) < limit {
			return p.describe(all)
		}
	}
}

func (p *player) describe(recs []engine.Record) string {
	var b strings.Builder
	for _, rec := range recs {
		fmt.Fprintf(&b, "%d %.12s:%d, ", p.number(rec.Sequence), rec.Value, len(rec.Value))
	}
	return b.String()
}

// number is how many records lie below a sequence.
func (p *player) number(seq uint64) int { return p.model.upTo(seq) }

// sequence is that of the record with a number, taken modulo one more than there are.
func (p *player) sequence(number int) uint64 {
	if number %= len(p.model.recs) + 1; number < len(p.model.recs) {
		return p.model.recs[number].seq
	}
	return p.model.next
}

// rangeOf is the range between two records.
func (p *player) rangeOf(s step) engine.Range {
	return engine.Between(p.sequence(s.From), p.sequence(s.To))
}
