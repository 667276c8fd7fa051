package main

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/annalsdb/annals/engine"
	"github.com/annalsdb/annals/objstore/metered"
	"github.com/annalsdb/annals/server"
)

// serve runs the server until a signal, a fence or a failure ends it. What went
// wrong is one line of the log; the error carries the exit status only.
func serve(p *process, c serveConfig) error {
	log := newLogger(p.stderr, c.logLevel, c.logFormat)
	ctx, done := stopOnSignal(log)
	defer done()
	err := runServer(ctx, log, c)
	if err == nil {
		return nil
	}
	// One line, whatever was joined into the error.
	log.Error("stopped", "error", strings.ReplaceAll(err.Error(), "\n", "; "))
	if errors.Is(err, engine.ErrFenced) {
		return &exitError{exitFenced, nil}
	}
	return &exitError{exitFailure, nil}
}

func newLogger(w io.Writer, level slog.Level, format string) *slog.Logger {
	options := &slog.HandlerOptions{Level: level}
	if format == "json" {
		return slog.New(slog.NewJSONHandler(w, options))
	}
	return slog.New(slog.NewTextHandler(w, options))
}

// sameSignal is how long after the first a further signal is taken for the same one.
const sameSignal = time.Second

// stopOnSignal returns a context that ends with the first SIGINT or SIGTERM.
// The second ends the process, unless it comes within sameSignal.
func stopOnSignal(log *slog.Logger) (context.Context, func()) {
	ctx, cancel := context.WithCancel(context.Background())
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		s := <-signals
		log.Info("stopping", "signal", s.String())
		cancel()
		// Wrappers that pass a signal on make two of one: the same moment counts once.
		for began := time.Now(); time.Since(began) < sameSignal; {
			s = <-signals
		}
		log.Error("stopped at once: the shutdown was not finished", "signal", s.String())
		os.Exit(exitFailure)
	}()
	return ctx, func() {
		signal.Stop(signals)
		cancel()
	}
}

// runServer opens everything, serves, and closes everything.
func runServer(ctx context.Context, log *slog.Logger, c serveConfig) error {
	// The port first: when it is taken, nothing was touched. It answers from then
	// on, so that nobody takes a long recovery for a process that hangs.
	listener, err := net.Listen("tcp", c.listen)
	if err != nil {
		return err
	}
	role := "writer"
	if c.replica.on {
		role = "replica"
	}
	if err := c.telemetry.start(ctx, log, role); err != nil {
		return errors.Join(err, listener.Close())
	}
	watching, stopWatching := context.WithCancel(context.Background())
	defer stopWatching()
	c.security.watch(watching, log)
	admin, endAdmin, err := c.security.startAdmin(log)
	if err != nil {
		return errors.Join(err, listener.Close())
	}
	defer endAdmin()
	front := c.security.front(log)
	served := make(chan error, 1)
	go func() { served <- front.Serve(listener) }()
	db, store, err := c.openLog(ctx, log)
	if err != nil {
		front.Close()
		c.telemetry.stop(context.Background(), log)
		if ctx.Err() != nil {
			log.Info("stopped before the log was open")
			return nil
		}
		return err
	}
	options := c.serverOptions(db)
	options.Logger = log
	options.Front = front
	options.Store = store
	options.Version = version()
	c.status.options(&options)
	c.telemetry.options(&options)
	options.Tokens, options.Admin = c.security.tokens, admin
	srv, err := server.New(options)
	if err != nil {
		front.Close()
		return errors.Join(err, closeLog(c, db))
	}
	status := db.Status()
	about := []any{"store", status.Store, "epoch", status.Epoch, "recovered", status.Recovered, "address", listener.Addr().String()}
	if c.replica.on {
		about = append(about, "keys", c.replica.keys.String())
	}
	log.Info("serving", about...)
	c.security.warn(log, c.listen)
	cause := waitForEnd(ctx, log, &c.fence, db, served)
	return errors.Join(cause, shutDown(log, c, srv, db, cause))
}

// openLog is a log that was opened, as its writer or a replica.
type openLog interface {
	server.DB
	// Failed is closed when the log stops by itself; Err says why.
	Failed() <-chan struct{}
	Close(ctx context.Context) error
}

// openLog returns the log, and the store that it is in.
func (c *serveConfig) openLog(ctx context.Context, log *slog.Logger) (openLog, *metered.Store, error) {
	if c.replica.on {
		return openReplica(ctx, log, c)
	}
	inner, err := c.store.open(ctx)
	if err != nil {
		return nil, nil, err
	}
	store := metered.New(inner, c.telemetry.store())
	options := c.engine
	options.Logger, options.Tracer = log, c.telemetry.tracer
	db, err := engine.Open(ctx, store, options)
	if err != nil {
		return nil, nil, err // not a nil *engine.DB in the interface
	}
	return db, store, nil
}

// closeLog closes a log that was never served.
func closeLog(c serveConfig, db openLog) error {
	ctx, cancel := context.WithTimeout(context.Background(), c.shutdownTimeout)
	defer cancel()
	return db.Close(ctx)
}

// waitForEnd returns when the server has to stop, with the reason unless that
// is a signal. A fenced server has answered 503 for a while by then.
func waitForEnd(ctx context.Context, log *slog.Logger, fence *fenceConfig, db openLog, served <-chan error) error {
	select {
	case <-ctx.Done():
		return nil
	case err := <-served:
		return err
	case <-db.Failed():
	}
	err := db.Err()
	if !errors.Is(err, engine.ErrFenced) {
		return err
	}
	fence.wait(ctx, log, served)
	return err
}

// shutDown finishes what is under way and closes the log, within the shutdown
// timeout. Requests get the first half of it: one that hangs must not keep the
// log from a clean close.
func shutDown(log *slog.Logger, c serveConfig, srv *server.Server, db openLog, cause error) error {
	ctx, cancel := context.WithTimeout(context.Background(), c.shutdownTimeout)
	defer cancel()
	defer c.telemetry.stop(ctx, log)
	requests, cancelRequests := context.WithTimeout(ctx, c.shutdownTimeout/2)
	defer cancelRequests()
	if err := srv.Shutdown(requests); err != nil {
		log.Warn("requests were cut off", "error", err)
	}
	if err := db.Close(ctx); err != nil && cause == nil {
		return err
	}
	if status := db.Status(); status.Replica {
		log.Info("closed", "frontier", status.Frontier)
	} else {
		log.Info("closed", "next", status.Next)
	}
	return nil
}
