package main

import (
	"context"
	"fmt"
	"io"
	"math"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/annalsdb/annals/internal/base"
)

const appendLong = `Loads newline-delimited JSON into the log, one record a line:

  {"key":"user-17","value":"a string is stored as it is"}
  {"key":"user-17","value":{"anything":"else is stored as its JSON text, without white space"}}

Other members are ignored, blank lines too. Lines are at most 32MiB long; gzipped input is recognised.
Batches are sent one after the other and acknowledged when they are durable. When it stops early it says
how many lines, from the beginning of the input, were acknowledged; --skip goes on from there.

Exit statuses: 0 all lines acknowledged; 1 stopped, and every line behind the acknowledged ones was not
appended; 2 bad flags; 3 stopped, and it is unknown whether the last batch was appended.`

// defaultServer is where "annals serve" listens by default.
const defaultServer = "http://127.0.0.1:8080"

type appendConfig struct {
	file         string
	server       string
	skip         uint64
	batchRecords uint64
	batchBytes   int64
}

func newAppend(p *process) *cobra.Command {
	var c appendConfig
	cmd := &cobra.Command{Use: "append [flags]", Short: "Load newline-delimited JSON through a server", Long: appendLong}
	define := func(s *settings) {
		addFlag(s, "file", "path", "-", &c.file, parseText, "what to load; - is standard input")
		addServerFlag(s, &c.server)
		addFlag(s, "skip", "lines", "0", &c.skip, parseCount(0, math.MaxUint64),
			"lines at the beginning of the input that are passed over, because an earlier load had them acknowledged")
		addFlag(s, "batch-records", "count", "1000", &c.batchRecords, parseCount(1, 1_000_000),
			"records of one append at most; each append waits for the store once")
		addFlag(s, "batch-bytes", "size", "1MiB", &c.batchBytes, parseSize[int64],
			"keys and values of one append at most, unless a single record is larger; it must stay well below the server's --body-limit")
	}
	return newCommand(p, cmd, nil, define, func(*settings) {}, func(*settings, []string) error {
		return load(p, c)
	})
}

// addServerFlag adds the flag of the commands that speak to a server.
func addServerFlag(s *settings, target *string) {
	addFlag(s, "server", "url", defaultServer, target, parseServer, "the server's base URL; also "+variableOf("server"))
	s.withVariable("server")
}

func load(p *process, c appendConfig) error {
	in, name := p.stdin, "standard input"
	if c.file != "-" {
		f, err := os.Open(c.file)
		if err != nil {
			return failf("%w", err)
		}
		defer f.Close()
		in, name = f, c.file
	}
	send, err := newAppendFunc(c.server)
	if err != nil {
		return failf("%w", err)
	}
	// The first signal ends the load behind the batch under way, the second at once.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop)
	return loadInput(ctx, p.stderr, in, name, send, c)
}

func loadInput(ctx context.Context, out io.Writer, in io.Reader, name string, send appendFunc, c appendConfig) error {
	input, err := newLineReader(in, name)
	if err == nil {
		err = input.skip(c.skip)
	}
	if err != nil {
		return failf("%w", err)
	}
	env := base.SystemEnv()
	l := &loader{
		input: input, send: send, env: env, progress: newProgress(out, env.Now, c.skip),
		batchRecords: c.batchRecords, batchBytes: c.batchBytes,
	}
	err = l.run(ctx)
	l.progress.end()
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "%d lines acknowledged: %s\n", l.progress.lines, l.progress.rate())
	return nil
}

// shellQuote writes a key so that a POSIX shell reads it back. One that cannot
// be shown is written as a Go string, for people.
func shellQuote(key []byte) string {
	text := string(key)
	plain := strings.IndexFunc(text, func(r rune) bool {
		return !strings.ContainsRune("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./:@%+,", r)
	}) < 0
	switch {
	case text != "" && plain:
		return text
	case strings.IndexFunc(text, func(r rune) bool { return !strconv.IsPrint(r) }) >= 0:
		return strconv.Quote(text)
	}
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
}
