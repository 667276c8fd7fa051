package bench

import (
	"context"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/annalsdb/annals/objstore/metered"
)

// plainEvery is how often the live line is written where it is not rewritten in place.
const plainEvery = 5 * time.Second

// liveTimeout bounds how long a running server may take to say what it consists of: less than an interval, which it delays.
const liveTimeout = tickEvery / 4

// liveLine says how a run goes.
type liveLine struct {
	out      io.Writer
	terminal bool

	mu    sync.Mutex
	shown time.Time
	dirty bool // the cursor stands behind a line
}

// every is how long a line stands before the next one is written.
func (l *liveLine) every() time.Duration {
	if l.terminal {
		return tickEvery / 2
	}
	return plainEvery - tickEvery/2 // ticks come a little early or late
}

// due reports whether a line would be written now.
func (l *liveLine) due() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return time.Since(l.shown) >= l.every()
}

// showNowAndThen writes a line unless one was written a moment ago.
func (l *liveLine) showNowAndThen(format string, args ...any) {
	if l.out == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if time.Since(l.shown) < l.every() {
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

// objects says what the log consists of and has asked of its store. A running server is asked, unless nobody would see it.
func (l *liveLine) objects(r *Run) string {
	log, store := (*LogCounts)(nil), (*metered.Stats)(nil)
	if e := r.Embedded(); e != nil {
		stats := e.Store.Stats()
		log, store = logCountsOf(e.DB.Status()), &stats
	} else if remote, ok := r.Target.(*Remote); ok && l.due() {
		ctx, cancel := context.WithTimeout(context.Background(), liveTimeout)
		defer cancel()
		if m, err := remote.metrics(ctx); err == nil {
			log, store = m.log(), m.store()
		}
	}
	if log == nil || store == nil {
		return ""
	}
	return fmt.Sprintf("  %d tables in %d runs  %d puts %d gets", log.Tables, log.Runs, store.Ops[metered.Put].Calls(), store.Ops[metered.Get].Calls())
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
	text += l.objects(r)
	if u.rss > 0 {
		text += "  " + formatBytes(float64(u.rss))
	}
	l.showNowAndThen("%s", text)
}
