package engine

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/annalsdb/annals/internal/base"
	"github.com/annalsdb/annals/trace"
)

// Defaults of ReaderOptions that a writer has no option for.
const (
	DefaultPollInterval = 100 * time.Millisecond
	DefaultTailBytes    = 256 << 20
)

const (
	minPollInterval = time.Millisecond
	maxPollInterval = time.Minute
)

// ReaderOptions of OpenReader. The zero value of every field takes its default.
type ReaderOptions struct {
	// Keys are the keys that this replica answers for, keeps in memory and caches. Default: all.
	// It still reads the whole WAL, which is not sorted by key.
	Keys KeyRange

	// PollInterval is how often the WAL is asked for its next object while records arrive:
	// the age that a record has at most, by and large, when it becomes readable here. Each
	// time costs one GET, or one more for each object found. After a while without records the
	// interval grows to one second, if that is more. Default 100 ms; from 1 ms to 1 min.
	PollInterval time.Duration
	// TailBytes is the heap for records that are not in tables yet, and for those
	// that lately were. When those that are not in tables need more, the WAL is not read on until
	// the writer has flushed: so it should be well above the writer's MemtableBytes. Default 256 MiB. One WAL
	// object more than this may be held.
	TailBytes int64

	// CacheBytes, DiskCacheDir, DiskCacheBytes and DiskCacheRequired are as in Options.
	CacheBytes        int64
	DiskCacheDir      string
	DiskCacheBytes    int64
	DiskCacheRequired bool
	// StaleAfter is how long the MANIFEST may be unreadable before reads of tables answer
	// ErrStale (invariant I7). Default 5 min. It must be at least a minute below the GCGrace of the
	// log's writer.
	StaleAfter time.Duration

	// Logger gets what operators want to know. Default: discarded.
	Logger *slog.Logger
	// Tracer is told of operations as they happen. Default nil: nobody is, which costs nothing.
	Tracer trace.Tracer
	// Env is the clock, randomness and goroutine starts. Default: the system's.
	Env *base.Env
}

func (o ReaderOptions) withDefaults() ReaderOptions {
	setDefault(&o.PollInterval, DefaultPollInterval)
	setDefault(&o.TailBytes, DefaultTailBytes)
	setDefault(&o.CacheBytes, DefaultCacheBytes)
	if o.DiskCacheDir != "" {
		setDefault(&o.DiskCacheBytes, DefaultDiskCacheBytes)
	}
	setDefault(&o.StaleAfter, DefaultStaleAfter)
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Env == nil {
		o.Env = base.SystemEnv()
	}
	return o
}

// Validate reports every option that is out of its bounds or contradicts another, joined
// into one error, or nil. Zero fields count as their defaults.
func (o ReaderOptions) Validate() error {
	o = o.withDefaults()
	var errs []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	if err := o.Keys.validate(); err != nil {
		errs = append(errs, err)
	}
	check(o.PollInterval >= minPollInterval && o.PollInterval <= maxPollInterval,
		"PollInterval is %v; it must be from %v to %v", o.PollInterval, minPollInterval, maxPollInterval)
	check(o.TailBytes >= 1, "TailBytes is %d; it must be at least 1", o.TailBytes)
	check(o.CacheBytes >= 1, "CacheBytes is %d; it must be at least 1", o.CacheBytes)
	check(o.DiskCacheDir != "" || o.DiskCacheBytes == 0, "DiskCacheBytes is %d, but there is no DiskCacheDir", o.DiskCacheBytes)
	check(o.DiskCacheDir != "" || !o.DiskCacheRequired, "DiskCacheRequired is set, but there is no DiskCacheDir")
	check(o.DiskCacheDir == "" || o.DiskCacheBytes >= minDiskCacheBytes,
		"DiskCacheBytes is %d; it must be at least %d", o.DiskCacheBytes, minDiskCacheBytes)
	check(o.StaleAfter >= 5*pollInterval, "StaleAfter is %v; it must be at least %v, or a late look at the head makes reads fail", o.StaleAfter, 5*pollInterval)
	return errors.Join(errs...)
}

// idleInterval is how often the WAL is polled when nothing arrives.
func (o *ReaderOptions) idleInterval() time.Duration { return max(time.Second, o.PollInterval) }

// maxLag is how far behind a replica may be and call itself ready.
func (o *ReaderOptions) maxLag() time.Duration { return max(5*time.Second, 10*o.PollInterval) }
