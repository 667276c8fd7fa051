package main

import (
	"bufio"
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"math"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/spf13/cobra"

	"github.com/annalsdb/annals/client"
)

const scanLong = `Prints the records of one key in sequence order: their values, one a line, as they are. With --json one
object a line:

  {"sequence":17,"timestampMs":1712345678901,"key":"user-17","value":"..."}

With --follow it goes on with the records that come, until it is interrupted, and connects again when it loses the server.
A value that is not UTF-8 text is given in base64 instead, as "valueB64".

` + keyLong

const (
	// scanPageRecords is how many records one request asks for: the server's
	// largest page.
	scanPageRecords = 10_000
	// outputBufferBytes is the unit in which the output is written.
	outputBufferBytes = 64 << 10
)

type scanConfig struct {
	connection
	json     bool
	from, to uint64
	last     uint64
	limit    uint64
	follow   bool
}

// scanned is one record that a server returned.
type scanned struct {
	sequence    uint64
	timestampMs int64
	value       []byte
}

// pageRequest asks for the first records of key in [from, to), or for the last
// ones if last is above 0.
type pageRequest struct {
	key      []byte
	from, to uint64
	limit    uint64
	last     uint64
}

// pageFunc reads one page and returns where the next one starts.
type pageFunc func(context.Context, pageRequest) (records []scanned, next uint64, err error)

func newScan(p *process) *cobra.Command {
	var c scanConfig
	cmd := &cobra.Command{Use: "scan [flags] KEY", Short: "Print the records of one key", Long: scanLong}
	define := func(s *settings) {
		addConnectionFlags(s, &c.connection)
		s.flags.BoolVar(&c.json, "json", false, "print one JSON object a line instead of the bare values")
		addFlag(s, "from", "sequence", "0", &c.from, parseCount(0, math.MaxUint64), "start at this sequence")
		addFlag(s, "to", "sequence", "", &c.to, parseCount(0, math.MaxUint64), "stop before this sequence (default: none)")
		addFlag(s, "last", "count", "", &c.last, parseCount(1, scanPageRecords),
			"print only the newest records of the range, this many (at most 10,000), still the oldest of them first (default: all)")
		addFlag(s, "limit", "count", "", &c.limit, parseCount(1, math.MaxUint64), "print this many records at most (default: all)")
		s.flags.BoolVar(&c.follow, "follow", false, "then wait for further records and print them as they come")
	}
	check := func(s *settings) {
		if c.to == 0 && !s.changed("to") {
			c.to = math.MaxUint64
		}
		if c.from > c.to && len(s.faults) == 0 { // a value that is no number is its own fault
			s.fault("--from %d is above --to %d", c.from, c.to)
		}
		if c.follow && s.changed("to") {
			s.fault("--follow and --to exclude each other")
		}
		if c.last > 0 && c.limit > 0 {
			s.fault("--last and --limit exclude each other")
		}
	}
	return newCommand(p, cmd, []string{"KEY"}, define, check, func(_ *settings, args []string) error {
		key, err := parseKey(args[0])
		if err != nil {
			return &usageError{[]string{"KEY: " + err.Error()}}
		}
		api, err := c.client()
		if err != nil {
			return failf("%w", err)
		}
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
		defer stop()
		next, left, err := scanPages(ctx, p.stdout, newPageFunc(api), key, c)
		if err == nil && c.follow && left > 0 {
			err = follow(ctx, p, api, key, next, left, c)
		}
		if err != nil {
			return failf("%w", err)
		}
		return nil
	})
}

// scanPages prints page after page until one is empty: then everything that was
// readable when it was read is printed. It returns where to go on, and how many records
// may follow.
func scanPages(ctx context.Context, w io.Writer, read pageFunc, key []byte, c scanConfig) (next, left uint64, err error) {
	out := bufio.NewWriterSize(w, outputBufferBytes)
	left = math.MaxUint64
	if n := max(c.limit, c.last); n > 0 {
		left = n
	}
	next, last := c.from, c.last
	for left > 0 && next < c.to {
		request := pageRequest{key, next, c.to, min(left, scanPageRecords), last}
		records, after, err := read(ctx, request)
		if err != nil {
			_ = out.Flush()
			return next, left, fmt.Errorf("scan from sequence %d: %w", next, err)
		}
		for _, r := range records {
			if err := printRecord(out, key, r, c.json); err != nil {
				return next, left, fmt.Errorf("write output: %w", err)
			}
		}
		if next = after; len(records) == 0 {
			break
		}
		last, left = 0, left-min(left, uint64(len(records)))
	}
	if err := out.Flush(); err != nil {
		return next, left, fmt.Errorf("write output: %w", err)
	}
	if c.follow && c.last > 0 {
		left = math.MaxUint64 // only where to begin was asked for
	}
	return next, left, nil
}

// follow prints at most left records from a sequence on as they come, until it is
// interrupted.
func follow(ctx context.Context, p *process, api *client.Client, key []byte, from, left uint64, c scanConfig) error {
	out := bufio.NewWriterSize(p.stdout, outputBufferBytes)
	f := api.Follow(ctx, client.FollowOptions{OnRetry: func(err error, wait time.Duration) {
		fmt.Fprintf(p.stderr, "annals scan: %v; trying again in %v\n", err, wait.Round(time.Millisecond))
	}}, client.Stream{Key: key, Start: from})
	for r := range f.All() {
		err := printRecord(out, key, scanned{r.Sequence, r.Timestamp, r.Value.Value}, c.json)
		if err == nil {
			err = out.Flush() // somebody watches
		}
		if err != nil {
			return fmt.Errorf("write output: %w", err)
		}
		if left--; left == 0 {
			return nil
		}
	}
	if ctx.Err() != nil {
		return nil // this is how it ends
	}
	return f.Err()
}

// printRecord writes one line. A reader that goes away ends the process by
// SIGPIPE, without a word, as it does any filter.
func printRecord(out *bufio.Writer, key []byte, r scanned, json bool) error {
	line := r.value
	if json {
		line = appendJSON(nil, key, r)
	}
	if _, err := out.Write(line); err != nil {
		return err
	}
	return out.WriteByte('\n')
}

// appendJSON appends a record as a JSON object.
func appendJSON(b, key []byte, r scanned) []byte {
	b = append(b, `{"sequence":`...)
	b = strconv.AppendUint(b, r.sequence, 10)
	b = append(b, `,"timestampMs":`...)
	b = strconv.AppendInt(b, r.timestampMs, 10)
	b = appendJSONMember(b, "key", key)
	b = appendJSONMember(b, "value", r.value)
	return append(b, '}')
}

// appendJSONMember appends a member to an object that was begun: bytes that are no text in base64, under another name.
func appendJSONMember(b []byte, name string, content []byte) []byte {
	if b[len(b)-1] != '{' {
		b = append(b, ',')
	}
	if !utf8.Valid(content) {
		b = append(b, `"`+name+`B64":"`...)
		b = base64.StdEncoding.AppendEncode(b, content)
		return append(b, '"')
	}
	b = append(b, `"`+name+`":`...)
	quoted, err := jsontext.AppendQuote(b, content)
	if err != nil { // it refuses nothing but invalid UTF-8
		panic("quote " + name + ": " + err.Error())
	}
	return quoted
}
