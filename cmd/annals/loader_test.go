package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// recorder is a server that answers as it is told.
type recorder struct {
	batches [][]entry
	answer  func(call int) error // nil: every batch is acknowledged
	calls   int
	number  func() uint64 // of appends that are numbered
}

func (r *recorder) send(_ context.Context, batch []entry) error {
	r.calls++
	if r.answer != nil {
		if err := r.answer(r.calls); err != nil {
			return err
		}
	}
	r.batches = append(r.batches, batch)
	return nil
}

func (r *recorder) lines() (lines []uint64) {
	for _, b := range r.batches {
		for _, e := range b {
			lines = append(lines, e.line)
		}
	}
	return lines
}

func upTo(n uint64) (lines []uint64) {
	for i := range n {
		lines = append(lines, i+1)
	}
	return lines
}

// numbered returns n lines of input.
func numbered(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "{\"key\":\"k%d\",\"value\":\"v%d\"}\n", i%10, i)
	}
	return b.String()
}

func loadText(ctx context.Context, r *recorder, text string, c appendConfig) (stderr string, err error) {
	var out bytes.Buffer
	err = loadInput(ctx, &out, strings.NewReader(text), "standard input", outlet{send: r.send, number: r.number}, c)
	return out.String(), err
}

func statusOf(t *testing.T, err error) int {
	t.Helper()
	var exit *exitError
	require.ErrorAs(t, err, &exit)
	return exit.status
}

func TestLoadBatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r recorder
		out, err := loadText(t.Context(), &r, numbered(25)+"\n\n", appendConfig{batchRecords: 10, batchBytes: 1 << 20})
		require.NoError(t, err)
		require.Equal(t, upTo(25), r.lines())
		require.Len(t, r.batches, 3)
		require.Contains(t, out, "27 lines acknowledged: 25 records")
		out, err = loadText(t.Context(), &r, numbered(1), appendConfig{batchRecords: 10, batchBytes: 1 << 20})
		require.NoError(t, err)
		require.Contains(t, out, "1 line acknowledged: 1 record (")
	})
}

func TestLoadBatchBytes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r recorder
		long := `{"key":"k","value":"` + strings.Repeat("x", 100) + "\"}\n"
		short := "{\"key\":\"k\",\"value\":\"1234\"}\n" // 5 bytes
		_, err := loadText(t.Context(), &r, short+short+long+short+short+short, appendConfig{batchRecords: 10, batchBytes: 12})
		require.NoError(t, err)
		var sizes []int
		for _, b := range r.batches {
			sizes = append(sizes, len(b))
		}
		require.Equal(t, []int{2, 1, 2, 1}, sizes, "a record larger than the limit goes alone")
		require.Equal(t, upTo(6), r.lines())
	})
}

func TestLoadEmpty(t *testing.T) {
	var r recorder
	out, err := loadText(t.Context(), &r, "", appendConfig{batchRecords: 10, batchBytes: 100})
	require.NoError(t, err)
	require.Zero(t, r.calls)
	require.Contains(t, out, "0 lines acknowledged")
}

func TestLoadSkip(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r recorder
		out, err := loadText(t.Context(), &r, numbered(25), appendConfig{skip: 20, batchRecords: 10, batchBytes: 1 << 20})
		require.NoError(t, err)
		require.Equal(t, []uint64{21, 22, 23, 24, 25}, r.lines())
		require.Contains(t, out, "25 lines acknowledged: 5 records")

		_, err = loadText(t.Context(), &r, numbered(25), appendConfig{skip: 26, batchRecords: 10, batchBytes: 1 << 20})
		require.ErrorContains(t, err, "the input has only 25 lines")
	})
}

// What precedes a bad line is sent, so that going on begins at the bad line.
func TestLoadBadLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r recorder
		_, err := loadText(t.Context(), &r, numbered(14)+"{}\n"+numbered(3), appendConfig{batchRecords: 10, batchBytes: 1 << 20})
		require.Equal(t, exitFailure, statusOf(t, err))
		require.EqualError(t, err, "line 15: key is missing\n14 lines were acknowledged; go on with --skip 14")
		require.Equal(t, upTo(14), r.lines())
	})
}

func TestLoadUnknownOutcome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := recorder{answer: func(call int) error {
			if call == 2 {
				return io.ErrUnexpectedEOF
			}
			return nil
		}}
		_, err := loadText(t.Context(), &r, numbered(100), appendConfig{batchRecords: 10, batchBytes: 1 << 20})
		require.Equal(t, exitUnknown, statusOf(t, err))
		require.Equal(t, 2, r.calls, "a batch of unknown outcome is never sent again")
		require.EqualError(t, err, `lines 11 to 20: unexpected EOF
10 lines were acknowledged. Lines 11 to 20 were appended all or not at all, it is unknown which: look for line 20
with "annals scan --last 1 -- k9", then go on with --skip 20 if it is there, else with --skip 10`)
	})
}

func TestLoadRefusedForNow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		r := recorder{answer: func(call int) error {
			if call < 4 {
				return &sendError{err: errors.New("full"), retry: true, after: 3 * time.Second}
			}
			return nil
		}}
		_, err := loadText(t.Context(), &r, numbered(20), appendConfig{batchRecords: 10, batchBytes: 1 << 20})
		require.NoError(t, err)
		require.Equal(t, upTo(20), r.lines())
		require.GreaterOrEqual(t, time.Since(began), 9*time.Second, "the server's Retry-After is kept")
	})
}

func TestLoadRefused(t *testing.T) {
	for _, test := range []struct {
		name  string
		err   *sendError
		calls func(int) bool
		want  string
	}{
		{"for good", &sendError{err: errors.New("value too long")}, func(n int) bool { return n == 1 },
			"lines 1 to 10: value too long\n0 lines were acknowledged; go on with --skip 0"},
		{"for too long", &sendError{err: errors.New("full"), retry: true}, func(n int) bool { return n > 10 && n < 60 },
			"lines 1 to 10: refused for 1m0s: full\n0 lines were acknowledged; go on with --skip 0"},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				r := recorder{answer: func(int) error { return test.err }}
				_, err := loadText(t.Context(), &r, numbered(20), appendConfig{batchRecords: 10, batchBytes: 1 << 20})
				require.Equal(t, exitFailure, statusOf(t, err))
				require.EqualError(t, err, test.want)
				require.True(t, test.calls(r.calls), "%d calls", r.calls)
				require.LessOrEqual(t, time.Since(began), retryFor)
			})
		})
	}
}

// Lines that come slowly are sent after batchLinger, not when a batch is full.
func TestLoadSlowInput(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in, feed := io.Pipe()
		var r recorder
		done := make(chan error)
		go func() {
			done <- loadInput(t.Context(), io.Discard, in, "standard input", outlet{send: r.send}, appendConfig{batchRecords: 10, batchBytes: 1 << 20})
		}()
		for n := uint64(1); n <= 3; n++ {
			_, err := io.WriteString(feed, numbered(1))
			require.NoError(t, err)
			synctest.Wait()
			<-time.After(batchLinger) // the bubble's clock: no real time passes
			synctest.Wait()
			require.Equal(t, upTo(n), r.lines())
		}
		require.NoError(t, feed.Close())
		require.NoError(t, <-done)
	})
}

// An interrupt ends the load behind the batch under way, whose request is not
// cut off.
func TestLoadInterrupted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, interrupt := context.WithCancel(t.Context())
		var out bytes.Buffer
		sent := 0
		send := func(request context.Context, batch []entry) error {
			sent++
			if sent == 2 {
				interrupt()
				require.NoError(t, request.Err())
			}
			return nil
		}
		err := loadInput(ctx, &out, strings.NewReader(numbered(100)), "standard input", outlet{send: send},
			appendConfig{batchRecords: 10, batchBytes: 1 << 20})
		require.Equal(t, exitFailure, statusOf(t, err))
		require.EqualError(t, err, "interrupted\n20 lines were acknowledged; go on with --skip 20")
		require.Equal(t, 2, sent)
	})
}

// An interrupt ends a load that waits for its input to begin, too.
func TestLoadInterruptedBeforeItBegins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in, feed := io.Pipe()
		ctx, interrupt := context.WithCancel(t.Context())
		var out, result bytes.Buffer
		done := make(chan error)
		go func() {
			done <- loadInput(ctx, &out, in, "standard input", outlet{}, appendConfig{skip: 2, batchRecords: 10, batchBytes: 1 << 20, json: &result})
		}()
		_, err := io.WriteString(feed, numbered(1)) // one of two lines that are passed over
		require.NoError(t, err)
		synctest.Wait()
		interrupt()
		err = <-done
		require.Equal(t, exitFailure, statusOf(t, err))
		require.EqualError(t, err, "interrupted\n2 lines were acknowledged; go on with --skip 2")
		require.Contains(t, result.String(), `"outcome":"not_appended","linesAcknowledged":2`)
		require.NoError(t, feed.Close()) // what reads ends
	})
}

func TestProgress(t *testing.T) {
	now := time.Unix(0, 0)
	var out bytes.Buffer
	p := newProgress(&out, func() time.Time { return now }, newInputPosition(strings.NewReader("")), 100)
	require.False(t, p.terminal)
	p.acknowledged(200, 100, 1<<20)
	require.Empty(t, out.String(), "not due yet")
	now = now.Add(plainProgressEvery)
	p.acknowledged(300, 100, 1<<20)
	require.Equal(t, "300 lines acknowledged, 200 records (2.0 MiB) in 5s, 40 records/s\n", out.String())
	p.end()
	p.lines, p.records = 0, 0
	now = now.Add(plainProgressEvery)
	out.Reset()
	p.acknowledged(1, 1, 0)
	require.Equal(t, "1 line acknowledged, 1 record (2.0 MiB) in 10s, 0 records/s\n", out.String())
	p.records, p.started = 200, p.started.Add(plainProgressEvery)

	out.Reset()
	p.terminal = true
	now = now.Add(terminalProgressEvery)
	p.acknowledged(400, 100, 0)
	p.end()
	require.Equal(t, "\r\x1b[K400 lines acknowledged, 300 records (2.0 MiB) in 5.2s, 57 records/s\r\x1b[K", out.String())

	out.Reset()
	p.input.size = 1000
	p.input.read.Store(450)
	now = now.Add(terminalProgressEvery)
	p.acknowledged(500, 100, 0)
	require.True(t, strings.HasPrefix(out.String(), "\r\x1b[K[#########...........]  45%  500 lines"), out.String())
}

func TestShellQuote(t *testing.T) {
	for key, want := range map[string]string{
		"pebble/compaction.go": "pebble/compaction.go",
		"":                     "b64:",
		"it's":                 `'it'\''s'`,
		"a b":                  "'a b'",
		"é":                    "'é'",
		"\x00\xff":             "b64:AP8=",
	} {
		require.Equal(t, want, shellQuote([]byte(key)))
	}
}

// Batches of a producer are made of the input alone: however slowly it comes, another run
// makes the same ones.
func TestLoadNumberedBatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		next := uint64(7)
		r := recorder{number: func() uint64 { return next }, answer: func(int) error { next++; return nil }}
		in, w := io.Pipe()
		go func() {
			for line := range strings.Lines(numbered(25)) {
				_, _ = io.WriteString(w, line)
				time.Sleep(time.Second)
			}
			_ = w.Close()
		}()
		var out bytes.Buffer
		require.NoError(t, loadInput(t.Context(), &out, in, "standard input", outlet{r.send, r.number}, appendConfig{batchRecords: 10, batchBytes: 1 << 20}))
		require.Len(t, r.batches, 3)
		require.Equal(t, upTo(25), r.lines())
		require.Contains(t, out.String(), "the producer's next number is 10\n")
	})
}

func TestLoadNumberedEnds(t *testing.T) {
	for _, c := range []struct {
		err    error
		status int
		want   string
	}{
		{io.ErrUnexpectedEOF, exitUnknown, "lines 11 to 20: unexpected EOF\n10 lines were acknowledged. Lines 11 to 20 were appended all or not at all, it is unknown which:\n" +
			"go on with --skip 10 --producer-seq 1, which appends nothing twice"},
		{&sendError{err: io.ErrUnexpectedEOF}, exitFailure, "lines 11 to 20: unexpected EOF\n10 lines were acknowledged; go on with --skip 10 --producer-seq 1"},
	} {
		synctest.Test(t, func(t *testing.T) {
			r := recorder{number: func() uint64 { return 1 }, answer: func(call int) error {
				if call == 2 {
					return c.err
				}
				return nil
			}}
			_, err := loadText(t.Context(), &r, numbered(25), appendConfig{batchRecords: 10, batchBytes: 1 << 20})
			require.Equal(t, c.status, statusOf(t, err))
			require.EqualError(t, err, c.want)
		})
	}
}

func TestLoadOnCondition(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		config := appendConfig{batchRecords: 10, batchBytes: 1 << 20, expectNext: new(uint64)}
		for _, n := range []int{0, 1, 10} {
			var r recorder
			_, err := loadText(t.Context(), &r, numbered(n), config)
			require.NoError(t, err)
			require.Len(t, r.lines(), n)
		}
		for _, c := range []appendConfig{config, {batchRecords: 100, batchBytes: 10, expectNext: new(uint64)}} {
			var r recorder
			_, err := loadText(t.Context(), &r, numbered(11), c)
			require.Equal(t, exitFailure, statusOf(t, err))
			require.ErrorContains(t, err, "--expect-next needs all records in one append")
			require.Zero(t, r.calls)
		}
	})
}
