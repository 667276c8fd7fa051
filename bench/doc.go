// Package bench measures a log: embedded in this process, or behind HTTP. It is what "annals bench" runs.
//
// A Workload is run by Execute on a Target, and gets a Run:
//
//	func (w *Polls) Run(ctx context.Context, r *bench.Run) error {
//		... prepare: fill the log, r.Progress("%d records", n) ...
//		load := bench.Load{
//			Schedule: bench.NewSchedule(rate, bench.Poisson, r.Rand(streamPolls)),
//			Workers:  64,
//			Recorder: r.Recorder("poll"),
//		}
//		ctx = r.Begin(ctx) // the clock runs: warm-up, then what is measured
//		pace := r.Loop(ctx, load, func(ctx context.Context, op bench.Op) (bench.Done, error) { ... })
//		r.End()
//		r.LoadResults(load, pace, "poll")
//		r.Series(load.Recorder, "poll latency")
//		return nil
//	}
//
// # Open loop
//
// Operations are due by a Schedule that knows nothing of how the log does. Their latency counts from when they
// were due. So a log that stalls for a second shows a second of latency in every operation that was due meanwhile, as
// its users would see it; a closed loop, whose workers wait with it, would show one slow operation for each of them. What was due and
// not even started when the time was over is counted (Pace.Unstarted).
//
// # What is measured
//
// Latencies of operations that were due within the window, whenever they ended; rates of what ended within it; processor,
// allocations and requests to the store between its ends. The warm-up before it shows in the live line only.
//
// # Randomness
//
// Everything that is drawn comes from Run.Rand, by the seed and a stream, which is a constant of each use. The n-th
// operation is the same in every run with the same options, whichever worker does it.
package bench
