package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/go-json-experiment/json"
	"github.com/spf13/cobra"

	"github.com/annalsdb/annals/client"
)

const segmentsLong = `Prints the segments of the log, oldest first: the windows of its sequences in which records are dropped when they are old.
With --json one object a line; the active segment has no endSeq, and startTimeMs is 0 while it has no record:

  {"id":1,"lastId":1,"startSeq":0,"endSeq":5000,"startTimeMs":1712345678901,"sealed":true,"records":5000,"bytes":81920,"runs":1}

annals inspect shows more of them, from the store itself.`

// segmentsPage is how many segments one request asks for: the server's largest page.
const segmentsPage = 10_000

type segmentsConfig struct {
	connection
	seqRange
	json bool
}

func newSegments(p *process) *cobra.Command {
	var c segmentsConfig
	cmd := &cobra.Command{Use: "segments [flags]", Short: "Print the segments of the log", Long: segmentsLong}
	define := func(s *settings) {
		s.flags.BoolVar(&c.json, "json", false, "print one JSON object a line")
		c.seqRange.addFlags(s, "only segments with this sequence or later ones", "only segments that begin before this sequence")
	}
	check := func(s *settings, _ []string) {
		c.seqRange.check(s)
	}
	return remoteCommand(p, &c.connection, cmd, nil, define, check,
		func(ctx context.Context, api *client.Client, out *bufio.Writer, _ []string) error {
			print := printSegmentsJSON
			if !c.json {
				table := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
				defer table.Flush() // what fails is reported when out is flushed
				heading := "segment\tsequences\tbegins\trecords\tbytes\truns\tstate\t\n"
				print = func(_ io.Writer, segments []client.Segment) error {
					fmt.Fprint(table, heading) // once there is an answer
					heading = ""
					return printSegments(table, segments)
				}
			}
			for o := (client.SegmentsOptions{Start: c.from, End: c.to, Limit: segmentsPage}); ; {
				ctx, cancel := context.WithTimeout(ctx, requestTimeout)
				page, err := api.Segments(ctx, o)
				cancel()
				if err != nil {
					return err
				}
				if err := print(out, page); err != nil {
					return err
				}
				if len(page) < segmentsPage {
					return nil
				}
				o.After = page[len(page)-1].LastID
			}
		})
}

// printSegments writes lines of the table for people.
func printSegments(table io.Writer, segments []client.Segment) error {
	for _, s := range segments {
		begins, end, state := "-", "", "active"
		if s.StartMs != 0 {
			begins = time.UnixMilli(s.StartMs).UTC().Format(time.RFC3339)
		}
		if s.End != 0 {
			end = fmt.Sprint(s.End)
		}
		if s.Sealed {
			state = "sealed"
		}
		_, err := fmt.Fprintf(table, "%s\t%d..%s\t%s\t%s\t%s\t%d\t%s\t\n", idRange(s.ID, s.LastID), s.Start, end, begins,
			humanize.Comma(int64(s.Records)), humanize.IBytes(s.Bytes), s.Runs, state)
		if err != nil {
			return err
		}
	}
	return nil
}

// segmentLine is a segment in JSON, named as in the HTTP API.
type segmentLine struct {
	ID          uint32  `json:"id"`
	LastID      uint32  `json:"lastId"`
	StartSeq    uint64  `json:"startSeq"`
	EndSeq      *uint64 `json:"endSeq,omitzero"`
	StartTimeMs int64   `json:"startTimeMs"`
	Sealed      bool    `json:"sealed"`
	Records     uint64  `json:"records"`
	Bytes       uint64  `json:"bytes"`
	Runs        uint32  `json:"runs"`
}

func printSegmentsJSON(out io.Writer, segments []client.Segment) error {
	for _, s := range segments {
		line := segmentLine{s.ID, s.LastID, s.Start, nil, s.StartMs, s.Sealed, s.Records, s.Bytes, s.Runs}
		if s.End != 0 {
			line.EndSeq = &s.End
		}
		if err := printJSONLine(out, line); err != nil {
			return err
		}
	}
	return nil
}

// printJSONLine writes a value as JSON on one line.
func printJSONLine(w io.Writer, v any) error {
	line, err := json.Marshal(v)
	if err != nil {
		return err
	}
	_, err = w.Write(append(line, '\n'))
	return err
}
