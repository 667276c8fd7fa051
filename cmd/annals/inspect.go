package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/spf13/cobra"

	"github.com/annalsdb/annals/engine"
)

const inspectLong = `Shows what a log consists of, from its store alone: epochs and versions, its groups and segments with their
runs, tables, records, bytes and age, what waits to be collected, and the totals that the store charges for.

It reads LOG, MANIFEST and the indexes of groups, and lists the store, one request per 1,000 objects. It changes
nothing of the log and may run beside a server. It shows damage that it met, live objects that are not there or not
of their size too, and its exit status is then 1; it does not look into tables.`

type inspectConfig struct {
	store storeURL
	json  bool
}

func newInspect(p *process) *cobra.Command {
	var c inspectConfig
	cmd := &cobra.Command{Use: "inspect [flags]", Short: "Show what a log consists of", Long: inspectLong}
	define := func(s *settings) {
		addStoreFlag(s, &c.store)
		s.flags.BoolVar(&c.json, "json", false, "print one JSON object")
	}
	return newCommand(p, cmd, nil, define, func(*settings) {}, func(*settings, []string) error {
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
		defer stop()
		store, err := c.store.openToRead(ctx)
		if err != nil {
			return failf("%w", err)
		}
		in, err := engine.Inspect(ctx, store)
		if err != nil {
			return failf("%w", err)
		}
		if c.json {
			err = printJSON(p.stdout, in)
		} else {
			err = printInspection(p.stdout, in)
		}
		if err == nil && len(in.Damage) > 0 {
			err = failf("the log is damaged: %s", in.Damage[0])
		}
		return err
	})
}

// addStoreFlag adds --store to a command that works on the store itself.
func addStoreFlag(s *settings, target *storeURL) {
	addFlag(s, "store", "url", "file:./annals-data", target, parseSharedStoreURL,
		"where the log is: file:PATH or s3://BUCKET/PREFIX?endpoint=URL&region=R&path_style=true")
	s.withVariable("store")
}

func printJSON(w io.Writer, v any) error {
	if err := json.MarshalWrite(w, v, jsontext.WithIndent("  ")); err != nil {
		return failf("write: %w", err)
	}
	_, err := fmt.Fprintln(w)
	return err
}

func printInspection(w io.Writer, in *engine.Inspection) error {
	p := printer{w: w}
	p.head(in)
	p.groups(in.Groups)
	p.segments(in.Segments)
	p.totals(&in.Totals)
	for _, d := range in.Damage {
		p.printf("damage: %s\n", d)
	}
	return p.err
}

// printer writes an inspection for people. It remembers the first error.
type printer struct {
	w   io.Writer
	err error
}

func (p *printer) printf(format string, args ...any) {
	if p.err == nil {
		_, p.err = fmt.Fprintf(p.w, format, args...)
	}
}

// table writes what f prints, aligned at tabs, and an empty line.
func (p *printer) table(flags uint, f func(t io.Writer)) {
	if p.err != nil {
		return
	}
	t := tabwriter.NewWriter(p.w, 0, 0, 2, ' ', flags)
	f(t)
	p.err = t.Flush()
	p.printf("\n")
}

func (p *printer) head(in *engine.Inspection) {
	clean := "open, or not closed cleanly"
	if in.Clean {
		clean = "closed cleanly"
	}
	p.table(0, func(t io.Writer) {
		fmt.Fprintf(t, "store\t%s\n", in.Store)
		fmt.Fprintf(t, "log\t%s, format version %d\n", in.LogID, in.FormatVersion)
		fmt.Fprintf(t, "manifest\tversion %d, %s\n", in.ManifestVersion, clean)
		fmt.Fprintf(t, "epochs\twriter %d, compactor %d (beat %d)\n", in.WriterEpoch, in.CompactorEpoch, in.CompactorBeat)
		fmt.Fprintf(t, "sequences\tin runs below %d, none assigned from %d on\n", in.FlushedEnd, in.SeqLimit)
		fmt.Fprintf(t, "replay\tfrom WAL object %d of epoch %d\n", in.Position.ID, in.Position.Epoch)
		fmt.Fprintf(t, "obsolete\t%d objects, %s\n", in.Obsolete.Objects, humanize.IBytes(in.Obsolete.Bytes))
		fmt.Fprintf(t, "pins\t%d\n", in.Pins)
		if in.State.Base != "" {
			fmt.Fprintf(t, "cursors and producers\t%s, changes %s\n", humanize.IBytes(in.State.BaseBytes), humanize.IBytes(in.State.ChangesBytes))
		}
	})
}

func (p *printer) groups(groups []engine.InspectedGroup) {
	if len(groups) == 0 {
		return
	}
	p.table(tabwriter.AlignRight, func(t io.Writer) {
		fmt.Fprintln(t, "group of\tsegments\tsequences\ttables\trecords\tkeys\tbytes\tstored\tindex\tlookup\tstate\t")
		for _, g := range groups {
			fmt.Fprintf(t, "%s\t%d\t%d..%d\t%d\t%s\t%s\t%s\t%s\t%s\t%s\tsealed %s to %s ago\t\n", idRange(g.FirstSegment, g.LastSegment), g.Segments,
				g.Start, g.End, g.Tables, humanize.Comma(int64(g.Records)), humanize.Comma(int64(g.Keys)), humanize.IBytes(g.Bytes),
				humanize.IBytes(g.StoredBytes), humanize.IBytes(g.IndexBytes), humanize.IBytes(uint64(g.ShardBytes)), age(g.OldestAge), age(g.AgeSeconds))
		}
	})
}

func (p *printer) segments(segments []engine.InspectedSegment) {
	p.table(tabwriter.AlignRight, func(t io.Writer) {
		fmt.Fprintln(t, "segment\tsequences\truns\ttables\trecords\tbytes\tstored\tstate\t")
		for _, s := range segments {
			state := "active"
			if s.Sealed {
				state = "sealed " + age(s.AgeSeconds) + " ago"
			}
			if s.Group != "" {
				state += ", in a group"
			}
			fmt.Fprintf(t, "%s\t%d..%d\t%d\t%d\t%s\t%s\t%s\t%s\t\n", idRange(s.ID, s.LastID), s.Start, s.End, s.Runs, s.Tables,
				humanize.Comma(int64(s.Records)), humanize.IBytes(s.Bytes), humanize.IBytes(s.StoredBytes), state)
		}
	})
}

// totals writes what the store charges for.
func (p *printer) totals(o *engine.InspectedTotals) {
	p.table(tabwriter.AlignRight, func(t io.Writer) {
		fmt.Fprintln(t, "objects\tnumber\tbytes\t")
		for _, line := range []struct {
			name  string
			n     int
			bytes int64
		}{
			{"tables", o.Tables, o.TableBytes}, {"indexes", o.Indexes, o.IndexBytes}, {"WAL objects", o.WALObjects, o.WALBytes},
			{"fences", o.Fences, o.FenceBytes}, {"states", o.States, o.StateBytes}, {"pins", o.Pinned, o.PinBytes},
			{"others", o.Other, o.OtherBytes}, {"all", o.Objects, o.Bytes}, {"of these, not named by the log", o.Unnamed, o.UnnamedBytes},
		} {
			fmt.Fprintf(t, "%s\t%s\t%s\t\n", line.name, humanize.Comma(int64(line.n)), humanize.IBytes(uint64(line.bytes)))
		}
	})
	p.printf("%s are live: space amplification %.2f\n", humanize.IBytes(uint64(o.LiveBytes)), o.SpaceAmplification)
}

// idRange formats the ids of segments from first to last.
func idRange(first, last uint32) string {
	if last > first {
		return fmt.Sprintf("%d-%d", first, last)
	}
	return fmt.Sprint(first)
}

func age(seconds float64) string {
	return time.Duration(seconds * float64(time.Second)).Round(time.Second).String()
}
