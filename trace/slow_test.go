package trace

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// newSlow returns a log of operations above a second, and what it has written: lines
// without their time and level.
func newSlow() (*SlowLog, func() []string) {
	var out bytes.Buffer
	handler := slog.NewTextHandler(&out, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey || a.Key == slog.LevelKey || a.Key == slog.MessageKey {
			return slog.Attr{}
		}
		return a
	}})
	l := NewSlowLog(SlowOptions{Threshold: time.Second, Logger: slog.New(handler)})
	return l, func() []string {
		lines := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
		out.Reset()
		if lines[0] == "" {
			return nil
		}
		return lines
	}
}

// A line says what was done, for whom, and what the time was spent on.
func TestSlowLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, lines := newSlow()
		ctx, request := Begin(l, t.Context(), Request)
		request.Text("endpoint", "/api/v1/log/scan")
		request.Text("token", "billing")
		ctx, span := Begin(l, ctx, Scan)
		span.Key("key", []byte("user\n42"))
		time.Sleep(200 * time.Millisecond)
		span.Phase("read")
		time.Sleep(time.Hour)
		span.Phase(Caller)
		for range 2 {
			_, get := Begin(l, ctx, StoreGet)
			time.Sleep(500 * time.Millisecond)
			get.Int("bytes", 1000)
			get.End(nil)
		}
		span.Phase("read")
		span.Int("records", 3)
		span.End(errors.Join(errors.New("one"), errors.New("two")))
		require.Equal(t, []string{`operation=scan took=1.2s read=1.2s store_gets=2 store_puts=0 store_others=0 ` +
			`store_bytes=2000 store_time=1s records=3 key="\"user\\n42\"" endpoint=/api/v1/log/scan token=billing error="one; two"`}, lines())
		require.Equal(t, uint64(1), l.Slow(Scan))
		time.Sleep(time.Hour)
		request.End(nil)
		require.Empty(t, lines(), "a client may take its time")
	})
}

func TestSlowLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, lines := newSlow()
		for op := range Op(NumOps) {
			for _, test := range []struct {
				took time.Duration
				slow bool
			}{{l.Limit(op) - 1, false}, {l.Limit(op), l.Limit(op) > 0}, {l.Limit(op) + 24*time.Hour, l.Limit(op) > 0}} {
				before := l.Slow(op)
				_, span := Begin(l, t.Context(), op)
				time.Sleep(test.took)
				span.End(nil)
				require.Equal(t, test.slow, l.Slow(op) > before, "%v of %v", test.took, op)
				require.Equal(t, test.slow, len(lines()) > 0, "%v of %v", test.took, op)
				time.Sleep(slowWindow)
			}
		}
		require.Equal(t, []time.Duration{time.Second, time.Second, 10 * time.Second, 0, 0, 0},
			[]time.Duration{l.Limit(Append), l.Limit(Commit), l.Limit(Flush), l.Limit(Compaction), l.Limit(Request), l.Limit(StoreGet)})
	})
}

// A store that hangs makes every operation slow: that must not fill the disk.
func TestSlowLinesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, lines := newSlow()
		slow := func(n int) {
			spans := make([]Span, n)
			for i := range spans {
				_, spans[i] = Begin(l, t.Context(), Append)
			}
			time.Sleep(2 * time.Second)
			for _, span := range spans {
				span.End(nil)
			}
		}
		slow(100)
		require.Len(t, lines(), slowLines)
		slow(100)
		require.Empty(t, lines())
		require.Equal(t, uint64(200), l.Slow(Append), "all count")
		time.Sleep(slowWindow)
		slow(2)
		require.Equal(t, []string{"operation=append took=2s left_out=190", "operation=append took=2s"}, lines())
	})
}

// What does not fit is left out, and harms nothing.
func TestSlowTellsSomeOfMuch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, lines := newSlow()
		_, span := Begin(l, t.Context(), Flush)
		for range maxInts + maxTexts {
			span.Int("n", 1)
			span.Text("t", "x")
		}
		time.Sleep(time.Minute)
		span.End(nil)
		require.Equal(t, []string{"operation=flush took=1m0s" + strings.Repeat(" n=1", maxInts) + strings.Repeat(" t=x", maxTexts)}, lines())
	})
}

func TestPollsAreNobodys(t *testing.T) {
	l, _ := newSlow()
	_, span := Begin(l, t.Context(), StoreGet)
	require.False(t, span.Wanted())
}

func TestNewSlowLog(t *testing.T) {
	require.Panics(t, func() { NewSlowLog(SlowOptions{Logger: slog.Default()}) })
	require.Panics(t, func() { NewSlowLog(SlowOptions{Threshold: 1}) })
}

// BenchmarkSlowLog is what an append costs that nobody is told of, as most are not.
func BenchmarkSlowLog(b *testing.B) {
	l := NewSlowLog(SlowOptions{Threshold: time.Hour, Logger: slog.New(slog.DiscardHandler)})
	key := []byte("key")
	b.ReportAllocs()
	for b.Loop() {
		_, span := Begin(l, context.Background(), Append)
		span.Int("records", 1)
		span.Key("key", key)
		span.Phase("assign")
		span.Phase("durable")
		span.End(nil)
	}
}

// A request is told of like any other operation, but a stream that waits holds next to nothing for it.
func TestSlowRequestIsSmall(t *testing.T) {
	l, _ := newSlow()
	_, span := Begin(l, t.Context(), Request)
	span.Text("endpoint", "follow")
	span.Phase("read")
	span.Int("status", 200)
	span.Key("key", []byte("k"))
	span.End(nil)
	require.LessOrEqual(t, unsafe.Sizeof(slowOp{}), uintptr(208))
}
