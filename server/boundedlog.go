package server

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// What requests can bring about is logged, but not without bound: a flood of them must not fill a disk.
const (
	boundedWindow = time.Minute
	boundedLines  = 20 // logged in one window; the rest of them is counted, and logged as one line
)

// boundedLog writes lines with one message, and one line for those that are too many. Safe for concurrent use.
type boundedLog struct {
	log   *slog.Logger
	level slog.Level
	says  string
	more  string // what the line says that counts the rest

	mu      sync.Mutex
	running bool // a window is
	lines   int  // logged in this window
	leftOut int  // not logged in this window
}

// write logs one line, unless there were too many lately.
func (l *boundedLog) write(attrs ...any) {
	l.mu.Lock()
	if !l.running {
		l.running = true
		time.AfterFunc(boundedWindow, l.endWindow)
	}
	l.lines++
	full := l.lines > boundedLines
	if full {
		l.leftOut++
	}
	l.mu.Unlock()
	if !full {
		l.log.Log(context.Background(), l.level, l.says, attrs...)
	}
}

// endWindow tells how many lines were left out.
func (l *boundedLog) endWindow() {
	l.mu.Lock()
	leftOut := l.leftOut
	l.running, l.lines, l.leftOut = false, 0, 0
	l.mu.Unlock()
	if leftOut > 0 {
		l.log.Log(context.Background(), l.level, l.more, "left_out", leftOut, "in", boundedWindow.String())
	}
}
