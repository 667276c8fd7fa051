package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/annalsdb/annals/engine"
	"github.com/annalsdb/annals/manifest"
	"github.com/annalsdb/annals/objstore/metered"
)

// replicaConfig is what the flags of serve say about a replica.
type replicaConfig struct {
	on           bool
	keys         engine.KeyRange
	pollInterval time.Duration
	tailBytes    int64
}

func (c *replicaConfig) addFlags(s *settings) {
	addFlag(s, "replica", "true|false", "false", &c.on, parseChoice([]string{"true", "false"}, []bool{true, false}),
		"only read the log that another server writes. Any number of replicas may run; each polls the store (default false)")
	s.flags.Lookup("replica").NoOptDefVal = "true"
	addFlag(s, "key-range", "from..to", "", &c.keys, parseKeyRange,
		"keys that the replica answers for and keeps, from the first one to before the second; either may be left out, and b64: marks a bound in base64. "+
			"It still reads the whole WAL (default all keys)")
	addFlag(s, "poll-interval", "duration", engine.DefaultPollInterval.String(), &c.pollInterval, parseDuration,
		"how often the replica asks for new records while some arrive, at rest once a second or as seldom as this. Shorter: fresher reads, more GET requests")
	addFlag(s, "tail-bytes", "size", formatSize(engine.DefaultTailBytes), &c.tailBytes, parseSize[int64],
		"memory of the replica for records that are not in tables yet, or lately were. It must be well above the writer's --memtable-bytes")
}

// parseKeyRange reads FROM..TO.
func parseKeyRange(text string) (engine.KeyRange, error) {
	r, err := engine.ParseKeyRange(text)
	if err != nil {
		why := strings.ReplaceAll(err.Error(), engine.ErrInvalid.Error()+": ", "")
		return r, fmt.Errorf("%s; write FROM..TO, such as ..n, b64:/wA=.. or a..n", why)
	}
	return r, nil
}

// Why a replica does not take flags of the writer.
const (
	appendsNothing = "a replica appends nothing"
	writesNothing  = "a replica writes nothing"
	writersWork    = "that is the work of the log's writer"
	writersState   = "the log's writer keeps cursors and producers"
)

// notOfReplicas are the flags that a replica refuses, and why.
var notOfReplicas = []struct{ flag, why string }{
	{"ack", appendsNothing}, {"append-timeout", appendsNothing}, {"body-limit", appendsNothing},
	{"read-visibility", "a replica sees only what is durable"},
	{"flush-interval", writesNothing}, {"wal-object-bytes", writesNothing}, {"memtable-bytes", writesNothing}, {"max-unflushed-bytes", writesNothing},
	{"segment-interval", writersWork}, {"segment-bytes", writersWork}, {"segment-min-bytes", writersWork},
	{"compaction", writersWork}, {"retention", writersWork}, {"retention-bytes", writersWork}, {"retention-check-interval", writersWork},
	{"gc-interval", writersWork}, {"gc-grace", writersWork},
	{"replicas", "the log's writer tells of its replicas"}, {"replicas-ca", "the log's writer tells of its replicas"},
	{"replicas-cert", "the log's writer tells of its replicas"}, {"replicas-key", "the log's writer tells of its replicas"},
	{"max-producers", writersState}, {"max-state-bytes", writersState}, {"forget-lost-state", writersState},
	{"on-fence", "nobody takes the log from one who only reads it"},
}

// ofReplicas are the flags that only a replica has.
var ofReplicas = []string{"key-range", "poll-interval", "tail-bytes"}

// unused reports whether a flag says nothing to a server of this sort.
func (c *replicaConfig) unused(flag string) bool {
	if !c.on {
		return slices.Contains(ofReplicas, flag)
	}
	for _, f := range notOfReplicas {
		if f.flag == flag {
			return true
		}
	}
	return false
}

// check reports flags that make no sense for what the server is.
func (c *replicaConfig) check(s *settings, store *storeURL) {
	if !c.on {
		for _, name := range ofReplicas {
			if s.changed(name) {
				s.fault("--%s needs --replica", name)
			}
		}
		return
	}
	for _, f := range notOfReplicas {
		if s.changed(f.flag) {
			s.fault("--%s cannot be combined with --replica: %s", f.flag, f.why)
		}
	}
	if store.private {
		s.fault("--replica cannot read the store mem:, which is of one process alone")
	}
}

// How long a replica that finds no log waits before it looks again, and how often it
// says that it does.
const (
	noLogPoll     = time.Second
	noLogReminder = time.Minute
)

// openReplica opens the log for reading. While there is none it waits for a writer to begin it.
func openReplica(ctx context.Context, log *slog.Logger, c *serveConfig) (openLog, *metered.Store, error) {
	options := c.readerOptions()
	options.Logger, options.Tracer = log, c.telemetry.tracer
	var said time.Time
	for {
		db, store, err := tryReplica(ctx, c, options)
		if err == nil || !errors.Is(err, manifest.ErrNoLog) && !errors.Is(err, fs.ErrNotExist) {
			return db, store, err
		}
		if time.Since(said) >= noLogReminder {
			said = time.Now()
			log.Info("there is no log yet; waiting for its writer", "found", err.Error())
		}
		again := time.NewTimer(noLogPoll)
		select {
		case <-again.C:
		case <-ctx.Done():
			again.Stop()
			return nil, nil, ctx.Err()
		}
	}
}

// tryReplica opens the log that there is. It does not begin a store.
func tryReplica(ctx context.Context, c *serveConfig, options engine.ReaderOptions) (openLog, *metered.Store, error) {
	inner, err := c.store.openToRead(ctx)
	if err != nil {
		return nil, nil, err
	}
	store := metered.New(inner, c.telemetry.store())
	db, err := engine.OpenReader(ctx, store, options)
	if err != nil {
		return nil, nil, err // not a nil *engine.Reader in the interface
	}
	return db, store, nil
}
