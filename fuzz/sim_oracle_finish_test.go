package fuzz

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/annalsdb/annals/engine"
)

// finish implements simOracle: the log, read as a whole by a writer that has just opened it, is what the oracle has.
func (o *oracle) finish(db *engine.DB) {
	want, err := o.whole(db)
	if err == nil {
		err = want.compare(context.Background(), db)
	}
	defer o.enter()()
	if err != nil {
		o.broke("I1: what the last writer reads is not what was put: %w", err)
	}
}

// wholeLog is all that a log has.
type wholeLog struct {
	keys    map[string][]*simRecord
	cursors map[string]map[string]uint64
}

// whole returns what the log has, and looks at where it begins and ends by the writer.
func (o *oracle) whole(db *engine.DB) (*wholeLog, error) {
	defer o.enter()()
	if err := o.firstErr(); err != nil {
		return nil, err
	}
	if got := db.FirstSequence(); got != o.head.first {
		return nil, fmt.Errorf("the log begins at %d, not %d", got, o.head.first)
	}
	if got := db.Frontier(); got < max(o.answers.floor, o.log.end) {
		return nil, fmt.Errorf("the frontier is %d; sequences below %d were acknowledged, the log ends at %d", got, o.answers.floor, o.log.end)
	}
	w := &wholeLog{keys: map[string][]*simRecord{}, cursors: o.small.now.clone().cursors}
	for key, all := range o.log.keys {
		w.keys[key] = between(all, engine.From(o.head.first))
	}
	return w, nil
}

func (w *wholeLog) compare(ctx context.Context, db *engine.DB) error {
	there := map[string]bool{}
	for _, key := range slices.Sorted(maps.Keys(w.keys)) {
		if len(w.keys[key]) > 0 {
			there[key] = true
		}
		if err := compareKey(ctx, db, key, w.keys[key]); err != nil {
			return err
		}
	}
	page, err := db.Keys(ctx, engine.KeysOptions{})
	if err != nil {
		return err
	}
	if len(page.Keys) != len(there) {
		return fmt.Errorf("%d keys, not %d", len(page.Keys), len(there))
	}
	for _, key := range page.Keys {
		if !there[string(key)] {
			return fmt.Errorf("key %q should have no record", key)
		}
	}
	return w.compareCursors(ctx, db)
}

// compareKey reads all records of a key, and counts them.
func compareKey(ctx context.Context, db *engine.DB, key string, want []*simRecord) error {
	got, err := collect(db.Scan(ctx, []byte(key), engine.All(), engine.ScanOptions{}))
	if err != nil {
		return err
	}
	if len(got) != len(want) {
		return fmt.Errorf("key %q has %d records, not %d", key, len(got), len(want))
	}
	for i := range got {
		if !want[i].is(&got[i]) {
			return fmt.Errorf("key %q: record %d is %q at %d, not %q at %d", key, i, got[i].Value, got[i].Sequence, want[i].value, want[i].seq)
		}
	}
	n, err := db.Count(ctx, []byte(key), engine.All())
	if err == nil && n != uint64(len(want)) {
		err = fmt.Errorf("key %q is counted to have %d records, not %d", key, n, len(want))
	}
	return err
}

func (w *wholeLog) compareCursors(ctx context.Context, db *engine.DB) error {
	consumers, err := db.Consumers(ctx, "", 0)
	if err != nil {
		return err
	}
	if len(consumers.Consumers) != len(w.cursors) {
		return fmt.Errorf("%d consumers, not %d", len(consumers.Consumers), len(w.cursors))
	}
	for consumer, want := range w.cursors {
		page, err := db.Cursors(ctx, consumer, engine.CursorsOptions{})
		if err != nil {
			return err
		}
		if len(page.Cursors) != len(want) {
			return fmt.Errorf("%s has %d cursors, not %d", consumer, len(page.Cursors), len(want))
		}
		for _, c := range page.Cursors {
			if next, ok := want[string(c.Key)]; !ok || next != c.Next {
				return fmt.Errorf("%s has a cursor for %q at %d, not %d (there: %v)", consumer, c.Key, c.Next, next, ok)
			}
		}
	}
	return nil
}
