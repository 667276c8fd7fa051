package bench

import (
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/annalsdb/annals/objstore/metered"
)

// plainEvery is how often the live line is written where it is not rewritten in place.
const plainEvery = 5 * time.Second

// liveLine says how a run goes.
type liveLine struct {
	out      io.Writer
	terminal bool

	mu    sync.Mutex
	shown time.Time
	dirty bool // the cursor stands behind a line
}

// showNowAndThen writes a line unless one was written a moment ago.
func (l *liveLine) showNowAndThen(format string, args ...any) {
	if l.out == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	every := plainEvery - tickEvery/2 // ticks come a little early or late
	if l.terminal {
		every = tickEvery / 2
	}
	if time.Since(l.shown) < every {
		return
	}
	l.shown = time.Now()
	text := fmt.Sprintf(format, args...)
	if l.terminal {
		fmt.Fprintf(l.out, "\r\x1b[K\x1b[?7l%s\x1b[?7h", text) // what a narrow terminal cannot show is cut off: it must stay one line
		l.dirty = true
		return
	}
	fmt.Fprintln(l.out, text)
}

// end leaves a terminal at the beginning of an empty line.
func (l *liveLine) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.dirty {
		fmt.Fprint(l.out, "\r\x1b[K")
		l.dirty = false
	}
}

// tick shows an interval.
func (l *liveLine) tick(r *Run, at time.Duration, seconds float64, measured bool, i *Interval, u usage) {
	if l.out == nil || i == nil || seconds <= 0 {
		return
	}
	phase := ""
	if !measured {
		phase = " warm-up"
	}
	text := fmt.Sprintf("%4.0fs%s  %s ops/s", at.Seconds(), phase, formatNumber(float64(i.Operations)/seconds))
	if i.Records > 0 {
		text += fmt.Sprintf("  %.0f records/s", float64(i.Records)/seconds)
	}
	if i.Bytes > 0 {
		text += fmt.Sprintf("  %.1f MB/s", float64(i.Bytes)/seconds/1e6)
	}
	if i.Operations > 0 {
		text += fmt.Sprintf("  p50 %s  p99 %s", formatMicros(i.P50), formatMicros(i.P99))
	}
	if i.Errors > 0 {
		text += fmt.Sprintf("  %d ERRORS", i.Errors)
	}
	if e := r.Embedded(); e != nil {
		stats, status := e.Store.Stats(), e.DB.Status()
		text += fmt.Sprintf("  %d tables in %d runs  %d puts %d gets", status.Tables, status.Runs,
			stats.Ops[metered.Put].Calls(), stats.Ops[metered.Get].Calls())
	}
	if u.rss > 0 {
		text += "  " + formatBytes(float64(u.rss))
	}
	l.showNowAndThen("%s", text)
}
