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

const inspectLong = `Shows what a log consists of, from its store alone: epochs and versions, its segments with their runs,
tables, records, bytes and age, what waits to be collected, and the totals that the store charges for.

It reads LOG and MANIFEST and lists the store, one request per 1,000 objects. It writes nothing and may run
beside a server.`

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
		store, err := c.store.open(ctx)
		if err != nil {
			return failf("%w", err)
		}
		in, err := engine.Inspect(ctx, store)
		if err != nil {
			return failf("%w", err)
		}
		if c.json {
			return printJSON(p.stdout, in)
		}
		return printInspection(p.stdout, in)
	})
}

// addStoreFlag adds --store to a command that works on the store itself.
func addStoreFlag(s *settings, target *storeURL) {
	addFlag(s, "store", "url", "file:./annals-data", target, parseStoreURL,
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
	clean := "open, or not closed cleanly"
	if in.Clean {
		clean = "closed cleanly"
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "store\t%s\n", in.Store)
	fmt.Fprintf(t, "log\t%s, format version %d\n", in.LogID, in.FormatVersion)
	fmt.Fprintf(t, "manifest\tversion %d, %s\n", in.ManifestVersion, clean)
	fmt.Fprintf(t, "epochs\twriter %d, compactor %d (beat %d)\n", in.WriterEpoch, in.CompactorEpoch, in.CompactorBeat)
	fmt.Fprintf(t, "sequences\tin runs below %d, none assigned from %d on\n", in.FlushedEnd, in.SeqLimit)
	fmt.Fprintf(t, "replay\tfrom WAL object %d of epoch %d\n", in.Position.ID, in.Position.Epoch)
	fmt.Fprintf(t, "obsolete\t%d objects, %s\n", in.Obsolete.Objects, humanize.IBytes(in.Obsolete.Bytes))
	fmt.Fprintf(t, "pins\t%d\n", in.Pins)
	if err := t.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(w)
	t = tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "segment\tsequences\truns\ttables\trecords\tbytes\tstored\tstate\t")
	for _, s := range in.Segments {
		id := fmt.Sprint(s.ID)
		if s.LastID > s.ID {
			id = fmt.Sprintf("%d-%d", s.ID, s.LastID)
		}
		state := "active"
		if s.Sealed {
			state = "sealed " + time.Duration(s.AgeSeconds*float64(time.Second)).Round(time.Second).String() + " ago"
		}
		fmt.Fprintf(t, "%s\t%d..%d\t%d\t%d\t%s\t%s\t%s\t%s\t\n", id, s.Start, s.End, s.Runs, s.Tables,
			humanize.Comma(int64(s.Records)), humanize.IBytes(s.Bytes), humanize.IBytes(s.StoredBytes), state)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	o := in.Totals
	_, err := fmt.Fprintf(w, "\n%s objects, %s: %d tables (%s), %d WAL objects (%s), %d fences, %d others; %d tables (%s) without a name in the manifest\n",
		humanize.Comma(int64(o.Objects)), humanize.IBytes(uint64(o.Bytes)), o.Tables, humanize.IBytes(uint64(o.TableBytes)),
		o.WALObjects, humanize.IBytes(uint64(o.WALBytes)), o.Fences, o.Other, o.Unnamed, humanize.IBytes(uint64(o.UnnamedBytes)))
	return err
}
