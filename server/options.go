package server

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/url"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/annalsdb/annals/auth"
	"github.com/annalsdb/annals/engine"
	"github.com/annalsdb/annals/objstore/metered"
	"github.com/annalsdb/annals/trace"
)

// DB is what the server needs of a log; *engine.DB is one, and so is a replica. One that is
// a Writer too can be written; of another the routes that write are not there.
type DB interface {
	engine.LogReader
	// Err returns why the log stopped for good, or nil.
	Err() error
	// Ready returns why requests should not be sent here, or nil.
	Ready(ctx context.Context) error
	Status() engine.Status
}

// Writer is what a DB has if it can be written; *engine.DB is one.
type Writer interface {
	Append(ctx context.Context, recs []engine.Record, o engine.AppendOptions) (engine.AppendResult, error)
	// SetCursors returns the cursors of these keys that are in force then, once that is durable.
	SetCursors(ctx context.Context, consumer string, cursors []engine.Cursor, o engine.CursorOptions) ([]engine.Cursor, error)
	// DeleteCursors deletes those of the keys, or all that the consumer has if there are none.
	DeleteCursors(ctx context.Context, consumer string, keys ...[]byte) error
}

// Defaults of Options.
const (
	DefaultAppendTimeout = 30 * time.Second
	DefaultBodyLimit     = 32 << 20
	DefaultInFlightBytes = 512 << 20
	DefaultResponseBytes = 512 << 20
	DefaultMaxFollowers  = 100_000

	DefaultMaxFollowStreams = engine.MaxStreams
)

// Options of New. The zero value of every field but DB takes its default.
type Options struct {
	// DB is the log to serve. Required. The server does not close it.
	DB DB

	// Ack is what an append waits for whose request does not say. Default: what
	// the DB's own default is.
	Ack engine.Durability
	// AppendTimeout bounds the wait of an append, for room and for durability.
	// Default 30 s.
	AppendTimeout time.Duration
	// BodyLimit is the largest request body in bytes. Default 32 MiB.
	BodyLimit int64
	// MaxKeyBytes and MaxValueBytes refuse longer records with a message that
	// names the record. They should be those of the DB. Defaults 4,096 and 16 MiB.
	MaxKeyBytes, MaxValueBytes int
	// InFlightBytes bounds the bytes of all request bodies together (invariant I9).
	// Beyond it appends are answered with 429. Default 512 MiB, or twice BodyLimit if
	// that is more.
	InFlightBytes int64
	// ResponseBytes bounds the memory of all reads together, from before they read
	// until their clients have taken the answers. Reads wait for their share in line;
	// pages get shorter meanwhile; a read that waits for a minute is answered with 503.
	// It is apart from InFlightBytes, so that slow readers do not stop appends. Each
	// read begins with MaxValueBytes and 2.5 MiB, which bounds how many read at the same time.
	// A budget that is too small for one read serves one read at a time. Default 512 MiB.
	ResponseBytes int64

	// MaxFollowers bounds the requests that wait for records: event streams, long polls
	// and POST /follow count one each. Others are answered with 503. An idle event stream
	// takes about 12 KiB over HTTP/2 and 30 KiB as a connection of HTTP/1.1. Default 100,000.
	MaxFollowers int
	// MaxFollowStreams is the largest number of keys and prefixes of one POST /follow; all
	// of them together have four times as many. Each takes up to 300 bytes and its key.
	// Default 1,000,000, which is also the most.
	MaxFollowStreams int

	// Tokens says who may do what: every route but health and readiness then needs a
	// token (Authorization: Bearer). Default: everybody may do everything.
	Tokens *auth.Tokens
	// Replicas are the base URLs of replicas of the log, such as "http://host:8080", whose status is
	// part of this server's: each status asks all of them, unless it is told not to. At most
	// MaxReplicas. Default: none.
	Replicas []string
	// ReplicaTLS is for those whose URL begins with https. Default: the authorities of the system.
	ReplicaTLS *tls.Config
	// Version is what was built, for the server's status. Default: "".
	Version string
	// Admin answers on a listener of its own, and has the metrics then: they are no longer here. It is the
	// server's from New on. Default: none.
	Admin *Admin
	// Front answers on the listener already, and is the server's from New on.
	// Default: one of its own.
	Front *Front
	// Store is what the DB keeps its objects in, if the requests to it are counted: they are
	// part of the metrics then. Default: they are not.
	Store *metered.Store
	// Tracer is told of the requests that read or write the log; the operations that they make are parts of them
	// where the DB has the same one. Default nil: nobody is told.
	Tracer trace.Tracer
	// SlowLog is one whose counts are part of the metrics. Default: they are not.
	SlowLog *trace.SlowLog
	// Spans counts the spans that are sent to a collector of traces, for the metrics. It may be called from
	// any goroutine. Default nil: they have none.
	Spans func() trace.SpanCounts
	// Logger gets failures (error), requests that ran out of time (warn) and every
	// request (debug). Default: discarded.
	Logger *slog.Logger
	// Registry receives the server's metrics and is what /metrics shows. Default: one
	// of its own. Two servers cannot share one.
	Registry *prometheus.Registry
}

func (o Options) withDefaults() Options {
	setDefault(&o.AppendTimeout, DefaultAppendTimeout)
	setDefault(&o.BodyLimit, DefaultBodyLimit)
	setDefault(&o.MaxKeyBytes, engine.DefaultMaxKeyBytes)
	setDefault(&o.MaxValueBytes, engine.DefaultMaxValueBytes)
	setDefault(&o.InFlightBytes, max(DefaultInFlightBytes, 2*o.BodyLimit))
	setDefault(&o.ResponseBytes, DefaultResponseBytes)
	setDefault(&o.MaxFollowers, DefaultMaxFollowers)
	setDefault(&o.MaxFollowStreams, DefaultMaxFollowStreams)
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Registry == nil {
		o.Registry = prometheus.NewRegistry()
	}
	return o
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// Validate reports every option that is out of its bounds, joined into one
// error, or nil. Zero fields count as their defaults.
func (o Options) Validate() error {
	o = o.withDefaults()
	var errs []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	check(o.DB != nil, "DB is required")
	check(o.Ack >= engine.Default && o.Ack <= engine.Memory, "Ack is %d; it must be Default, Durable or Memory", o.Ack)
	check(o.AppendTimeout > 0, "AppendTimeout is %v; it must be above 0", o.AppendTimeout)
	check(o.BodyLimit > 0 && o.BodyLimit < math.MaxInt32, "BodyLimit is %d; it must be from 1 to %d", o.BodyLimit, math.MaxInt32-1)
	check(o.MaxKeyBytes > 0, "MaxKeyBytes is %d; it must be above 0", o.MaxKeyBytes)
	check(o.MaxValueBytes > 0, "MaxValueBytes is %d; it must be above 0", o.MaxValueBytes)
	check(o.InFlightBytes >= o.BodyLimit, "InFlightBytes (%d) is below BodyLimit (%d)", o.InFlightBytes, o.BodyLimit)
	check(o.ResponseBytes > 0, "ResponseBytes is %d; it must be above 0", o.ResponseBytes)
	check(o.MaxFollowers > 0, "MaxFollowers is %d; it must be above 0", o.MaxFollowers)
	check(o.MaxFollowStreams > 0 && o.MaxFollowStreams <= engine.MaxStreams,
		"MaxFollowStreams is %d; it must be from 1 to %d", o.MaxFollowStreams, engine.MaxStreams)
	check(len(o.Replicas) <= MaxReplicas, "Replicas names %d; at most %d are allowed", len(o.Replicas), MaxReplicas)
	for i, replica := range o.Replicas {
		u, err := url.Parse(replica)
		check(err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Host != "" && u.User == nil && !strings.ContainsAny(replica, "?#"),
			"Replicas[%d] is not a URL such as http://host:8080", i) // its text may hold a password
	}
	return errors.Join(errs...)
}
