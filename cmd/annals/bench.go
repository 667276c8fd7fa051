package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime/pprof"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/annalsdb/annals/bench"
	"github.com/annalsdb/annals/engine"
	"github.com/annalsdb/annals/objstore"
	"github.com/annalsdb/annals/objstore/s3sim"
)

const benchLong = `Measures a log: one whose engine runs in this process (--store, with --http behind the project's own HTTP server on a
loopback port), or that of a running server (--server). What a benchmark appends stays in the log.

Operations are due by a schedule that knows nothing of how the log does, and latencies count from when they were due, so
that a stall is not hidden. docs/BENCHMARKS.md says what the figures mean.

The report goes to standard output, and as JSON to the file of --json; with "--json -" only the JSON goes there. A line on standard
error says how it goes. SIGINT or SIGTERM ends the measurement early, with a report of what was seen.

Exit status 1: operations failed, or the log broke a promise.`

// benchCloseTimeout bounds the flush and close of an embedded log at the end.
const benchCloseTimeout = 2 * time.Minute

// newBench is the command whose subcommands are the workloads.
func newBench(p *process) *cobra.Command {
	cmd := &cobra.Command{
		Use: "bench", Short: "Measure a log", Long: benchLong, Args: cobra.ArbitraryArgs,
	}
	cmd.AddCommand(
		newBenchIngest(p),
		newBenchCompact(p),
		newBenchFollow(p),
		newFollowClients(p),
		newBenchPoll(p),
		newBenchScan(p),
	)
	workloads := strings.Join(commandNames(cmd), ", ")
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		if len(args) == 0 {
			return &usageError{[]string{"say what to measure: " + workloads}}
		}
		return &usageError{[]string{fmt.Sprintf("unknown command %q; there is %s", args[0], workloads)}}
	}
	return cmd
}

// benchConfig is what the flags say that all workloads have.
type benchConfig struct {
	store     storeURL
	server    connection
	http      bool
	json      string
	profile   string
	seed      uint64
	duration  time.Duration
	warmup    time.Duration
	simulate  bool
	simulated s3sim.Options
	serve     serveConfig                         // its engine's options
	wrap      func(objstore.Store) objstore.Store // of benchCommand
}

// engineFlags are the flags of serve that matter to a benchmark.
var engineFlags = []string{
	"read-visibility", "flush-interval", "wal-object-bytes", "memtable-bytes", "max-unflushed-bytes", "cache-bytes",
	"disk-cache", "disk-cache-bytes", "compaction", "segment-bytes", "segment-interval", "segment-min-bytes", "retention-bytes", "gc-interval", "gc-grace",
}

// Nobody else reads the log of an engine in this process, so that the grace of what is no longer needed may be shorter than a server's: a
// long run in memory could not hold it. The engine's own views must then be younger.
const (
	benchLeastGrace = 65 * time.Second
	benchStaleGrace = time.Minute // by which the grace exceeds their age
)

// benchCommand is one workload's part of its command.
type benchCommand struct {
	use, short, long string
	define           func(*settings) // adds its own flags
	// check may add faults that need the common flags too; nil: none.
	check    func(*settings, *benchConfig)
	workload func() bench.Workload               // with what its flags say
	wrap     func(objstore.Store) objstore.Store // what an engine's store is put into; nil: nothing
}

// newBenchCommand builds the command of a workload.
func newBenchCommand(p *process, b benchCommand) *cobra.Command {
	var c benchConfig
	cmd := &cobra.Command{Use: b.use, Short: b.short, Long: b.long}
	define := func(s *settings) {
		c.addFlags(s)
		b.define(s)
		c.addEngineFlags(s)
	}
	check := func(s *settings) {
		c.check(s)
		if b.check != nil {
			b.check(s, &c)
		}
		if len(s.faults) == 0 {
			s.faults = append(s.faults, b.workload().Faults()...)
		}
	}
	c.wrap = b.wrap
	return newCommand(p, cmd, nil, define, check, func(s *settings, _ []string) error {
		return runBench(p, &c, b.workload(), configOf(s, &c))
	})
}

// addFlags adds the flags that say where and how long.
func (c *benchConfig) addFlags(s *settings) {
	c.simulated = s3sim.Default()
	addFlag(s, "store", "url", "", &c.store, parseStoreURL,
		"measure an engine in this process, on mem:, file:PATH or s3://BUCKET/PREFIX (which charges for requests)")
	s.flags.BoolVar(&c.http, "http", false, "with --store: through an HTTP server on a loopback port in this process, and protobuf")
	addFlag(s, "server", "url", "", &c.server.server, parseServer, "measure a running server instead, such as "+defaultServer)
	addCredentialFlags(s, &c.server)
	addFlag(s, "json", "file", "", &c.json, parseText, "write the report as JSON too; - is standard output (default: only text)")
	addFlag(s, "cpu-profile", "file", "", &c.profile, parseText, "write a profile of this process's processor time, for go tool pprof (default: none)")
	addFlag(s, "seed", "number", "1", &c.seed, parseCount(0, 1<<63), "decides everything that is drawn: the same seed does the same operations")
	addFlag(s, "duration", "duration", "30s", &c.duration, parseDuration, "how long it measures")
	addFlag(s, "warmup", "duration", "5s", &c.warmup, parseDurationOrNone, "how long it runs before it measures; 0s: not at all")
	s.flags.BoolVar(&c.simulate, "simulate-s3", false, "with --store: make the store as slow as S3, and say what its requests would cost")
	o := &c.simulated
	addFlag(s, "s3-put-p50", "duration", o.Put.P50.String(), &o.Put.P50, parseDuration, "simulated: half of all PUTs take less, without their transfer")
	addFlag(s, "s3-put-p99", "duration", o.Put.P99.String(), &o.Put.P99, parseDuration, "simulated: 99 of 100 PUTs take less")
	addFlag(s, "s3-get-p50", "duration", o.Get.P50.String(), &o.Get.P50, parseDuration, "simulated: half of all GETs have their first byte sooner")
	addFlag(s, "s3-get-p99", "duration", o.Get.P99.String(), &o.Get.P99, parseDuration, "simulated: 99 of 100 GETs have their first byte sooner")
	addFlag(s, "s3-bandwidth", "size", strconv.FormatInt(o.Bandwidth/1e6, 10)+"MB", &o.Bandwidth, parseSize[int64],
		"simulated: bytes a second that one request transfers")
}

// simulationFlags need --simulate-s3.
var simulationFlags = []string{"s3-put-p50", "s3-put-p99", "s3-get-p50", "s3-get-p99", "s3-bandwidth"}

// addEngineFlags adds those flags of serve that matter here, as serve has them.
func (c *benchConfig) addEngineFlags(s *settings) {
	all := newSettings(pflag.NewFlagSet("", pflag.ContinueOnError))
	c.serve.addWriteFlags(all)
	c.serve.addSegmentFlags(all)
	c.serve.addAgingFlags(all)
	for _, name := range engineFlags {
		s.flags.AddFlag(all.flags.Lookup(name))
	}
	s.flags.Lookup("gc-grace").Usage = fmt.Sprintf("how long an object stays after it left the log; at least %v, less than in a server, since "+
		"nobody else reads the log. Longer: a store in memory needs more of it", benchLeastGrace)
}

// parseDurationOrNone reads a duration, or one of zero.
func parseDurationOrNone(text string) (time.Duration, error) {
	if text == "0" || text == "0s" {
		return 0, nil
	}
	return parseDuration(text)
}

// check completes the options, and reports what contradicts.
func (c *benchConfig) check(s *settings) {
	embedded := s.changed("store")
	switch {
	case embedded == s.changed("server"):
		s.fault("say what to measure: either --store or --server")
		return
	case embedded:
		c.checkEngine(s)
		return
	}
	for _, name := range append([]string{"http", "simulate-s3"}, engineFlags...) {
		if s.changed(name) {
			s.fault("--%s needs --store: a running server has its own", name)
		}
	}
}

// checkEngine checks the options of an engine in this process.
func (c *benchConfig) checkEngine(s *settings) {
	if !s.changed("flush-interval") {
		c.serve.engine.FlushInterval = c.store.flushInterval
		if c.simulate {
			c.serve.engine.FlushInterval = engine.DefaultFlushInterval
		}
	}
	if folder := c.serve.engine.DiskCacheDir; c.store.holds(folder) {
		s.fault("--disk-cache %s lies in the store's folder %s; give it a folder of its own", folder, c.store.folder)
	}
	switch grace := c.serve.engine.GCGrace; {
	case grace < benchLeastGrace:
		s.fault("--gc-grace is %v; it must be at least %v here", grace, benchLeastGrace)
	case grace < engine.DefaultStaleAfter+benchStaleGrace:
		c.serve.engine.StaleAfter = grace - benchStaleGrace
	}
	c.serve.report(s, c.serve.engine.Validate())
	if !c.simulate {
		for _, name := range simulationFlags {
			if s.changed(name) {
				s.fault("--%s needs --simulate-s3", name)
			}
		}
		return
	}
	if err := c.simulated.Validate(); err != nil {
		for fault := range strings.SplitSeq(err.Error(), "\n") {
			s.fault("simulated S3: %s", fault)
		}
	}
	c.simulated.Head, c.simulated.Seed = c.simulated.Get, c.seed
}

// configOf returns the flags as they are in force, for the report.
func configOf(s *settings, c *benchConfig) map[string]string {
	config := make(map[string]string)
	s.flags.VisitAll(func(f *pflag.Flag) { config[f.Name] = f.Value.String() })
	delete(config, "help")
	if c.server.server == "" {
		config["flush-interval"] = c.serve.engine.FlushInterval.String()
	}
	return config
}

// runBench opens the target, runs the workload, and writes the report.
func runBench(p *process, c *benchConfig, w bench.Workload, config map[string]string) (err error) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	target, err := c.openTarget(ctx, newLogger(p.stderr, slog.LevelWarn, "text"))
	if err != nil {
		return failf("%w", err)
	}
	out, err := c.createJSON(p) // now that it can begin: a report that was there is lost
	if err != nil {
		return failf("%w", errors.Join(err, target.Close(ctx)))
	}
	profiled, err := startProfile(c.profile)
	if err != nil {
		return failf("%w", errors.Join(err, target.Close(ctx)))
	}
	report := bench.Execute(ctx, target, w, bench.Options{
		Seed: c.seed, Duration: c.duration, Warmup: c.warmup, Config: config, Version: version(),
		Costs: c.charges(), Live: p.stderr, Terminal: isTerminal(p.stderr),
	})
	if err := profiled(); err != nil {
		fmt.Fprintf(p.stderr, "write the profile: %v\n", err)
	}
	closing, cancel := context.WithTimeout(context.Background(), benchCloseTimeout)
	defer cancel()
	closed := target.Close(closing)
	if err := c.writeReport(p, report, out); err != nil {
		return failf("write the report: %w", err)
	}
	switch {
	case closed != nil:
		return failf("close the log: %w", closed)
	case report.Failed():
		return failf("operations or checks failed: see the report")
	}
	return nil
}

// startProfile begins a profile of the processor time, if a file is given, and returns what ends it.
func startProfile(file string) (stop func() error, err error) {
	if file == "" {
		return func() error { return nil }, nil
	}
	f, err := os.Create(file)
	if err != nil {
		return nil, err
	}
	if err := pprof.StartCPUProfile(f); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return func() error {
		pprof.StopCPUProfile()
		return f.Close()
	}, nil
}

// charges reports whether the store's requests would be charged for.
func (c *benchConfig) charges() bool {
	return c.server.server == "" && (c.simulate || c.store.folder == "" && !c.store.private)
}

// openTarget opens the log.
func (c *benchConfig) openTarget(ctx context.Context, log *slog.Logger) (bench.Target, error) {
	if c.server.server != "" {
		return c.server.remote()
	}
	var store objstore.Store
	store, err := c.store.open(ctx)
	if err != nil {
		return nil, err
	}
	if c.simulate {
		store = s3sim.New(store, c.simulated)
	}
	if c.wrap != nil {
		store = c.wrap(store)
	}
	c.serve.engine.Logger = log
	e, err := bench.OpenEmbedded(ctx, store, c.serve.engine)
	if err != nil {
		return nil, err
	}
	if !c.http {
		return e, nil
	}
	remote, err := e.Serve(log)
	if err != nil {
		return nil, errors.Join(err, e.Close(ctx))
	}
	return remote, nil
}

// remote returns the log behind the server.
func (c *connection) remote() (*bench.Remote, error) {
	token, err := c.bearer()
	if err != nil {
		return nil, err
	}
	config, err := c.tlsConfig()
	if err != nil {
		return nil, err
	}
	return bench.NewRemote(c.server, bench.RemoteOptions{Token: token, TLS: config})
}

// createJSON opens what the JSON goes to, before anything is measured; nil: nowhere.
func (c *benchConfig) createJSON(p *process) (io.Writer, error) {
	switch c.json {
	case "":
		return nil, nil
	case "-":
		return p.stdout, nil
	}
	return os.Create(c.json)
}

// writeReport writes the report, and closes the file of the JSON.
func (c *benchConfig) writeReport(p *process, report *bench.Report, out io.Writer) (err error) {
	if out != nil {
		err = report.WriteJSON(out)
		if file, ok := out.(*os.File); ok && c.json != "-" {
			err = errors.Join(err, file.Close())
		}
	}
	if c.json != "-" {
		err = errors.Join(err, report.WriteText(p.stdout))
	}
	return err
}

// checkArrivals reports arrivals that a closed loop does not have.
func checkArrivals(s *settings, rate float64) {
	if rate == 0 && s.changed("arrivals") {
		s.fault("--arrivals needs a --rate that is not max: in a closed loop nothing is due")
	}
}

// addBatchFlags adds the flags that say what is appended.
func addBatchFlags(s *settings, o *bench.BatchOptions, keys uint64) {
	addKeyFlags(s, &o.KeyOptions, keys)
	addFlag(s, "batch", "count", "100", &o.Records, parseInt, "records of one append")
	addValueFlags(s, &o.ValueOptions)
}

// addKeyFlags adds the flags that say which keys there are.
func addKeyFlags(s *settings, o *bench.KeyOptions, keys uint64) {
	addFlag(s, "keys", "count", strconv.FormatUint(keys, 10), &o.Keys, parseCount(1, bench.MaxKeys), "how many keys there are")
	addFlag(s, "key-distribution", "uniform|zipf|sequential", "uniform", &o.Distribution,
		parseChoice([]string{"uniform", "zipf", "sequential"}, []bench.KeyDistribution{bench.UniformKeys, bench.ZipfKeys, bench.SequentialKeys}),
		"which of them records have; zipf: few have most")
}

// addValueFlags adds the flags that say what values are like.
func addValueFlags(s *settings, o *bench.ValueOptions) {
	addFlag(s, "value-size", "size", "1KiB", &o.Size, parseSize[int], "bytes of a value, on average")
	addFlag(s, "value-sizes", "fixed|uniform|lognormal", "fixed", &o.Sizes,
		parseChoice([]string{"fixed", "uniform", "lognormal"}, []bench.Sizes{bench.FixedSizes, bench.UniformSizes, bench.LognormalSizes}),
		"how sizes differ: uniform is up to twice the mean, lognormal many small and few large ones")
	addFlag(s, "compress", "ratio", "2", &o.Compress, parseRatio, "how many times smaller a codec makes a value; 1: it is random")
}

// parseRatio reads a number from 1 on.
func parseRatio(text string) (float64, error) {
	f, err := strconv.ParseFloat(text, 64)
	if err != nil || !(f >= 1) {
		return 0, fmt.Errorf("%q is not a number from 1 on", text)
	}
	return f, nil
}

// addRateFlags adds the flags that say how much is appended; the target is bytes a second, 0 for "max".
func addRateFlags(s *settings, initial string, rate *float64, arrivals *bench.Arrivals) {
	addFlag(s, "rate", "size|max", initial, rate, parseRate,
		"key and value bytes appended in a second; max: as fast as possible, in a closed loop, which hides stalls")
	addArrivalsFlag(s, arrivals)
}

// addArrivalsFlag adds the flag that says how operations are spread.
func addArrivalsFlag(s *settings, arrivals *bench.Arrivals) {
	addFlag(s, "arrivals", "poisson|uniform", "poisson", arrivals,
		parseChoice([]string{"poisson", "uniform"}, []bench.Arrivals{bench.Poisson, bench.Uniform}),
		"how operations are spread: poisson as those of many users, uniform at even distances")
}

// parseRate reads bytes a second; "max" is 0.
func parseRate(text string) (float64, error) {
	if text == "max" {
		return 0, nil
	}
	n, err := parseSize[int64](text)
	return float64(n), err
}

// parseShare reads a part of a whole: 0.1 or 10%.
func parseShare(text string) (float64, error) {
	number, percent := strings.CutSuffix(text, "%")
	f, err := strconv.ParseFloat(number, 64)
	if percent {
		f /= 100
	}
	if err != nil || !(f >= 0 && f <= 1) {
		return 0, fmt.Errorf("%q is not a share from 0 to 1, such as 0.1 or 10%%", text)
	}
	return f, nil
}
