package bench

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	"github.com/annalsdb/annals/engine"
	"github.com/annalsdb/annals/objstore"
	"github.com/annalsdb/annals/objstore/metered"
	"github.com/annalsdb/annals/server"
)

// shutdownTimeout bounds how long the HTTP server beside an embedded log may take to stop.
const shutdownTimeout = 10 * time.Second

// Embedded is a log whose engine runs in this process.
type Embedded struct {
	DB    *engine.DB
	Store *metered.Store // what the engine asks of its store is counted here

	options engine.Options
}

// OpenEmbedded opens the log in the store, which is metered.
func OpenEmbedded(ctx context.Context, store objstore.Store, o engine.Options) (*Embedded, error) {
	e := &Embedded{Store: metered.New(store, metered.Options{}), options: o}
	return e, e.open(ctx)
}

func (e *Embedded) open(ctx context.Context) error {
	db, err := engine.Open(ctx, e.Store, e.options)
	if err != nil {
		return fmt.Errorf("open the log: %w", err)
	}
	e.DB = db
	return nil
}

// Reopen closes the log and opens it again on the same store: with empty caches. Nothing else may use it meanwhile.
func (e *Embedded) Reopen(ctx context.Context) error {
	if err := e.DB.Close(ctx); err != nil {
		return fmt.Errorf("close the log: %w", err)
	}
	return e.open(ctx)
}

// Append implements Target.
func (e *Embedded) Append(ctx context.Context, recs []Record, ack Ack) (uint64, error) {
	res, err := e.DB.Append(ctx, recs, engine.AppendOptions{Ack: ack})
	return res.First, err
}

// Scan implements Target.
func (e *Embedded) Scan(ctx context.Context, key []byte, o ScanOptions) (Page, error) {
	it := e.DB.Scan(ctx, key, engine.From(o.From), engine.ScanOptions{Limit: o.Limit, MaxBytes: o.MaxBytes, Last: o.Last})
	var p Page
	for rec := range it.All() {
		p.Records = append(p.Records, Got{rec.Sequence, rec.Value})
	}
	p.Next = it.Next()
	return p, it.Err()
}

// Count implements Target.
func (e *Embedded) Count(ctx context.Context, key []byte) (uint64, error) {
	return e.DB.Count(ctx, key, engine.All())
}

// Keys implements Target.
func (e *Embedded) Keys(ctx context.Context, prefix, after []byte, limit int) ([][]byte, bool, error) {
	p, err := e.DB.Keys(ctx, engine.KeysOptions{Prefix: prefix, After: after, Limit: limit})
	return p.Keys, p.More, err
}

// Close implements Target.
func (e *Embedded) Close(ctx context.Context) error { return e.DB.Close(ctx) }

// loopback is the project's own HTTP server in front of an embedded log.
type loopback struct {
	srv    *server.Server
	served chan error
}

// Serve puts an HTTP server on a free loopback port in front of the log and returns it as a Remote, which
// keeps the embedded log beside it and closes both.
func (e *Embedded) Serve(logger *slog.Logger) (*Remote, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	srv, err := server.New(server.Options{DB: e.DB, Store: e.Store, Logger: logger, MaxFollowers: MaxFollowers})
	if err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	l := &loopback{srv: srv, served: make(chan error, 1)}
	go func() { l.served <- srv.Serve(listener) }()
	r, err := NewRemote("http://"+listener.Addr().String(), RemoteOptions{})
	if err != nil {
		return nil, errors.Join(err, l.stop(context.Background()))
	}
	r.Beside, r.loopback = e, l
	return r, nil
}

func (l *loopback) stop(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, shutdownTimeout)
	defer cancel()
	return errors.Join(l.srv.Shutdown(ctx), <-l.served)
}
