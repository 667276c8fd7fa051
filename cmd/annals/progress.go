package main

import (
	"fmt"
	"io"
	"os"
	"time"

	"github.com/dustin/go-humanize"
	"golang.org/x/sys/unix"
)

// How often a progress line is shown: rewritten in place on a terminal, a line
// of its own elsewhere.
const (
	terminalProgressEvery = 200 * time.Millisecond
	plainProgressEvery    = 5 * time.Second
)

// statusLine shows from time to time how far something has come. It belongs to one goroutine.
type statusLine struct {
	out      io.Writer
	terminal bool
	now      func() time.Time
	started  time.Time
	shown    time.Time
	dirty    bool // the cursor stands behind a progress line
}

func newStatusLine(out io.Writer, now func() time.Time) statusLine {
	at := now()
	return statusLine{out: out, terminal: isTerminal(out), now: now, started: at, shown: at}
}

// progress counts what was acknowledged and shows it from time to time. It
// belongs to one goroutine.
type progress struct {
	statusLine
	lines   uint64 // of the input, from its beginning
	records uint64 // sent by this process
	bytes   uint64
}

func newProgress(out io.Writer, now func() time.Time, lines uint64) *progress {
	return &progress{statusLine: newStatusLine(out, now), lines: lines}
}

// isTerminal reports whether w is a file that is a terminal.
func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	_, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	return err == nil
}

// acknowledged counts a batch that ends with the given line.
func (p *progress) acknowledged(line uint64, records, bytes int) {
	p.lines = line
	p.records += uint64(records)
	p.bytes += uint64(bytes)
	if p.due() {
		p.show(fmt.Sprintf("%d lines acknowledged, %s", p.lines, p.rate()))
	}
}

// due reports whether it is time for a line, which is then shown.
func (s *statusLine) due() bool {
	every := plainProgressEvery
	if s.terminal {
		every = terminalProgressEvery
	}
	now := s.now()
	if now.Sub(s.shown) < every {
		return false
	}
	s.shown = now
	return true
}

func (s *statusLine) show(text string) {
	if s.terminal {
		fmt.Fprintf(s.out, "\r\x1b[K%s", text)
		s.dirty = true
		return
	}
	fmt.Fprintln(s.out, text)
}

// end leaves the terminal at the beginning of an empty line.
func (s *statusLine) end() {
	if s.dirty {
		fmt.Fprint(s.out, "\r\x1b[K")
		s.dirty = false
	}
}

func (p *progress) rate() string {
	elapsed := p.now().Sub(p.started)
	perSecond := float64(p.records) / max(elapsed.Seconds(), 1e-3)
	return fmt.Sprintf("%d records (%s) in %v, %s records/s", p.records, humanize.IBytes(p.bytes),
		elapsed.Round(time.Millisecond), humanize.Comma(int64(perSecond)))
}
