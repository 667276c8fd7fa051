package bench

import (
	"context"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/engine"
	"github.com/annalsdb/annals/objstore"
	"github.com/annalsdb/annals/objstore/mem"
)

// openEmbedded returns a log in the store, which the test closes and checks in the end.
func openEmbedded(t testing.TB, store objstore.Store, o engine.Options) *Embedded {
	t.Helper()
	if o.FlushInterval == 0 {
		o.FlushInterval = 2 * time.Millisecond
	}
	e, err := OpenEmbedded(t.Context(), store, o)
	require.NoError(t, err)
	t.Cleanup(func() {
		_ = e.Close(context.Background())
		report, err := engine.Check(context.Background(), store, engine.CheckOptions{})
		require.NoError(t, err)
		require.NoError(t, report.Err())
	})
	return e
}

// targets runs a test on an embedded log, and on one behind HTTP.
func targets(t *testing.T, test func(t *testing.T, target Target)) {
	t.Run("embedded", func(t *testing.T) { test(t, openEmbedded(t, mem.New(mem.Options{}), engine.Options{})) })
	t.Run("http", func(t *testing.T) {
		remote, err := openEmbedded(t, mem.New(mem.Options{}), engine.Options{}).Serve(nil)
		require.NoError(t, err)
		t.Cleanup(func() { _ = remote.loopback.stop(context.Background()) })
		test(t, remote)
	})
}

// small are options of a quick ingest.
func small() IngestOptions {
	return IngestOptions{
		BatchOptions: BatchOptions{
			KeyOptions:   KeyOptions{Keys: 50, Distribution: SequentialKeys},
			ValueOptions: ValueOptions{Size: 100, Compress: 2},
			Records:      10,
		},
		Appenders: 4, InFlight: 4 << 10, Ack: Durable,
	}
}

// workload is a Workload of a test.
type workload struct {
	run func(ctx context.Context, r *Run) error
}

func (workload) Name() string                            { return "test" }
func (workload) Faults() []string                        { return nil }
func (w workload) Run(ctx context.Context, r *Run) error { return w.run(ctx, r) }

// testRun is a run outside of Execute, all of whose time is measured.
func testRun() *Run {
	r := &Run{began: time.Now(), report: newReport("test", Options{})}
	r.to.Store(math.MaxInt64)
	return r
}

func textOf(t *testing.T, rep *Report) string {
	t.Helper()
	var b strings.Builder
	require.NoError(t, rep.WriteText(&b))
	return b.String()
}
