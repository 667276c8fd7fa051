package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/dustin/go-humanize/english"
	"github.com/spf13/cobra"

	"github.com/annalsdb/annals/engine"
)

const checkLong = `Reads a whole log and verifies every checksum, order, count, interval and reference in it. It says what is damaged, and
which segments, sequences and keys that affects; docs/REPAIR.md says what to do about it. It also sorts what else is in the
store: orphans of jobs that died, what the collector will delete, what annals did not write.

It changes nothing, needs permission to read and to list, and may run beside a server: what is gone because the log went
on is no damage. Interrupted (SIGINT, SIGTERM) it says what it found until then.

It reads about 64 MiB ahead, so that it is as fast as the store and one processor are. The environment variable
GOMEMLIMIT replaces 400 MiB as the figure near which Go's garbage collector works harder to keep memory.

Exit statuses: 0 the log is sound; 1 it is damaged; 2 the check could not look (no log there, no permission, store down,
interrupted, bad flags) and found no damage before.`

// Exit statuses of check. Scripts rely on them: do not renumber.
const (
	exitDamaged = 1
	exitNoLook  = 2
)

// checkMemory is the process's soft limit: what was looked at is garbage at once.
const checkMemory = 400 << 20

type checkConfig struct {
	store    storeURL
	json     bool
	progress bool
	lostLog  string
	now      func() time.Time
}

func newCheck(p *process) *cobra.Command {
	c := checkConfig{now: time.Now}
	cmd := &cobra.Command{Use: "check [flags]", Short: "Verify a whole log", Long: checkLong}
	define := func(s *settings) {
		addStoreFlag(s, &c.store)
		s.flags.BoolVar(&c.json, "json", false, "print one JSON object: docs/REPAIR.md describes it")
		s.flags.BoolVar(&c.progress, "progress", true, "show on standard error how far it has come: a plain line every 5 s, or on a terminal a bar; --progress=false shows nothing")
		addFlag(s, "lost-log", "path", "", &c.lostLog, parseText,
			"instead of checking, make the lost object LOG anew from MANIFEST and write it to this new file, to be put in its place")
	}
	return newCommand(p, cmd, nil, define, func(*settings) {}, func(*settings, []string) error {
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
		defer stop()
		if os.Getenv("GOMEMLIMIT") == "" {
			defer debug.SetMemoryLimit(debug.SetMemoryLimit(checkMemory))
		}
		if c.lostLog != "" {
			return writeLostLog(ctx, c)
		}
		return runCheck(ctx, p, c)
	})
}

// errInterrupted ends a command that a signal stopped before it was done.
var errInterrupted = errors.New("interrupted")

// runCheck checks and prints the report. The error says how the process ends.
func runCheck(ctx context.Context, p *process, c checkConfig) error {
	report, err := checkStore(ctx, p, c)
	if err != nil && ctx.Err() != nil {
		err = errInterrupted
		report.Stopped = err.Error()
	}
	print := printReport
	if c.json {
		print = func(w io.Writer, r *engine.CheckReport) error { return printJSON(w, r) }
	}
	if report.Store != "" || c.json {
		if perr := print(p.stdout, report); perr != nil {
			return &exitError{exitNoLook, perr}
		}
	}
	switch {
	case report.DamageFound > 0:
		return &exitError{exitDamaged, fmt.Errorf("the log is damaged in %s: %w", english.Plural(report.DamageFound, "place", ""), report.Damage[0])}
	case err != nil:
		return &exitError{exitNoLook, err}
	}
	return nil
}

// writeLostLog writes LOG, made anew, to a file. The store is only read: to put the file there is the operator's to do.
func writeLostLog(ctx context.Context, c checkConfig) error {
	store, err := c.store.openToRead(ctx)
	if err != nil {
		return &exitError{exitNoLook, err}
	}
	body, err := engine.LostLog(ctx, store)
	if err != nil {
		return &exitError{exitNoLook, err}
	}
	f, err := os.OpenFile(c.lostLog, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err == nil {
		_, err = f.Write(body)
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		return &exitError{exitNoLook, fmt.Errorf("write LOG: %w", err)}
	}
	return nil
}

// checkStore returns a report in any case; one without a store is of nothing.
func checkStore(ctx context.Context, p *process, c checkConfig) (*engine.CheckReport, error) {
	store, err := c.store.openToRead(ctx)
	if err != nil {
		return &engine.CheckReport{Damage: []engine.Damage{}, Stopped: err.Error()}, err
	}
	line := checkProgress{newStatusLine(p.stderr, c.now)}
	defer line.end()
	var o engine.CheckOptions
	if c.progress {
		o.Progress = line.looked
	}
	return engine.Check(ctx, store, o)
}

// checkProgress shows how far a check has come.
type checkProgress struct{ statusLine }

func (l *checkProgress) looked(p engine.CheckProgress) {
	if l.due() {
		l.show(p.Bytes, max(p.Total, p.Bytes), progressText(p, l.now().Sub(l.started)))
	}
}

// progressText is the line: what was done, how fast, and how long the rest takes, as far as that is known.
func progressText(p engine.CheckProgress, elapsed time.Duration) string {
	perSecond := float64(p.Bytes) / max(elapsed.Seconds(), 1e-3)
	text := fmt.Sprintf("%s objects, %s of %s, %s/s", humanize.Comma(int64(p.Objects)), humanize.IBytes(uint64(p.Bytes)),
		humanize.IBytes(uint64(max(p.Total, p.Bytes))), humanize.IBytes(uint64(perSecond)))
	if left := p.Total - p.Bytes; left > 0 && perSecond > 0 {
		text += fmt.Sprintf(", %v left", time.Duration(float64(left)/perSecond*float64(time.Second)).Round(time.Second))
	}
	return text
}

// maxPrintedNames is how many names of objects a report for people has of each sort. With --json there are more.
const maxPrintedNames = 5

func printReport(w io.Writer, r *engine.CheckReport) error {
	p := printer{w: w}
	p.table(0, func(t io.Writer) {
		fmt.Fprintf(t, "store\t%s\n", r.Store)
		fmt.Fprintf(t, "manifest\tversion %d, writer epoch %d, compactor epoch %d\n", r.ManifestVersion, r.Epoch, r.CompactorEpoch)
		fmt.Fprintf(t, "tables\t%s with %s records, in %d runs of %d segments, %d groups of them\n", humanize.Comma(int64(r.Tables)),
			humanize.Comma(int64(r.TableRecords)), r.Runs, r.Segments, r.Groups)
		fmt.Fprintf(t, "WAL\t%d objects with %s records that are in no table\n", r.WALObjects, humanize.Comma(int64(r.WALRecords)))
		fmt.Fprintf(t, "others\t%d state objects, %d pins\n", r.StateObjects, r.Pins)
		fmt.Fprintf(t, "read\t%s\n", humanize.IBytes(uint64(r.Bytes)))
		for _, o := range []struct {
			what    string
			objects engine.CheckedObjects
		}{
			{"orphans", r.Orphans}, {"uncommitted", r.Uncommitted}, {"to be collected", r.Waiting}, {"not of annals", r.Foreign},
		} {
			fmt.Fprintf(t, "%s\t%s objects, %s\n", o.what, humanize.Comma(int64(o.objects.Objects)), humanize.IBytes(uint64(o.objects.Bytes)))
		}
	})
	p.names("orphan", r.Orphans)
	p.names("not of annals", r.Foreign)
	for _, d := range r.Damage {
		p.printf("%s: %s\n", d.Kind, d.Message)
		if d.Affected != nil {
			p.printf("  affects %s\n", d.Affected)
		}
	}
	if r.DamageLeftOut > 0 {
		p.printf("and %d more\n", r.DamageLeftOut)
	}
	switch {
	case r.DamageFound > 0:
		p.printf("DAMAGED: %d\n", r.DamageFound)
	case r.Sound:
		p.printf("sound\n")
	default:
		p.printf("not known: %s\n", r.Stopped)
	}
	return p.err
}

// names writes the first of some objects.
func (p *printer) names(what string, o engine.CheckedObjects) {
	for i, name := range o.Names {
		if i == maxPrintedNames {
			p.printf("%s: and %d more\n", what, o.Objects-i)
			return
		}
		p.printf("%s: %s\n", what, name)
	}
}
