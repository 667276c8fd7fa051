package engine

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/annalsdb/annals/internal/base"
	"github.com/annalsdb/annals/trace"
)

// Durability says from where something is taken: from the object store, or
// already from this process's memory.
type Durability int

const (
	// Default takes the option's default: durable.
	Default Durability = iota
	// Durable means: the record's batch and every earlier one are in the object
	// store (invariant I1).
	Durable
	// Memory means: the record is in the writer's memory and is lost if the
	// process dies before it was uploaded.
	Memory
)

// Defaults of Options.
const (
	DefaultFlushInterval   = 100 * time.Millisecond
	DefaultWALObjectBytes  = 4 << 20
	DefaultWALInFlight     = 16
	DefaultMemtableBytes   = 64 << 20
	DefaultRecentBytes     = 64 << 20
	DefaultUnflushedBytes  = 512 << 20
	DefaultCacheBytes      = 256 << 20
	DefaultDiskCacheBytes  = 10 << 30
	DefaultTableBytes      = 64 << 20
	DefaultBlockBytes      = 32 << 10
	DefaultSegmentInterval = time.Hour
	DefaultSegmentBytes    = 16 << 30
	DefaultSegmentMinBytes = 64 << 20
	DefaultMaxKeyBytes     = 4096
	DefaultMaxValueBytes   = 16 << 20
	DefaultMaxRuns         = 4096
	DefaultStaleAfter      = 5 * time.Minute
	DefaultMaxStateBytes   = 512 << 20
	DefaultMaxProducers    = 65_536

	DefaultRetentionInterval = time.Minute
	DefaultGCInterval        = time.Minute
	DefaultGCGrace           = 15 * time.Minute
)

// Options of Open. The zero value of every field takes its default. Byte
// limits on records count key + value.
type Options struct {
	// Ack is what an append waits for when its own options do not say. Default
	// Durable; Memory answers at once and may lose the last records in a crash.
	Ack Durability
	// ReadVisibility is what reads see. Default Durable: only records that cannot
	// be lost any more. Memory: also records that a crash could take back.
	ReadVisibility Durability

	// FlushInterval is the least time between two WAL objects unless they are
	// full: it bounds PUT requests per second in a steady stream and adds to an
	// append's latency there. An append after a quiet moment goes out at once.
	// Default 100 ms; 1 to 5 ms suits a local directory.
	FlushInterval time.Duration
	// WALObjectBytes is the size at which a WAL object is cut before its time.
	// Default 4 MiB. Larger objects cost fewer requests and more memory, and on S3, which
	// transfers some 90 MB/s for one request, each waits longer.
	WALObjectBytes int64
	// WALInFlight is the number of WAL PUTs under way at the same time. Default
	// 16. Throughput is at most WALInFlight * WALObjectBytes per PUT latency.
	WALInFlight int

	// MemtableBytes is the heap size at which the memtable is frozen and written
	// as a run. Default 64 MiB. Larger: fewer, larger runs, longer recovery.
	MemtableBytes int64
	// RecentBytes is the heap for memtables that were flushed already and are
	// kept so that readers at the tip cause no request. Default 64 MiB, or half as much
	// again as MemtableBytes if that is more: a full memtable is a little larger than that, and must
	// fit, or the tip would leave memory with every flush.
	RecentBytes int64
	// MaxUnflushedBytes bounds the record bytes, and bytes of changed cursors, that are not yet in runs: beyond
	// it appends wait, and fail with ErrOverloaded when their context ends. A
	// single batch larger than it is refused. Default 512 MiB.
	MaxUnflushedBytes int64
	// MaxRuns bounds the runs of the active segment: when it has as many it is
	// sealed, whatever its size. Default 4096. Reads look at every run.
	MaxRuns int

	// CacheBytes is the memory for decoded blocks of tables. Default 256 MiB.
	CacheBytes int64
	// DiskCacheDir is a folder on a local disk for ranges of tables that were read
	// from the store; it is created if it does not exist. Default "": none. It
	// survives a restart, belongs to one process at a time, and may be deleted at
	// any time. If it cannot be used, the log works without it, and says so in its
	// log of events.
	DiskCacheDir string
	// DiskCacheBytes bounds the files in it, with what they occupy beside their
	// bytes. Default 10 GiB.
	DiskCacheBytes int64
	// DiskCacheRequired makes the log not ready while the disk cache cannot be written, as on a full disk, and Open
	// fail if its folder cannot be used: for logs that others serve too. Default false: reads go to the store then.
	DiskCacheRequired bool
	// TableBytes is the size at which a run is cut into another SST. Default 64
	// MiB.
	TableBytes int64
	// BlockBytes is the size of a data block before compression. Default 32 KiB.
	BlockBytes int

	// SegmentInterval is the age at which the active segment is sealed, once it
	// holds SegmentMinBytes or is older than an eighth of Retention. Default 1 h, or
	// an eighth of Retention if that is less.
	SegmentInterval time.Duration
	// SegmentBytes is the size of record bytes at which it is sealed at once.
	// Default 16 GiB, or an eighth of RetentionBytes if that is less. Retention
	// drops whole segments.
	SegmentBytes int64
	// SegmentMinBytes keeps a slow log from collecting tiny segments. Default 64
	// MiB, or SegmentBytes if that is less.
	SegmentMinBytes int64

	// Retention is how long records are kept: a segment is dropped, whole, once it
	// was sealed that long ago by the store's time. So a record stays for this long
	// and at most for the time longer that its segment was active. Default 0: for ever.
	// At least 1 s, the resolution of the store's time.
	Retention time.Duration
	// RetentionBytes drops the oldest sealed segments while the log holds more
	// record bytes than this. Default 0: no limit. The active segment stays, whatever
	// its size.
	RetentionBytes int64
	// RetentionInterval is how often both are looked at. Default 60 s, or Retention
	// if that is less. With Retention each look costs one request.
	RetentionInterval time.Duration
	// GCInterval is how often objects that are no longer needed are looked for and
	// deleted. Default 60 s. A look that finds nothing costs no request, but one of
	// the whole bucket an hour.
	GCInterval time.Duration
	// GCGrace is how long an object stays after it left the log, by the store's
	// time, for those who read from an old view (invariant I7). Default 15 min. It must
	// be at least StaleAfter + 1 min, and above the StaleAfter of every other
	// reader of the log.
	GCGrace time.Duration

	// MaxKeyBytes and MaxValueBytes refuse larger records. Defaults 4,096 and 16
	// MiB.
	MaxKeyBytes   int
	MaxValueBytes int

	// MaxStateBytes bounds the heap of the small state, cursors and producers: a set with new cursors
	// that would exceed it is refused with ErrStateFull. Default 512 MiB; a cursor takes its key and about 40 bytes
	// more.
	MaxStateBytes int64
	// MaxProducers is how many idempotent producers are remembered; beyond it the one is forgotten that
	// appended longest ago. Default 65,536. One takes its name and at most about 2 KiB more. They count towards
	// MaxStateBytes, but are not refused because of it.
	MaxProducers int

	// ForgetLostState lets Open go on without cursors and producers when the objects that hold them are missing or
	// damaged: all of them are then forgotten for good, but for what was changed after the last flush. Else such an
	// open fails, and the objects may be put back. It is the name of a state object in force, as the error or Check names
	// it, so that it is good for that loss alone: those that are written afterwards have other names. It changes nothing
	// when they can be read.
	ForgetLostState string

	// DisableCompaction leaves compaction to other processes (Compact). Without any,
	// runs and small segments pile up, and reads look at all of them.
	DisableCompaction bool

	// StaleAfter is how long a reader may go without a successful look at the
	// MANIFEST before reads of objects answer ErrStale (invariant I7). Default 5
	// min. It must stay below the collector's grace.
	StaleAfter time.Duration

	// Logger gets what operators want to know. Default: discarded.
	Logger *slog.Logger
	// Tracer is told of operations as they happen. Default nil: nobody is, which costs nothing.
	Tracer trace.Tracer
	// Env is the clock, randomness and goroutine starts. Default: the system's.
	Env *base.Env
}

// Bounds of Options: above them a mistake is more likely than an intention.
const (
	maxWALObjectBytes = 256 << 20
	maxWALInFlight    = 256
	maxMemtableBytes  = 16 << 30
	maxTableBytes     = 1 << 30
	maxBlockBytes     = 16 << 20
	maxKeyBytes       = 64 << 10
	maxValueBytes     = 256 << 20
	maxProducers      = 16 << 20
	minDiskCacheBytes = 16 << 20
)

// withDefaults returns the options with every zero field set.
func (o Options) withDefaults() Options {
	setDefault(&o.Ack, Durable)
	setDefault(&o.ReadVisibility, Durable)
	setDefault(&o.FlushInterval, DefaultFlushInterval)
	setDefault(&o.WALObjectBytes, DefaultWALObjectBytes)
	setDefault(&o.WALInFlight, DefaultWALInFlight)
	setDefault(&o.MemtableBytes, DefaultMemtableBytes)
	setDefault(&o.RecentBytes, max(DefaultRecentBytes, o.MemtableBytes+o.MemtableBytes/2))
	setDefault(&o.MaxUnflushedBytes, DefaultUnflushedBytes)
	setDefault(&o.MaxRuns, DefaultMaxRuns)
	setDefault(&o.CacheBytes, DefaultCacheBytes)
	if o.DiskCacheDir != "" {
		setDefault(&o.DiskCacheBytes, DefaultDiskCacheBytes)
	}
	setDefault(&o.TableBytes, DefaultTableBytes)
	setDefault(&o.BlockBytes, DefaultBlockBytes)
	setDefault(&o.SegmentInterval, atMost(DefaultSegmentInterval, o.Retention/retentionParts))
	setDefault(&o.SegmentBytes, atMost(DefaultSegmentBytes, o.RetentionBytes/retentionParts))
	setDefault(&o.SegmentMinBytes, min(DefaultSegmentMinBytes, o.SegmentBytes))
	setDefault(&o.MaxKeyBytes, DefaultMaxKeyBytes)
	setDefault(&o.MaxValueBytes, DefaultMaxValueBytes)
	setDefault(&o.MaxStateBytes, DefaultMaxStateBytes)
	setDefault(&o.MaxProducers, DefaultMaxProducers)
	setDefault(&o.StaleAfter, DefaultStaleAfter)
	setDefault(&o.RetentionInterval, atMost(DefaultRetentionInterval, o.Retention))
	setDefault(&o.GCInterval, DefaultGCInterval)
	setDefault(&o.GCGrace, DefaultGCGrace)
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Env == nil {
		o.Env = base.SystemEnv()
	}
	return o
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// retentionParts is how many parts of what is kept a segment may be old or large by
// default: retention drops whole segments, so the log holds a part more than asked.
const retentionParts = 8

// atMost returns def, or limit if there is one (above 0) and it is less.
func atMost[T ~int64](def, limit T) T {
	if limit <= 0 {
		return def
	}
	return min(def, limit)
}

// Validate reports every option that is out of its bounds or contradicts
// another, joined into one error, or nil. Zero fields count as their defaults.
func (o Options) Validate() error {
	o = o.withDefaults()
	var errs []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	between := func(name string, v, lo, hi int64) {
		check(v >= lo && v <= hi, "%s is %d; it must be from %d to %d", name, v, lo, hi)
	}
	atLeast := func(name string, v, lo int64) {
		check(v >= lo, "%s is %d; it must be at least %d", name, v, lo)
	}
	check(o.Ack == Durable || o.Ack == Memory, "Ack is %d; it must be Durable or Memory", o.Ack)
	check(o.ReadVisibility == Durable || o.ReadVisibility == Memory,
		"ReadVisibility is %d; it must be Durable or Memory", o.ReadVisibility)
	check(o.FlushInterval > 0 && o.FlushInterval <= time.Minute,
		"FlushInterval is %v; it must be above 0 and at most 1m", o.FlushInterval)
	between("WALObjectBytes", o.WALObjectBytes, 1, maxWALObjectBytes)
	between("WALInFlight", int64(o.WALInFlight), 1, maxWALInFlight)
	between("MemtableBytes", o.MemtableBytes, 1, maxMemtableBytes)
	atLeast("RecentBytes", o.RecentBytes, 1)
	atLeast("MaxUnflushedBytes", o.MaxUnflushedBytes, 1)
	atLeast("MaxRuns", int64(o.MaxRuns), 1)
	atLeast("CacheBytes", o.CacheBytes, 1)
	check(o.DiskCacheDir != "" || o.DiskCacheBytes == 0, "DiskCacheBytes is %d, but there is no DiskCacheDir", o.DiskCacheBytes)
	check(o.DiskCacheDir != "" || !o.DiskCacheRequired, "DiskCacheRequired is set, but there is no DiskCacheDir")
	if o.DiskCacheDir != "" {
		atLeast("DiskCacheBytes", o.DiskCacheBytes, minDiskCacheBytes)
	}
	between("TableBytes", o.TableBytes, 1, maxTableBytes)
	between("BlockBytes", int64(o.BlockBytes), 1, maxBlockBytes)
	check(o.SegmentInterval > 0, "SegmentInterval is %v; it must be above 0", o.SegmentInterval)
	atLeast("SegmentBytes", o.SegmentBytes, 1)
	atLeast("SegmentMinBytes", o.SegmentMinBytes, 1)
	check(o.SegmentMinBytes <= o.SegmentBytes,
		"SegmentMinBytes (%d) is above SegmentBytes (%d)", o.SegmentMinBytes, o.SegmentBytes)
	between("MaxKeyBytes", int64(o.MaxKeyBytes), 1, maxKeyBytes)
	between("MaxValueBytes", int64(o.MaxValueBytes), 1, maxValueBytes)
	check(o.MaxUnflushedBytes < 0 || int64(o.MaxKeyBytes)+int64(o.MaxValueBytes) <= o.MaxUnflushedBytes,
		"MaxUnflushedBytes (%d) is below MaxKeyBytes + MaxValueBytes (%d): the largest record could never be appended",
		o.MaxUnflushedBytes, o.MaxKeyBytes+o.MaxValueBytes)
	atLeast("MaxStateBytes", o.MaxStateBytes, 1)
	between("MaxProducers", int64(o.MaxProducers), 1, maxProducers)
	check(o.StaleAfter >= 5*pollInterval, "StaleAfter is %v; it must be at least %v, or a late look at the head makes reads fail", o.StaleAfter, 5*pollInterval)
	o.validateRetention(check)
	return errors.Join(errs...)
}

// graceMargin is what GCGrace must exceed StaleAfter by. It covers that the store's
// time has a resolution of a second and its servers' clocks differ, that clocks run
// at different rates, and a request that was sent just before the view went stale.
const graceMargin = time.Minute

// withoutZeroSeconds formats a duration as a person would write it: 6m, where it is 6m0s for the library.
func withoutZeroSeconds(d time.Duration) string {
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	return text
}

// validateRetention checks the options of retention and collection.
func (o *Options) validateRetention(check func(ok bool, format string, args ...any)) {
	check(o.Retention == 0 || o.Retention >= time.Second, "Retention is %v; it must be 0 (for ever) or at least 1s", o.Retention)
	check(o.RetentionBytes >= 0, "RetentionBytes is %d; it must be 0 (no limit) or above", o.RetentionBytes)
	check(o.RetentionInterval > 0, "RetentionInterval is %v; it must be above 0", o.RetentionInterval)
	check(o.Retention <= 0 || o.RetentionInterval <= o.Retention,
		"RetentionInterval (%v) is above Retention (%v): records would stay for more than twice as long", o.RetentionInterval, o.Retention)
	check(o.Retention <= 0 || o.SegmentInterval <= o.Retention,
		"SegmentInterval (%v) is above Retention (%v): only whole segments are dropped, so records would stay for more than twice as long", o.SegmentInterval, o.Retention)
	check(o.RetentionBytes <= 0 || o.SegmentBytes <= o.RetentionBytes,
		"SegmentBytes (%d) is above RetentionBytes (%d): the active segment alone would exceed what is kept", o.SegmentBytes, o.RetentionBytes)
	check(o.GCInterval > 0, "GCInterval is %v; it must be above 0", o.GCInterval)
	check(o.GCGrace >= o.StaleAfter+graceMargin,
		"GCGrace is %v; it must be at least %v, or objects would be deleted while a reader may still need them",
		o.GCGrace, withoutZeroSeconds(o.StaleAfter+graceMargin))
}
