package engine

import (
	"time"

	"github.com/annalsdb/annals/manifest"
)

// segmentClock knows how old and how large the active segment is. Age is
// elapsed time since its first record, not a matter of record timestamps.
// Guarded by DB.mu.
type segmentClock struct {
	started bool
	since   time.Duration // Elapsed() when its first record came
	bytes   int64
}

// newSegmentClock continues the clock of a segment from an earlier process: the
// store's time is the best witness of the time between.
func newSegmentClock(s *manifest.Segment, elapsed time.Duration, clock storeClock) segmentClock {
	var c segmentClock
	for _, r := range s.GetRuns() {
		for _, t := range r.GetTables() {
			c.started = true
			c.bytes += int64(t.GetBytes())
		}
	}
	if c.started {
		age := clock.now(elapsed).Sub(time.UnixMilli(s.GetStartTimeMs()))
		c.since = elapsed - max(0, age)
	}
	return c
}

func (c *segmentClock) add(elapsed time.Duration, bytes int64) {
	if !c.started {
		c.started, c.since = true, elapsed
	}
	c.bytes += bytes
}

// sealIfDue ends the active segment if it is large or old enough, or has as many
// runs as a segment may have. An empty one never is. Callers hold mu.
func (db *DB) sealIfDue() {
	c := &db.segment
	if !c.started {
		return
	}
	age := db.env.Elapsed() - c.since
	old := age >= db.opts.SegmentInterval && (c.bytes >= db.opts.SegmentMinBytes || db.oldForRetention(age))
	full := db.committedRuns() >= db.opts.MaxRuns && activeSegment(db.snapshot.State).GetId() == db.active.segment
	if old || full || c.bytes >= db.opts.SegmentBytes {
		db.rotate(true)
	}
}

// oldForRetention reports whether a segment of this age is sealed however small it
// is: else retention could not drop what it holds in time.
func (db *DB) oldForRetention(age time.Duration) bool {
	return db.opts.Retention > 0 && age >= db.opts.Retention/retentionParts
}

// armSealTimer makes sealIfDue run when the active segment reaches its age and
// no append comes to notice, and once more when it is old for retention. A segment
// that is too small by then is sealed by the append that makes it large enough.
// Callers hold mu.
func (db *DB) armSealTimer() {
	if db.segment.started && db.stopSeal == nil {
		db.sealAtAge(db.opts.SegmentInterval)
	}
}

// sealAtAge makes sealIfDue run when the active segment has this age. Callers hold mu.
func (db *DB) sealAtAge(age time.Duration) {
	segment := db.active.segment
	db.stopSeal = db.env.AfterFunc(max(0, db.segment.since+age-db.env.Elapsed()), func() {
		db.mu.Lock()
		defer db.mu.Unlock()
		if db.failed != nil || db.closing || db.active.segment != segment {
			return
		}
		db.sealIfDue()
		if later := db.opts.Retention / retentionParts; later > age && db.active.segment == segment {
			db.sealAtAge(later)
		}
	})
}

// stopTimers stops what would keep a closed DB in memory. Callers hold mu.
func (db *DB) stopTimers() {
	stop(&db.stopCut)
	stop(&db.stopSeal)
}

// stop stops the timer of a stop function, if there is one, and forgets it.
func stop(timer *func() bool) {
	if *timer != nil {
		(*timer)()
		*timer = nil
	}
}
