package mutants

// What a client relies on: its order, its token, and where a time leads.
var clientMutants = []mutant{
	{
		name: "batcher: requests go ahead at a server that may not know it",
		file: "client/batcher_send.go",
		old:  " && time.Since(b.ackedAt) < knownFor",
		new:  "",
		pkg:  "client", run: "TestBatcherPipelines",
	},
	{
		name: "batcher: a request goes before the one ahead of it has left",
		file: "client/batcher_send.go",
		old:  "b.inFlight[n-1].written && ",
		new:  "",
		pkg:  "client", run: "TestBatcherLetsRequestsLeave",
	},
	{
		name: "batcher: a record is acknowledged behind one that is not",
		file: "client/batcher_send.go",
		old:  "case t.acked || !NotAppended(why):",
		new:  "case t.acked:\n\t\t\tb.resolve(t, nil)\n\t\tcase !NotAppended(why):",
		pkg:  "client", run: "TestBatcherKeepsAcknowledgementsInOrder",
	},
	{
		name: "batcher: a lost answer counts as a refusal",
		file: "client/batcher_send.go",
		old:  "res, unknown, err := b.c.settle(ctx, request, unknown, b.o.RetryFor, passing)",
		new:  "res, _, err := b.c.settle(ctx, request, unknown, b.o.RetryFor, passing)\n\tunknown = false",
		pkg:  "client", run: "TestBatcherFails",
	},
	{
		name: "client: a token goes where a redirect leads",
		file: "client/token.go",
		old:  "req.URL.Scheme != via[0].URL.Scheme || req.URL.Host != via[0].URL.Host",
		new:  "req.URL.Scheme != via[0].URL.Scheme",
		pkg:  "client", run: "TestRedirects",
	},
	{
		name: "client: an error whose message was cut off is one",
		file: "client/errors.go",
		old:  "if err != nil { // what is missing",
		new:  "if err != nil && false { // what is missing",
		pkg:  "client", run: "TestProducerAppendsOnce|TestBatcherAppendsOnceInOrder",
	},
	{
		name: "follow: from now begins anew with each connection",
		file: "client/follow.go",
		old:  "FromNow: f.o.FromNow && f.now == nil}",
		new:  "FromNow: f.o.FromNow}",
		pkg:  "client", run: "TestFollowFromNow",
	},
	{
		name: "follow: records that are too old are sent",
		file: "server/stream.go",
		old:  "return r.Timestamp < st.since })",
		new:  "return r.Timestamp < st.since-1000 })",
		pkg:  "server", run: "TestFollowSince",
	},
	{
		name: "time: it leads behind what may still be lost",
		file: "engine/seektime.go",
		old:  "return min(seq, frontier), nil",
		new:  "return max(seq, min(seq, frontier)), nil",
		pkg:  "engine", run: "TestSeekTimeStaysWithinTheFrontier",
	},
	{
		name: "time: a memory is left out that ends at it",
		file: "engine/seektime.go",
		old:  "if m.table.LastTimestamp() < ms {",
		new:  "if m.table.LastTimestamp() <= ms {",
		pkg:  "engine", run: "TestSeekTime",
	},
	{
		name: "time: a run is passed that reaches it",
		file: "engine/seektime.go",
		old:  "if t.lastTime >= ms {",
		new:  "if t.lastTime > ms {",
		pkg:  "engine", run: "TestSeekTime|TestReopen",
	},
}
