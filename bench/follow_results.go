package bench

// results sets what is reported.
func (w *Follow) results(r *Run) {
	d := w.d
	r.Result("followers", "followers connected", d.opened.Load(), Plain)
	r.Result("connecting_seconds", "connecting took", w.connecting.Seconds(), Seconds)
	w.memoryResults(r)
	w.processorResults(r)
	r.Result("reconnects", "connections lost and made again", d.broken.Load(), Plain)
	d.mu.Lock()
	breaks := d.breaks.list()
	d.mu.Unlock()
	if len(breaks) > 0 {
		r.Result("reconnects_because", "because", breaks, Plain)
	}
	if w.o.Idle {
		return
	}
	r.Series(d.fromDue, "due to delivered")
	r.Series(d.fromAck, "acknowledged to delivered")
	if d.fromDurable != nil {
		r.Series(d.fromDurable, "durable to delivered")
	}
	if seconds := r.Elapsed(); seconds > 0 {
		r.Result("delivered_per_second", "delivered", float64(d.fromDue.Total().Records)/seconds, PerSecond)
	}
	w.checkResults(r)
}

// memoryResults says what a follower that waits takes.
func (w *Follow) memoryResults(r *Run) {
	if r.Embedded() == nil {
		return // the server does not say
	}
	per := func(after, before uint64) float64 {
		return (float64(after) - float64(before)) / float64(w.o.Followers)
	}
	what := "memory a follower"
	if w.o.ClientsInProcess && w.o.Form != FollowEngine {
		what = "memory a follower, with its client"
	}
	r.Result("rss_before_bytes", "resident without followers", w.before.rss, Bytes)
	r.Result("rss_idle_bytes", "resident with followers that wait", w.idle.rss, Bytes)
	r.Result("rss_per_follower_bytes", what+", resident", per(w.idle.rss, w.before.rss), Bytes)
	r.Result("live_per_follower_bytes", what+", heap and stacks", per(w.idle.live, w.before.live), Bytes)
}

// processorResults says how many processors were busy.
func (w *Follow) processorResults(r *Run) {
	if seconds := r.Elapsed(); seconds > 0 {
		what := "processors of this process"
		if r.Embedded() != nil {
			what += ", with the log"
		}
		r.Result("processors", what, r.report.CPUSeconds/seconds, Ratio)
	}
	if w.usage.PeakRSS == 0 {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.clients) == 2 {
		used, in := w.clients[1].cpu-w.clients[0].cpu, w.clients[1].at.Sub(w.clients[0].at)
		r.Result("client_processors", "processors of the followers", used.Seconds()/in.Seconds(), Ratio)
	}
	r.Result("client_cpu_seconds", "processor time of the followers, in all", w.usage.CPU.Seconds(), Seconds)
	r.Result("client_peak_rss_bytes", "resident, of the followers", uint64(w.usage.PeakRSS), Bytes)
}

// checkResults says what the check found. Anything that is wrong is a violation.
func (w *Follow) checkResults(r *Run) {
	d := w.d
	v := d.verdict()
	r.Result("appended_records", "appended to followed keys", d.appended.Load(), Plain)
	r.Result("delivered_records", "delivered in all", d.delivered.Load(), Plain)
	r.Result("foreign_records", "of others", d.foreign.Load(), Plain)
	r.Result("unmatched_records", "without a time of acknowledgement", d.unmatched.Load(), Plain)
	if d.landings != nil {
		r.Result("undurable_records", "without a time of durability", d.undurable.Load(), Plain)
	}
	for _, c := range []struct {
		name, label string
		n           uint64
	}{
		{"lost_records", "lost", v.lost},
		{"duplicated_records", "came twice", d.duplicated.Load()},
		{"out_of_order_records", "out of order", d.outOfOrder.Load()},
		{"extra_records", "never acknowledged", v.extra},
		{"misdirected_records", "of another key", d.misdirected.Load()},
		{"misnumbered_records", "with another sequence than acknowledged", d.misnumbered.Load()},
		{"mistaken_keys", "keys with other records than appended", v.mistaken},
	} {
		r.Result(c.name, c.label, c.n, Plain)
		if c.n > 0 {
			r.Violation("%d records or keys: %s", c.n, c.label)
		}
	}
}
