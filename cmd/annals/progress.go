package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/dustin/go-humanize/english"
	"golang.org/x/sys/unix"
)

// How often a progress line is shown: rewritten in place on a terminal, a line
// of its own elsewhere.
const (
	terminalProgressEvery = 200 * time.Millisecond
	plainProgressEvery    = 5 * time.Second
)

// statusLine shows from time to time how far something has come: on a terminal with a bar where the whole is known, and plain lines
// elsewhere. It belongs to one goroutine.
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
	input   *inputPosition
	lines   uint64 // of the input, from its beginning
	records uint64 // sent by this process
	bytes   uint64
}

// inputPosition is how far an input was read. Reading and asking may happen at the same time.
type inputPosition struct {
	in   io.Reader
	size int64 // 0: it is not known
	read atomic.Int64
}

// newInputPosition counts what is read from in. Only a plain file has a size.
func newInputPosition(in io.Reader) *inputPosition {
	p := &inputPosition{in: in}
	if f, ok := in.(*os.File); ok {
		if info, err := f.Stat(); err == nil && info.Mode().IsRegular() {
			p.size = info.Size()
		}
	}
	return p
}

// Read implements io.Reader.
func (p *inputPosition) Read(b []byte) (int, error) {
	n, err := p.in.Read(b)
	p.read.Add(int64(n))
	return n, err
}

func newProgress(out io.Writer, now func() time.Time, input *inputPosition, lines uint64) *progress {
	return &progress{statusLine: newStatusLine(out, now), input: input, lines: lines}
}

// isTerminal reports whether w is a file that is a terminal.
func isTerminal(w io.Writer) bool {
	_, terminal := columnsOf(w)
	return terminal
}

// columnsOf returns how wide a terminal is, 0 if it does not say, and whether w is one.
func columnsOf(w io.Writer) (columns int, terminal bool) {
	f, ok := w.(*os.File)
	if !ok {
		return 0, false
	}
	size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return 0, false
	}
	return int(size.Col), true
}

// acknowledged counts a batch that ends with the given line.
func (p *progress) acknowledged(line uint64, records, bytes int) {
	p.lines = line
	p.records += uint64(records)
	p.bytes += uint64(bytes)
	if p.due() {
		p.show(p.input.read.Load(), p.input.size, fmt.Sprintf("%s acknowledged, %s", counted(p.lines, "line"), p.rate()))
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

// show writes a line that says done of total, of which 0 is unknown, and what the text says.
func (s *statusLine) show(done, total int64, text string) {
	if !s.terminal {
		fmt.Fprintln(s.out, text)
		return
	}
	if total > 0 {
		text = bar(done, total) + text
	}
	// A line that breaks could not be rewritten in place.
	if columns, _ := columnsOf(s.out); columns > 0 && len(text) >= columns {
		text = text[:columns-1]
	}
	fmt.Fprintf(s.out, "\r\x1b[K%s", text)
	s.dirty = true
}

// barCells is the length of a bar.
const barCells = 20

// bar draws which part of the total is done, which is above 0.
func bar(done, total int64) string {
	part := min(max(float64(done)/float64(total), 0), 1)
	full := int(part * barCells)
	return fmt.Sprintf("[%s%s] %3d%%  ", strings.Repeat("#", full), strings.Repeat(".", barCells-full), int(part*100))
}

// end leaves the terminal at the beginning of an empty line.
func (s *statusLine) end() {
	if s.dirty {
		fmt.Fprint(s.out, "\r\x1b[K")
		s.dirty = false
	}
}

// counted says how many there are of something, in digits alone: the number may be given to --skip.
func counted(n uint64, what string) string {
	return fmt.Sprintf("%d %s", n, english.PluralWord(int(n), what, ""))
}

func (p *progress) rate() string {
	elapsed := p.now().Sub(p.started)
	perSecond := float64(p.records) / max(elapsed.Seconds(), 1e-3)
	return fmt.Sprintf("%s (%s) in %v, %s records/s", counted(p.records, "record"), humanize.IBytes(p.bytes),
		elapsed.Round(time.Millisecond), humanize.Comma(int64(perSecond)))
}
