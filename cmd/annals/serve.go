package main

import (
	"errors"
	"log/slog"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/annalsdb/annals/engine"
	"github.com/annalsdb/annals/server"
)

const serveLong = `Runs the server: the writer of one log, or with --replica one of any number of replicas that read it, and its HTTP API.

Every flag is also an environment variable: --flush-interval is ANNALS_FLUSH_INTERVAL; and a line of the YAML file
that --config names: "flush-interval: 100ms". A flag beats its variable, and that beats the file. An empty variable
counts as unset. Names that are not known are faults. Sizes read 64MiB, durations 100ms.

The whole form of an S3 store is s3://BUCKET/PREFIX?endpoint=URL&region=R&path_style=true, of which everything
behind the bucket may be left out. Credentials come from the AWS environment variables, files and roles.

SIGTERM or SIGINT: it stops accepting, finishes what is under way, flushes, marks the shutdown clean and
exits with status 0. Another signal, a second later or more, ends it at once, with status 1; nothing acknowledged as durable is lost.
SIGHUP: it reads the token file and the certificates again, and goes on.
Exit status 4: another writer has taken the log. A supervisor must not restart it then, or two writers
take the log from each other for ever: see --on-fence for those that do.`

// serveConfig is everything that the flags of serve say.
type serveConfig struct {
	listen          string
	store           storeURL
	engine          engine.Options
	replica         replicaConfig
	fence           fenceConfig
	status          statusConfig
	security        securityConfig
	telemetry       telemetryConfig
	bodyLimit       int64
	appendTimeout   time.Duration
	maxFollowers    int
	shutdownTimeout time.Duration
	logLevel        slog.Level
	logFormat       string
}

var durability = parseChoice([]string{"durable", "memory"}, []engine.Durability{engine.Durable, engine.Memory})

func newServe(p *process) *cobra.Command {
	var c serveConfig
	cmd := &cobra.Command{Use: "serve [flags]", Short: "Run the server", Long: serveLong}
	check := func(s *settings) {
		c.telemetry.check(s, p.environ)
		c.check(s)
	}
	return newCommand(p, cmd, nil, c.define, check, func(*settings, []string) error {
		return serve(p, c)
	})
}

// define adds all flags, each with its variable.
func (c *serveConfig) define(s *settings) {
	c.addPlaceFlags(s)
	c.addWriteFlags(s)
	c.addSegmentFlags(s)
	c.addAgingFlags(s)
	c.addLimitFlags(s)
	c.replica.addFlags(s)
	c.fence.addFlags(s)
	c.status.addFlags(s)
	c.security.addFlags(s)
	c.telemetry.addFlags(s)
	c.addProcessFlags(s)
	addConfigFlags(s)
	s.withVariables()
	s.unused = c.replica.unused
}

func (c *serveConfig) addPlaceFlags(s *settings) {
	addFlag(s, "listen", "address", "127.0.0.1:8080", &c.listen, parseListen,
		"host and port to serve on. The default is reachable from this machine only: without --tokens whoever reaches the port can read and append everything")
	addFlag(s, "store", "url", "file:./annals-data", &c.store, parseStoreURL,
		"where the log is: mem: (gone at exit), file:PATH (a directory; every PUT waits for the disk) or s3://BUCKET/PREFIX "+
			"(every PUT, GET and LIST is charged for)")
}

func (c *serveConfig) addWriteFlags(s *settings) {
	o := &c.engine
	addFlag(s, "ack", "durable|memory", "durable", &o.Ack, durability,
		"what an append waits for that does not say. memory answers at once and loses the newest records in a crash")
	addFlag(s, "read-visibility", "durable|memory", "durable", &o.ReadVisibility, durability,
		"what reads see. memory shows records earlier, and a crash may take them back after they were read")
	addFlag(s, "flush-interval", "duration", "", &o.FlushInterval, parseDuration,
		"least time between two WAL objects that are not full. Shorter: less latency in a steady stream, more PUT requests "+
			"(100ms is at most ten a second, about 130 USD a month on S3). An append after a quiet moment never waits for it "+
			"(default 100ms on S3, 2ms in a directory or in memory)")
	addFlag(s, "wal-object-bytes", "size", formatSize(engine.DefaultWALObjectBytes), &o.WALObjectBytes, parseSize[int64],
		"size at which a WAL object is cut before its time. Larger: fewer requests in heavy load, more memory, and larger retries")
	addFlag(s, "memtable-bytes", "size", formatSize(engine.DefaultMemtableBytes), &o.MemtableBytes, parseSize[int64],
		"heap of the memtable at which it is written as a run. Larger: fewer and larger runs, more memory, and a longer start after a crash")
	addFlag(s, "max-unflushed-bytes", "size", formatSize(engine.DefaultUnflushedBytes), &o.MaxUnflushedBytes, parseSize[int64],
		"records that are not in runs yet, beyond which appends wait and then get 429. It is memory while the store is slow; "+
			"a larger batch is refused")
	addFlag(s, "cache-bytes", "size", formatSize(engine.DefaultCacheBytes), &o.CacheBytes, parseSize[int64],
		"memory for blocks of tables. Smaller: more GET requests for reads of what is not in the memtables")
}

func (c *serveConfig) addSegmentFlags(s *settings) {
	o := &c.engine
	addFlag(s, "segment-interval", "duration", "", &o.SegmentInterval, parseDuration,
		"age at which the active segment is sealed. Shorter: finer retention, and more segments that a read from the beginning visits "+
			"(default 1h, or an eighth of --retention where that is less)")
	addFlag(s, "segment-bytes", "size", "", &o.SegmentBytes, parseSize[int64],
		"size of its records at which it is sealed at once. Larger: fewer segments, coarser retention "+
			"(default "+formatSize(engine.DefaultSegmentBytes)+", or an eighth of --retention-bytes where that is less)")
	addFlag(s, "segment-min-bytes", "size", "", &o.SegmentMinBytes, parseSize[int64],
		"size below which age does not seal it, so that a slow log has few segments "+
			"(default "+formatSize(engine.DefaultSegmentMinBytes)+", or --segment-bytes where that is less)")
}

func (c *serveConfig) addAgingFlags(s *settings) {
	o := &c.engine
	addFlag(s, "compaction", "on|off", "on", &o.DisableCompaction, parseChoice([]string{"on", "off"}, []bool{false, true}),
		"off leaves compaction to \"annals compact\" elsewhere. Without any, reads look at ever more runs and segments")
	addFlag(s, "retention", "duration", "", &o.Retention, parseDuration,
		"how long records are kept, such as 7d: whole segments are dropped once they were sealed so long ago (default none: for ever)")
	addFlag(s, "retention-bytes", "size", "", &o.RetentionBytes, parseSize[int64],
		"record bytes above which the oldest sealed segments are dropped (default none)")
	addFlag(s, "retention-check-interval", "duration", "", &o.RetentionInterval, parseDuration,
		"how often both are looked at; with --retention each look is one request (default 1m, or --retention where that is less)")
	addFlag(s, "gc-interval", "duration", "1m", &o.GCInterval, parseDuration,
		"how often what is no longer needed is looked for and deleted. Longer: such bytes are paid for longer")
	addFlag(s, "gc-grace", "duration", "15m", &o.GCGrace, parseDuration,
		"how long an object stays after it left the log, for those who read from an old view; at least 6m. Longer: its bytes are paid for longer")
	addFlag(s, "disk-cache", "folder", "", &o.DiskCacheDir, parseFolder,
		"folder on a local disk for what was read from the store. It survives a restart and may be deleted at any time (default none)")
	addFlag(s, "disk-cache-bytes", "size", "", &o.DiskCacheBytes, parseSize[int64],
		"size of the files in it, at least 16MiB (default 10GiB with --disk-cache)")
	addFlag(s, "disk-cache-required", "true|false", "false", &o.DiskCacheRequired, parseChoice([]string{"true", "false"}, []bool{true, false}),
		"not ready while the disk cache cannot be written, as on a full disk. For servers that others can stand in for; the only one of a log would "+
			"be no server where it could be a slow one (default false)")
	s.flags.Lookup("disk-cache-required").NoOptDefVal = "true"
}

// parseFolder takes any path.
func parseFolder(text string) (string, error) {
	if text == "" {
		return "", errors.New("the path is empty")
	}
	return text, nil
}

func (c *serveConfig) addLimitFlags(s *settings) {
	addFlag(s, "max-key-bytes", "size", formatSize(engine.DefaultMaxKeyBytes), &c.engine.MaxKeyBytes, parseSize[int],
		"longest key. Long keys cost memory in the memtable and in each table's directory")
	addFlag(s, "max-value-bytes", "size", formatSize(engine.DefaultMaxValueBytes), &c.engine.MaxValueBytes, parseSize[int],
		"longest value. A read holds at least one whole value in memory")
	addFlag(s, "max-followers", "count", strconv.Itoa(server.DefaultMaxFollowers), &c.maxFollowers, parseInt,
		"requests that wait for records at the same time: long polls, event streams, follows; more get 503. An idle stream takes about 12KiB over HTTP/2, 30KiB over HTTP/1.1")
	addFlag(s, "max-producers", "count", strconv.Itoa(engine.DefaultMaxProducers), &c.engine.MaxProducers, parseInt,
		"producers whose last 64 appends are known; beyond it the one that appended longest ago is forgotten. They cost memory, and bytes of each flush that changes them")
	addFlag(s, "max-state-bytes", "size", formatSize(engine.DefaultMaxStateBytes), &c.engine.MaxStateBytes, parseSize[int64],
		"memory for cursors and producers, at which new cursors get 507. All of it is read at each start")
	addFlag(s, "forget-lost-state", "object", "", &c.engine.ForgetLostState, parseText,
		"start without cursors and producers, for good, if this object of theirs is in force and they cannot be read; see docs/REPAIR.md (default none)")
	addFlag(s, "body-limit", "size", "32MiB", &c.bodyLimit, parseSize[int64],
		"longest request body; longer ones get 413. Each request under way may hold that much memory. JSON needs 4/3 of the values' size")
	addFlag(s, "append-timeout", "duration", "30s", &c.appendTimeout, parseDuration,
		"how long an append waits to become durable before it gets 504, outcome unknown. Shorter: clients must cope with that more often")
}

func (c *serveConfig) addProcessFlags(s *settings) {
	addFlag(s, "shutdown-timeout", "duration", "30s", &c.shutdownTimeout, parseDuration,
		"how long a shutdown may take. When it runs out the exit status is 1, and the next start replays the WAL")
	addLogFlags(s, &c.logLevel, &c.logFormat)
}

// addLogFlags adds the flags of a command that runs until it is stopped.
func addLogFlags(s *settings, level *slog.Level, format *string) {
	addFlag(s, "log-level", "debug|info|warn|error", "info", level,
		parseChoice([]string{"debug", "info", "warn", "error"},
			[]slog.Level{slog.LevelDebug, slog.LevelInfo, slog.LevelWarn, slog.LevelError}),
		"least level that is logged, on standard error")
	addFlag(s, "log-format", "text|json", "text", format,
		parseChoice([]string{"text", "json"}, []string{"text", "json"}), "how log lines are written")
}

// flagNames puts the flags' names into the faults that the engine and the
// server report by their options' names.
var flagNames = strings.NewReplacer(
	"FlushInterval", "--flush-interval",
	"WALObjectBytes", "--wal-object-bytes",
	"MemtableBytes", "--memtable-bytes",
	"MaxUnflushedBytes", "--max-unflushed-bytes",
	"CacheBytes", "--cache-bytes",
	"SegmentInterval", "--segment-interval",
	"SegmentMinBytes", "--segment-min-bytes",
	"SegmentBytes", "--segment-bytes",
	"MaxKeyBytes", "--max-key-bytes",
	"MaxValueBytes", "--max-value-bytes",
	"BodyLimit", "--body-limit",
	"AppendTimeout", "--append-timeout",
	"RetentionInterval", "--retention-check-interval",
	"RetentionBytes", "--retention-bytes",
	"Retention", "--retention",
	"GCInterval", "--gc-interval",
	"GCGrace", "--gc-grace",
	"DiskCacheBytes", "--disk-cache-bytes",
	"DiskCacheRequired", "--disk-cache-required",
	"DiskCacheDir", "--disk-cache",
	"MaxFollowers", "--max-followers",
	"MaxProducers", "--max-producers",
	"MaxStateBytes", "--max-state-bytes",
	"PollInterval", "--poll-interval",
	"TailBytes", "--tail-bytes",
)

// check completes the options whose default depends on others, and reports
// what the values contradict together.
func (c *serveConfig) check(s *settings) {
	if !s.changed("flush-interval") {
		c.engine.FlushInterval = c.store.flushInterval
	}
	if folder := c.engine.DiskCacheDir; c.store.holds(folder) {
		s.fault("--disk-cache %s lies in the store's folder %s; give it a folder of its own", folder, c.store.folder)
	}
	c.replica.check(s, &c.store)
	c.security.check(s, c.listen)
	c.status.check(s)
	if c.replica.on {
		c.report(s, c.readerOptions().Validate(), c.serverOptions((*engine.Reader)(nil)).Validate())
		return
	}
	if s.changed("retention-check-interval") && c.engine.Retention == 0 && c.engine.RetentionBytes == 0 {
		s.fault("--retention-check-interval needs --retention or --retention-bytes")
	}
	// A DB that is not open: only the numbers are looked at.
	c.report(s, c.engine.Validate(), c.serverOptions((*engine.DB)(nil)).Validate())
}

// report adds the faults that the engine and the server found.
func (c *serveConfig) report(s *settings, errs ...error) {
	err := errors.Join(errs...)
	if err == nil {
		return
	}
	for _, fault := range strings.Split(err.Error(), "\n") {
		s.fault("%s", flagNames.Replace(fault))
	}
}

// readerOptions are the options of a replica, but for its logger.
func (c *serveConfig) readerOptions() engine.ReaderOptions {
	return engine.ReaderOptions{
		Keys: c.replica.keys, PollInterval: c.replica.pollInterval, TailBytes: c.replica.tailBytes,
		CacheBytes: c.engine.CacheBytes, DiskCacheDir: c.engine.DiskCacheDir, DiskCacheBytes: c.engine.DiskCacheBytes,
		DiskCacheRequired: c.engine.DiskCacheRequired,
	}
}

// serverOptions are the options of the HTTP server in front of db, but for its
// logger.
func (c *serveConfig) serverOptions(db server.DB) server.Options {
	return server.Options{
		DB: db, Ack: c.engine.Ack, AppendTimeout: c.appendTimeout, BodyLimit: c.bodyLimit,
		MaxKeyBytes: c.engine.MaxKeyBytes, MaxValueBytes: c.engine.MaxValueBytes, MaxFollowers: c.maxFollowers,
	}
}
