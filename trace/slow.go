package trace

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// backgroundFactor times SlowOptions.Threshold is what operations may take for which
	// nobody waits at first: many bytes are moved in them.
	backgroundFactor = 10
	// Of slow operations slowLines are logged within slowWindow. The rest is counted.
	slowLines  = 10
	slowWindow = 10 * time.Second
	// Of one operation so much is kept to be told; what is more is left out.
	maxInts, maxTexts = 6, 3
)

// SlowOptions of NewSlowLog.
type SlowOptions struct {
	// Threshold is how long an operation may take that somebody waits for: reads and
	// appends, and the PUTs of the WAL and of MANIFEST, which appends and flushes wait
	// for. Flushes, openings, retention and what a replica applies may take ten times as
	// long. Compactions and collections take as long as there is work: they are never
	// slow. Above 0.
	Threshold time.Duration
	// Logger gets a warning for each. Required.
	Logger *slog.Logger
}

// SlowLog is a Tracer that logs operations that took too long, each in one line, with
// what they did and what the time was spent on. Requests are no operations in this
// sense: they end when a client has taken the answer. Nor is the wait of a long poll or a
// follower for records. At most ten lines are written in ten seconds; the next one says
// how many were left out.
//
// An operation costs two allocations, of about 700 bytes together. All methods may
// be called from any goroutine.
type SlowLog struct {
	o    SlowOptions
	slow [NumOps]atomic.Uint64

	mu      sync.Mutex // guards what follows
	window  time.Time  // when it began
	lines   int        // in it
	leftOut uint64     // since the last line
}

// NewSlowLog returns a log of slow operations. It panics on options that make no sense.
func NewSlowLog(o SlowOptions) *SlowLog {
	if o.Threshold <= 0 || o.Logger == nil {
		panic("trace: a slow log needs a threshold and a logger")
	}
	return &SlowLog{o: o}
}

// Slow returns how many operations of a kind were too slow, logged or not.
func (l *SlowLog) Slow(op Op) uint64 { return l.slow[op].Load() }

// Limit returns how long an operation may take; 0: any time.
func (l *SlowLog) Limit(op Op) time.Duration {
	switch {
	case op == WALPut || op == Commit:
		return l.o.Threshold
	case op == Request || op == Compaction || op == Garbage || op.Kind() == Store:
		return 0
	case op.Kind() == Background:
		return backgroundFactor * l.o.Threshold
	}
	return l.o.Threshold
}

// slowKey is the key of a context's slowOp.
type slowKey struct{}

// Begin implements Tracer.
func (l *SlowLog) Begin(ctx context.Context, op Op) (context.Context, Recorder) {
	outer, _ := ctx.Value(slowKey{}).(*slowOp)
	if op.Kind() == Store {
		if outer == nil {
			return ctx, nil // a poll
		}
		return ctx, &slowRequest{of: outer, op: op, began: time.Now()}
	}
	if op == Request {
		s := &slowOp{log: l, op: op, outer: outer}
		return context.WithValue(ctx, slowKey{}, s), s
	}
	now := time.Now()
	whole := &struct { // one allocation
		slowOp
		slowDetails
	}{slowOp{log: l, op: op, outer: outer, began: now}, slowDetails{mark: now}}
	s := &whole.slowOp
	s.slowDetails = &whole.slowDetails
	return context.WithValue(ctx, slowKey{}, s), s
}

// slowRequest is a request to the store.
type slowRequest struct {
	of    *slowOp
	op    Op
	began time.Time
	bytes int64
}

func (*slowRequest) Phase(string)        {}
func (*slowRequest) Text(string, string) {}
func (*slowRequest) Key(string, []byte)  {}

func (r *slowRequest) Int(name string, value int64) {
	if name == "bytes" {
		r.bytes = value
	}
}

func (r *slowRequest) End(error) {
	switch r.op {
	case StoreGet:
		r.of.gets.Add(1)
	case StorePut:
		r.of.puts.Add(1)
	default:
		r.of.others.Add(1)
	}
	r.of.bytes.Add(r.bytes)
	r.of.stored.Add(int64(time.Since(r.began)))
}

// slowOp is one operation. Until it has ended one goroutine at a time uses it, but for the
// counts of requests.
type slowOp struct {
	*slowDetails // nil of a Request, which is never slow, and may be a stream that waits for days

	log                *SlowLog
	op                 Op
	outer              *slowOp // it is a part of; nil: of none
	began              time.Time
	texts              [maxTexts]struct{ name, value string }
	textCount          int
	gets, puts, others atomic.Int64 // requests to the store that ended
	bytes              atomic.Int64 // of them
	stored             atomic.Int64 // their time together, in nanoseconds
}

// slowDetails are what is told of an operation itself.
type slowDetails struct {
	mark   time.Time
	phases Phases
	ints   [maxInts]struct {
		name  string
		value int64
	}
	intCount int
	keyName  string
	key      []byte
}

func (s *slowOp) Phase(name string) {
	if s.slowDetails == nil {
		return
	}
	now := time.Now()
	s.phases.Add(name, now.Sub(s.mark))
	s.mark = now
}

func (s *slowOp) Int(name string, value int64) {
	if s.slowDetails != nil && s.intCount < maxInts {
		s.ints[s.intCount].name, s.ints[s.intCount].value = name, value
		s.intCount++
	}
}

func (s *slowOp) Text(name, value string) {
	if s.textCount < maxTexts {
		s.texts[s.textCount].name, s.texts[s.textCount].value = name, value
		s.textCount++
	}
}

func (s *slowOp) Key(name string, key []byte) {
	if s.slowDetails != nil {
		s.keyName, s.key = name, key
	}
}

func (s *slowOp) End(err error) {
	if s.slowDetails == nil {
		return
	}
	took := time.Since(s.began) - s.phases.Of(Caller)
	limit := s.log.Limit(s.op)
	if limit == 0 || took < limit {
		s.key = nil // parts that end later must not hold it
		return
	}
	s.log.slow[s.op].Add(1)
	if leftOut, ok := s.log.mayTell(); ok {
		s.log.o.Logger.LogAttrs(context.Background(), slog.LevelWarn, "slow operation", s.describe(took, leftOut, err)...)
	}
	s.key = nil
}

// mayTell reports whether there may be one more line, and how many operations had none
// since the last.
func (l *SlowLog) mayTell() (leftOut uint64, ok bool) {
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	if now.Sub(l.window) >= slowWindow {
		l.window, l.lines = now, 0
	}
	if l.lines == slowLines {
		l.leftOut++
		return 0, false
	}
	l.lines++
	leftOut, l.leftOut = l.leftOut, 0
	return leftOut, true
}

// describe returns what a line says.
func (s *slowOp) describe(took time.Duration, leftOut uint64, err error) []slog.Attr {
	attrs := []slog.Attr{slog.String("operation", s.op.String()), slog.Duration("took", round(took))}
	for i := range s.phases.Len() {
		name, d := s.phases.At(i)
		if d >= time.Millisecond && name != Caller {
			attrs = append(attrs, slog.Duration(name, round(d)))
		}
	}
	if gets, puts, others := s.gets.Load(), s.puts.Load(), s.others.Load(); gets+puts+others > 0 {
		attrs = append(attrs, slog.Int64("store_gets", gets), slog.Int64("store_puts", puts),
			slog.Int64("store_others", others), slog.Int64("store_bytes", s.bytes.Load()),
			slog.Duration("store_time", round(time.Duration(s.stored.Load()))))
	}
	for _, n := range s.ints[:s.intCount] {
		attrs = append(attrs, slog.Int64(n.name, n.value))
	}
	if s.keyName != "" {
		attrs = append(attrs, slog.String(s.keyName, KeyText(s.key)))
	}
	for at := s; at != nil; at = at.outer { // which request it was for
		for _, t := range at.texts[:at.textCount] {
			attrs = append(attrs, slog.String(t.name, t.value))
		}
	}
	if err != nil {
		attrs = append(attrs, slog.String("error", oneLine(err)))
	}
	if leftOut > 0 {
		attrs = append(attrs, slog.Uint64("left_out", leftOut))
	}
	return attrs
}

// round shows no more of a duration than says something.
func round(d time.Duration) time.Duration { return d.Round(100 * time.Microsecond) }

// oneLine is an error's text, whatever was joined into it.
func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }
