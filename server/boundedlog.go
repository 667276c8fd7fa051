package server

import (
	"log/slog"
	"sync"
	"time"
)

// What strangers can cause is logged, but not without bound: a flood must not fill a disk.
const (
	logWindow = time.Minute
	logLines  = 20 // in one window; the rest of them is counted, and logged as one line
)

// boundedLog writes a warning each time that something happens, and one for those that are too many. Safe for
// concurrent use.
type boundedLog struct {
	log     *slog.Logger
	message string

	mu      sync.Mutex
	running bool // a window is
	lines   int  // in this window, logged or not
}

// warn logs the message, unless there were too many lately.
func (l *boundedLog) warn(attrs ...any) {
	l.mu.Lock()
	if !l.running {
		l.running = true
		time.AfterFunc(logWindow, l.endWindow)
	}
	l.lines++
	full := l.lines > logLines
	l.mu.Unlock()
	if !full {
		l.log.Warn(l.message, attrs...)
	}
}

// endWindow tells how many were not logged.
func (l *boundedLog) endWindow() {
	l.mu.Lock()
	leftOut := l.lines - logLines
	l.running, l.lines = false, 0
	l.mu.Unlock()
	if leftOut > 0 {
		l.log.Warn(l.message, "more_times", leftOut, "in", logWindow)
	}
}
