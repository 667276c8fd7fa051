package bench

import (
	"time"

	"github.com/annalsdb/annals/objstore/metered"
)

// ages are how far behind a consumer may be when it polls: since when the log has gone on behind its cursor. What was
// appended in the last seconds is still in the engine's memory.
var ages = [...]struct {
	name, label string
	below       time.Duration
}{
	{"under_1s", "behind < 1 s", time.Second},
	{"under_10s", "behind < 10 s", 10 * time.Second},
	{"under_1m", "behind < 1 min", time.Minute},
	{"under_10m", "behind < 10 min", 10 * time.Minute},
	{"older", "behind by more", 1<<63 - 1},
}

func bucketOf(age time.Duration) int {
	i := 0
	for i < len(ages)-1 && age >= ages[i].below {
		i++
	}
	return i
}

// pollBucket is what the pages of one age cost: those of polls, and those with which they went on.
type pollBucket struct {
	recorder *Recorder // of polls
	costs    readCosts // of pages
}

// report sets the results.
func (p *Poll) report(r *Run, polls, appends *Recorder, t turns) {
	r.Series(polls, "poll, from due")
	var pages uint64
	for i := range p.buckets {
		b := &p.buckets[i]
		if n := b.costs.reads.Load(); n > 0 {
			pages += n
			r.Result(b.recorder.name, ages[i].label, b.costs.cost(b.recorder, r.attributed()), Plain)
		}
	}
	if p.catchUp.Total().Operations > 0 {
		r.Series(p.catchUp, "further page of a poll")
	}
	if p.o.Behind < 0 {
		r.Result("polls_left_out", "polls left out while offline", t.skipped(), Plain)
	}
	if stats, ok := r.StoreStats(); ok && !r.attributed() {
		// Those of the log's own upkeep are among them: compaction reads too.
		r.Result("gets_per_page_in_total", "GETs of the process / pages", ratio(float64(stats.Ops[metered.Get].Calls()), float64(pages)), Ratio)
	}
	if p.o.Rate > 0 {
		r.Result("append_offered_bytes_per_second", "appends offered", p.o.Rate, BytesPerSecond)
		r.Result("append_bytes_per_second", "appends achieved", ratio(float64(appends.Total().Bytes), r.Elapsed()), BytesPerSecond)
		r.Series(appends, "append, from due")
		r.Result("appends_overloaded", "appends refused and tried again", p.load.retried.Load(), Plain)
	}
}
