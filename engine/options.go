package engine

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/annalsdb/annals/internal/base"
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
	DefaultWALObjectBytes  = 8 << 20
	DefaultWALInFlight     = 8
	DefaultMemtableBytes   = 64 << 20
	DefaultRecentBytes     = 64 << 20
	DefaultUnflushedBytes  = 512 << 20
	DefaultCacheBytes      = 256 << 20
	DefaultTableBytes      = 64 << 20
	DefaultBlockBytes      = 32 << 10
	DefaultSegmentInterval = time.Hour
	DefaultSegmentBytes    = 16 << 30
	DefaultSegmentMinBytes = 64 << 20
	DefaultMaxKeyBytes     = 4096
	DefaultMaxValueBytes   = 16 << 20
	DefaultMaxRuns         = 4096
	DefaultStaleAfter      = 5 * time.Minute
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
	// Default 8 MiB. Larger objects cost fewer requests and more memory.
	WALObjectBytes int64
	// WALInFlight is the number of WAL PUTs under way at the same time. Default
	// 8. Throughput is at most WALInFlight * WALObjectBytes per PUT latency.
	WALInFlight int

	// MemtableBytes is the heap size at which the memtable is frozen and written
	// as a run. Default 64 MiB. Larger: fewer, larger runs, longer recovery.
	MemtableBytes int64
	// RecentBytes is the heap for memtables that were flushed already and are
	// kept so that readers at the tip cause no request. Default 64 MiB.
	RecentBytes int64
	// MaxUnflushedBytes bounds the record bytes that are not yet in runs: beyond
	// it appends wait, and fail with ErrOverloaded when their context ends. A
	// single batch larger than it is refused. Default 512 MiB.
	MaxUnflushedBytes int64
	// MaxRuns bounds the runs of the active segment: when it has as many it is
	// sealed, whatever its size. Default 4096. Reads look at every run.
	MaxRuns int

	// CacheBytes is the memory for decoded blocks of tables. Default 256 MiB.
	CacheBytes int64
	// TableBytes is the size at which a run is cut into another SST. Default 64
	// MiB.
	TableBytes int64
	// BlockBytes is the size of a data block before compression. Default 32 KiB.
	BlockBytes int

	// SegmentInterval is the age at which the active segment is sealed, once it
	// holds SegmentMinBytes. Default 1 h.
	SegmentInterval time.Duration
	// SegmentBytes is the size of record bytes at which it is sealed at once.
	// Default 16 GiB. Retention drops whole segments.
	SegmentBytes int64
	// SegmentMinBytes keeps a slow log from collecting tiny segments. Default 64
	// MiB.
	SegmentMinBytes int64

	// MaxKeyBytes and MaxValueBytes refuse larger records. Defaults 4,096 and 16
	// MiB.
	MaxKeyBytes   int
	MaxValueBytes int

	// StaleAfter is how long a reader may go without a successful look at the
	// MANIFEST before reads of objects answer ErrStale (invariant I7). Default 5
	// min. It must stay below the collector's grace.
	StaleAfter time.Duration

	// Logger gets what operators want to know. Default: discarded.
	Logger *slog.Logger
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
)

// withDefaults returns the options with every zero field set.
func (o Options) withDefaults() Options {
	setDefault(&o.Ack, Durable)
	setDefault(&o.ReadVisibility, Durable)
	setDefault(&o.FlushInterval, DefaultFlushInterval)
	setDefault(&o.WALObjectBytes, DefaultWALObjectBytes)
	setDefault(&o.WALInFlight, DefaultWALInFlight)
	setDefault(&o.MemtableBytes, DefaultMemtableBytes)
	setDefault(&o.RecentBytes, DefaultRecentBytes)
	setDefault(&o.MaxUnflushedBytes, DefaultUnflushedBytes)
	setDefault(&o.MaxRuns, DefaultMaxRuns)
	setDefault(&o.CacheBytes, DefaultCacheBytes)
	setDefault(&o.TableBytes, DefaultTableBytes)
	setDefault(&o.BlockBytes, DefaultBlockBytes)
	setDefault(&o.SegmentInterval, DefaultSegmentInterval)
	setDefault(&o.SegmentBytes, DefaultSegmentBytes)
	setDefault(&o.SegmentMinBytes, min(DefaultSegmentMinBytes, o.SegmentBytes))
	setDefault(&o.MaxKeyBytes, DefaultMaxKeyBytes)
	setDefault(&o.MaxValueBytes, DefaultMaxValueBytes)
	setDefault(&o.StaleAfter, DefaultStaleAfter)
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
	check(o.StaleAfter >= 5*pollInterval, "StaleAfter is %v; it must be at least %v, or a late look at the head makes reads fail", o.StaleAfter, 5*pollInterval)
	return errors.Join(errs...)
}
