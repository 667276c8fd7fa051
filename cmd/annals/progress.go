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

// progress counts what was acknowledged and shows it from time to time. It
// belongs to one goroutine.
type progress struct {
	out      io.Writer
	terminal bool
	now      func() time.Time
	started  time.Time
	shown    time.Time
	dirty    bool // the cursor stands behind a progress line

	lines   uint64 // of the input, from its beginning
	records uint64 // sent by this process
	bytes   uint64
}

func newProgress(out io.Writer, now func() time.Time, lines uint64) *progress {
	p := &progress{out: out, terminal: isTerminal(out), now: now, lines: lines}
	p.started = now()
	p.shown = p.started
	return p
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
	every := plainProgressEvery
	if p.terminal {
		every = terminalProgressEvery
	}
	if now := p.now(); now.Sub(p.shown) >= every {
		p.shown = now
		p.show(fmt.Sprintf("%d lines acknowledged, %s", p.lines, p.rate()))
	}
}

func (p *progress) show(text string) {
	if p.terminal {
		fmt.Fprintf(p.out, "\r\x1b[K%s", text)
		p.dirty = true
		return
	}
	fmt.Fprintln(p.out, text)
}

// end leaves the terminal at the beginning of an empty line.
func (p *progress) end() {
	if p.dirty {
		fmt.Fprint(p.out, "\r\x1b[K")
		p.dirty = false
	}
}

func (p *progress) rate() string {
	elapsed := p.now().Sub(p.started)
	perSecond := float64(p.records) / max(elapsed.Seconds(), 1e-3)
	return fmt.Sprintf("%d records (%s) in %v, %s records/s", p.records, humanize.IBytes(p.bytes),
		elapsed.Round(time.Millisecond), humanize.Comma(int64(perSecond)))
}
