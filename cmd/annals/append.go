package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/signal"
	"syscall"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/annalsdb/annals/client"
	"github.com/annalsdb/annals/internal/base"
	"github.com/annalsdb/annals/wire"
)

const appendLong = `Loads newline-delimited JSON into the log, one record a line:

  {"key":"user-17","value":"a string is stored as it is"}
  {"key":"user-17","value":{"anything":"else is stored as its JSON text, without white space"}}

What is no text may be given in base64, as "keyB64" or "valueB64". Other members are ignored, blank lines too: what annals
scan --json prints can be loaded. Lines are at most 32MiB long; gzipped input is recognised.
Batches are sent one after the other and acknowledged when they are durable. When it stops early it says
how many lines, from the beginning of the input, were acknowledged; --skip goes on from there. With --json the result is
one object on standard output, however it ended:

  {"outcome":"appended","linesAcknowledged":5,"records":5,"bytes":812,"seconds":0.031}

outcome is not_appended, or unknown, where it stopped early: of the lines behind the acknowledged ones. error says why;
nextProducerSeq is the number to go on with.

With --producer and --producer-seq the appends are numbered, and one whose outcome is unknown is sent again under its
number, which the log knows: nothing is appended twice. The same command may be run again, and --skip and
--producer-seq go on, as long as the lines and both --batch flags are the same. The log remembers the last 64 appends of a
producer. Give each load a name of its own, or go on with the number behind the last one.

Exit statuses: 0 all lines acknowledged; 1 stopped, and every line behind the acknowledged ones was not
appended; 2 bad flags; 3 stopped, and it is unknown whether the last batch was appended.`

type appendConfig struct {
	file         string
	connection   connection
	skip         uint64
	batchRecords uint64
	batchBytes   int64
	producer     string // empty: the appends are not numbered
	producerSeq  uint64
	expectNext   *uint64
	json         io.Writer // where the result goes as JSON; nil: nowhere
}

func newAppend(p *process) *cobra.Command {
	var c appendConfig
	var json bool
	cmd := &cobra.Command{Use: "append [flags]", Short: "Load newline-delimited JSON through a server", Long: appendLong}
	define := func(s *settings) {
		addFlag(s, "file", "path", "-", &c.file, parseText, "what to load; - is standard input")
		addConnectionFlags(s, &c.connection)
		s.flags.BoolVar(&json, "json", false, "print one JSON object at the end")
		addFlag(s, "skip", "lines", "0", &c.skip, parseCount(0, math.MaxUint64),
			"lines at the beginning of the input that are passed over, because an earlier load had them acknowledged")
		addFlag(s, "batch-records", "count", "1000", &c.batchRecords, parseCount(1, 1_000_000),
			"records of one append at most; each append waits for the store once")
		addFlag(s, "batch-bytes", "size", "1MiB", &c.batchBytes, parseSize[int64],
			"keys and values of one append at most, unless a single record is larger; it must stay well below the server's --body-limit")
		addFlag(s, "producer", "name", "", &c.producer, parseProducer,
			"name of the load in the log, 1 to 128 bytes, which makes its appends idempotent; needs --producer-seq (default: none)")
		addFlag(s, "producer-seq", "number", "", &c.producerSeq, parseCount(0, math.MaxUint64),
			"number of the first append; each further one is numbered one higher (default: none)")
		addFlag(s, "expect-next", "sequence", "", &c.expectNext, parseExpected,
			"append only if no key of the input has a record at or above this sequence; the whole input must fit one append (default: append always)")
	}
	check := func(s *settings) {
		if json {
			c.json = p.stdout
		}
		if s.changed("producer") != s.changed("producer-seq") {
			s.fault("--producer and --producer-seq need each other")
		}
	}
	return newCommand(p, cmd, nil, define, check, func(*settings, []string) error {
		return load(p, c)
	})
}

// parseProducer reads the name of a producer.
func parseProducer(text string) (string, error) {
	if len(text) == 0 || len(text) > wire.MaxProducerBytes || !utf8.ValidString(text) {
		return "", fmt.Errorf("a producer's name has 1 to %d bytes of UTF-8", wire.MaxProducerBytes)
	}
	return text, nil
}

func parseExpected(text string) (*uint64, error) {
	n, err := parseCount(0, math.MaxUint64)(text)
	return &n, err
}

func load(p *process, c appendConfig) error {
	in, name := p.stdin, "standard input"
	if c.file != "-" {
		f, err := os.Open(c.file)
		if err != nil {
			return c.notBegun(err)
		}
		defer f.Close()
		in, name = f, c.file
	}
	out, err := newOutlet(c)
	if err != nil {
		return c.notBegun(err)
	}
	// The first signal ends the load behind the batch under way, the second at once.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop)
	return loadInput(ctx, p.stderr, in, name, out, c)
}

func loadInput(ctx context.Context, out io.Writer, in io.Reader, name string, to outlet, c appendConfig) error {
	position := newInputPosition(in)
	env := base.SystemEnv()
	l := &loader{
		outlet: to, env: env, progress: newProgress(out, env.Now, position, c.skip),
		batchRecords: c.batchRecords, batchBytes: c.batchBytes, single: c.expectNext != nil,
	}
	err := l.open(ctx, position, name, c.skip)
	if err == nil {
		err = l.run(ctx)
	}
	l.progress.end()
	if c.json != nil {
		if perr := printJSONLine(c.json, l.result(err)); perr != nil && err == nil {
			return failf("write output: %w", perr)
		}
		return err
	}
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "%s acknowledged: %s\n", counted(l.progress.lines, "line"), l.progress.rate())
	if to.number != nil {
		fmt.Fprintf(out, "the producer's next number is %d\n", to.number())
	}
	return nil
}

// notBegun is the end of a load that could not begin.
func (c *appendConfig) notBegun(err error) error {
	if c.json != nil {
		r := loadResult{Outcome: outcomeNotAppended, Lines: c.skip, Error: err.Error()}
		if c.producer != "" {
			r.NextProducerSeq = &c.producerSeq
		}
		_ = printJSONLine(c.json, r) // the status says that it failed
	}
	return failf("%w", err)
}

// loadResult is how a load ended, for --json.
type loadResult struct {
	Outcome string  `json:"outcome"` // of the lines behind the acknowledged ones
	Lines   uint64  `json:"linesAcknowledged"`
	Records uint64  `json:"records"` // appended by this process
	Bytes   uint64  `json:"bytes"`   // of their keys and values
	Seconds float64 `json:"seconds"`
	// NextProducerSeq is the number to go on with; nil without --producer.
	NextProducerSeq *uint64 `json:"nextProducerSeq,omitzero"`
	Error           string  `json:"error,omitzero"`
}

// Outcomes of a load. The last two are the HTTP API's words.
const (
	outcomeAppended    = "appended" // there are no further lines
	outcomeNotAppended = client.OutcomeNotAppended
	outcomeUnknown     = client.OutcomeUnknown
)

// result says how the load ended, with the error of run.
func (l *loader) result(err error) loadResult {
	r := loadResult{
		Outcome: outcomeAppended, Lines: l.progress.lines, Records: l.progress.records, Bytes: l.progress.bytes,
		Seconds: l.env.Now().Sub(l.progress.started).Seconds(),
	}
	if l.number != nil {
		next := l.number()
		r.NextProducerSeq = &next
	}
	if err != nil {
		r.Error, r.Outcome = err.Error(), outcomeNotAppended
		var exit *exitError
		if errors.As(err, &exit) && exit.status == exitUnknown {
			r.Outcome = outcomeUnknown
		}
	}
	return r
}
