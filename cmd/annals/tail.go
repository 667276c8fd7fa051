package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/annalsdb/annals/client"
	"github.com/annalsdb/annals/wire"
)

const tailLong = `Follows keys, and all keys with a prefix, those that are yet to come too: prints their records as they come, until it is
interrupted, and connects again when it loses the server. The records of one key come in order, none missing, none twice; those of
different keys in any order. A line is the key, a tab and the value as it is. With --json one object a line:

  {"sequence":17,"timestampMs":1712345678901,"key":"user-17","value":"..."}

With --consumer each key goes on at the consumer's stored cursor. --commit moves the cursors behind what was printed, every 5 seconds and
at the end: after a crash, or when the reader of a pipe goes away, some records are printed again, and none is left out.

` + keyLong

// Bounds of moving cursors.
const (
	// commitInterval is how often tail moves cursors.
	commitInterval = 5 * time.Second
	// commitTimeout bounds each time.
	commitTimeout = 10 * time.Second
	// commitKeys is how many cursors one request sets at most.
	commitKeys = 10_000
)

// tailFrom is where tail begins: at the end of the log, at a sequence, or at a time.
type tailFrom struct {
	now     bool
	seq     uint64
	sinceMs int64 // 0: no time
}

type tailConfig struct {
	connection
	prefixes [][]byte
	from     tailFrom
	consumer string
	commit   bool
	limit    uint64
	json     bool
}

func newTail(p *process) *cobra.Command {
	var c tailConfig
	cmd := &cobra.Command{Use: "tail [flags] [KEY...]", Short: "Print the records of keys and prefixes as they come", Long: tailLong}
	define := func(s *settings) {
		addConnectionFlags(s, &c.connection)
		parsePrefix := func(text string) ([][]byte, error) {
			prefix, err := parseKey(text)
			return append(c.prefixes, prefix), err
		}
		addFlag(s, "prefix", "key", "", &c.prefixes, parsePrefix, "follow all keys that begin with this; may be given several times (default: none)")
		addFlag(s, "from", "where", "", &c.from, parseFrom, "where to begin: now, a sequence, a time such as 2026-01-31T12:00:00Z, or -10m for that long ago; "+
			"with --consumer, now is for keys that have no cursor, a time for all, and a sequence for none (default now; with --consumer the beginning, for keys that have no cursor)")
		addFlag(s, "consumer", "name", "", &c.consumer, parseConsumer, "begin at this consumer's cursors; for keys, not prefixes (default: none)")
		s.flags.BoolVar(&c.commit, "commit", false, "move the consumer's cursors as records are printed")
		addFlag(s, "limit", "count", "", &c.limit, parseCount(1, math.MaxUint64), "stop after this many records (default: none)")
		s.flags.BoolVar(&c.json, "json", false, "print one JSON object a line instead of keys and values")
	}
	check := func(s *settings) {
		if c.commit && c.consumer == "" {
			s.fault("--commit needs --consumer")
		}
		if c.consumer != "" && s.changed("prefix") {
			s.fault("--consumer and --prefix exclude each other: cursors are of keys")
		}
		if _, err := parseCount(0, math.MaxUint64)(s.flags.Lookup("from").Value.String()); err == nil && c.consumer != "" {
			s.fault("--consumer and a sequence as --from exclude each other")
		}
		if !s.changed("from") {
			c.from.now = c.consumer == ""
		}
	}
	return newCommand(p, cmd, []string{"[KEY...]"}, define, check, func(s *settings, args []string) error {
		keys, err := keysOf(args)
		switch {
		case err != nil:
			return &usageError{[]string{"KEY: " + err.Error()}}
		case len(keys)+len(c.prefixes) == 0:
			return &usageError{[]string{`a KEY or --prefix is missing; --prefix "" follows all keys`}}
		}
		return c.run(p, keys)
	})
}

// parseConsumer reads the name of a consumer.
func parseConsumer(text string) (string, error) { return text, wire.ValidateConsumer(text) }

// parseFrom reads where tail begins.
func parseFrom(text string) (from tailFrom, err error) {
	if text == "now" {
		return tailFrom{now: true}, nil
	}
	if from.seq, err = parseCount(0, math.MaxUint64)(text); err == nil {
		return from, nil
	}
	from.seq = 0
	if ago, ok := strings.CutPrefix(text, "-"); ok {
		var d time.Duration
		if d, err = parseDuration(ago); err == nil {
			from.sinceMs = max(1, time.Now().Add(-d).UnixMilli())
			return from, nil
		}
	} else if at, perr := time.Parse(time.RFC3339, text); perr == nil {
		from.sinceMs = max(1, at.UnixMilli())
		return from, nil
	}
	return from, fmt.Errorf("%q is not now, a sequence, a time such as 2026-01-31T12:00:00Z or a duration ago such as -10m", text)
}

// streams are what to follow.
func (c *tailConfig) streams(keys [][]byte) []client.Stream {
	var streams []client.Stream
	for _, k := range keys {
		streams = append(streams, client.Stream{Key: k, Start: c.from.seq, AtCursor: c.consumer != ""})
	}
	for _, k := range c.prefixes {
		streams = append(streams, client.Stream{Key: k, Start: c.from.seq, Prefix: true})
	}
	return streams
}

// run prints until it is interrupted, has printed enough, or fails.
func (c *tailConfig) run(p *process, keys [][]byte) error {
	api, err := c.client()
	if err != nil {
		return failf("%w", err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	warn := func(err error, wait time.Duration) {
		fmt.Fprintf(p.stderr, "annals tail: %v; trying again in %v\n", err, wait.Round(time.Millisecond))
	}
	var commits *committer
	if c.commit {
		commits = newCommitter(api, c.consumer, func(err error) { warn(err, commitInterval) })
	}
	f := api.Follow(ctx, client.FollowOptions{Consumer: c.consumer, FromNow: c.from.now, SinceMs: c.from.sinceMs, OnRetry: warn}, c.streams(keys)...)
	err = c.print(p, f, commits)
	if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		err = nil // this is how it ends
	}
	if commits != nil {
		err = errors.Join(err, commits.close())
	}
	if err != nil {
		return failf("%w", err)
	}
	return nil
}

// print writes records as they come. One counts as printed when it was handed to whoever reads.
func (c *tailConfig) print(p *process, f *client.Follower, commits *committer) error {
	out := bufio.NewWriterSize(p.stdout, outputBufferBytes)
	left := c.limit
	for r := range f.All() {
		err := c.printLine(out, &r)
		if err == nil {
			err = out.Flush() // somebody watches
		}
		if err != nil {
			return fmt.Errorf("write output: %w", err)
		}
		if commits != nil {
			commits.printed(r.Key, r.Next)
		}
		if left--; left == 0 {
			return nil
		}
	}
	return f.Err()
}

// printLine writes a record.
func (c *tailConfig) printLine(out *bufio.Writer, r *client.FollowedRecord) error {
	if !c.json {
		_, _ = out.WriteString(keyText(r.Key)) // its error stays
		_ = out.WriteByte('\t')
	}
	return printRecord(out, r.Key, scanned{r.Sequence, r.Timestamp, r.Value.Value}, c.json)
}
