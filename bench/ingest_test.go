package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/client"
	"github.com/annalsdb/annals/engine"
	"github.com/annalsdb/annals/objstore/mem"
)

// All that is said to be appended is in the log, and the report says how it got there.
func TestIngest(t *testing.T) {
	targets(t, func(t *testing.T, target Target) {
		o := small()
		o.Total = 100 * o.Bytes()
		rep := Execute(t.Context(), target, NewIngest(o), Options{Seed: 3, Costs: true, Version: "v", Config: map[string]string{"batch": "10"}})
		require.False(t, rep.Failed(), rep.Failures)
		require.Equal(t, "closed", rep.Loop)
		require.Equal(t, int64(100), rep.Results["append_latency"].(Latency).Count)
		for i := range uint64(50) {
			n, err := target.Count(t.Context(), AppendKey(nil, i))
			require.NoError(t, err)
			require.Equal(t, uint64(20), n)
		}
		keys, more, err := target.Keys(t.Context(), []byte(KeyPrefix), nil, 100)
		require.NoError(t, err)
		require.False(t, more)
		require.Len(t, keys, 50)
		require.Equal(t, uint64(1000), rep.Log.AppendedRecords)
		require.NotZero(t, rep.Store.Requests["put"])
		require.Greater(t, rep.Results["write_amplification"], 1.0)
		require.NotNil(t, rep.Cost)
		require.Contains(t, rep.Results, "allocations_per_record")
		requireReport(t, rep)
	})
}

// requireReport fails unless the report reads back from its JSON as it is.
func requireReport(t *testing.T, rep *Report) {
	t.Helper()
	var b bytes.Buffer
	require.NoError(t, rep.WriteJSON(&b))
	var back Report
	d := json.NewDecoder(&b)
	d.DisallowUnknownFields()
	require.NoError(t, d.Decode(&back))
	require.Equal(t, rep.Workload, back.Workload)
	require.Equal(t, rep.Seed, back.Seed)
	require.Equal(t, rep.Config, back.Config)
	require.Equal(t, rep.Machine, back.Machine)
	require.Equal(t, rep.Timeline, back.Timeline)
	require.Equal(t, rep.Cost, back.Cost)
	require.Len(t, back.Results, len(rep.Results))
	require.NotContains(t, textOf(t, rep), "%!")
}

// The same seed appends the same, at a rate or not, and another one does not.
func TestIngestIsTheSeeds(t *testing.T) {
	ingest := func(seed uint64, rate float64) (all []string) {
		e := openEmbedded(t, mem.New(mem.Options{}), engine.Options{})
		o := small()
		o.Distribution, o.Rate, o.Total, o.Appenders, o.InFlight = UniformKeys, rate, 20*o.Bytes(), 1, 1
		require.False(t, Execute(t.Context(), e, NewIngest(o), Options{Seed: seed}).Failed())
		for i := range o.Keys {
			page, err := e.Scan(t.Context(), AppendKey(nil, i), ScanOptions{})
			require.NoError(t, err)
			for _, rec := range page.Records {
				all = append(all, string(rec.Value))
			}
		}
		require.Len(t, all, 200)
		return all
	}
	want := ingest(1, 0)
	require.Equal(t, want, ingest(1, 1e6))
	require.NotEqual(t, want, ingest(2, 0))
}

// A run that is interrupted reports what it saw.
func TestInterruptedRunReports(t *testing.T) {
	e := openEmbedded(t, mem.New(mem.Options{}), engine.Options{})
	ctx, interrupt := context.WithCancel(t.Context())
	o := small()
	o.Rate = 1e6
	w := NewIngest(o)
	rep := Execute(ctx, e, workload{func(ctx context.Context, r *Run) error {
		r.OnTick(func() {
			if r.Recorder("append").Latency().Count > 0 {
				interrupt()
			}
		})
		return w.Run(ctx, r)
	}}, Options{Duration: time.Hour})
	require.True(t, rep.Interrupted)
	require.False(t, rep.Failed(), rep.Failures)
	require.NotZero(t, rep.Results["append_latency"].(Latency).Count)
	require.Greater(t, rep.Seconds, 0.5)
	require.Less(t, rep.Seconds, 60.0)
	require.NotEmpty(t, rep.Timeline)
	require.Contains(t, textOf(t, rep), "interrupted")
	requireReport(t, rep)
}

// refusing is a log that refuses the first appends.
type refusing struct {
	Target
	left int
	err  error
}

func (r *refusing) Append(ctx context.Context, recs []Record, ack Ack) (uint64, error) {
	if r.left > 0 {
		r.left--
		return 0, r.err
	}
	return r.Target.Append(ctx, recs, ack)
}

// Appends that are refused because the log is overloaded are repeated and counted; others fail.
func TestOverloadedAppendsAreRepeated(t *testing.T) {
	o := small()
	o.Appenders, o.InFlight, o.Total = 1, 1, 5*o.Bytes()
	for _, err := range []error{
		&engine.AppendError{Outcome: engine.NotAppended, Err: engine.ErrOverloaded},
		&client.Error{Status: 429, Outcome: client.OutcomeNotAppended},
	} {
		rep := Execute(t.Context(), &refusing{openEmbedded(t, mem.New(mem.Options{}), engine.Options{}), 3, err}, NewIngest(o), Options{})
		require.False(t, rep.Failed(), rep.Failures)
		require.Equal(t, uint64(3), rep.Results["retries"])
		require.Equal(t, int64(5), rep.Results["append_latency"].(Latency).Count)
		require.GreaterOrEqual(t, rep.Results["append_latency"].(Latency).Max, 3*overloadedWait.Microseconds(), "latency goes on meanwhile")
	}
	broken := &client.Error{Status: 500, Outcome: client.OutcomeUnknown}
	rep := Execute(t.Context(), &refusing{openEmbedded(t, mem.New(mem.Options{}), engine.Options{}), 3, broken}, NewIngest(o), Options{})
	require.True(t, rep.Failed())
	require.Equal(t, int64(2), rep.Results["append_latency"].(Latency).Count)
}

func TestAckFromMemory(t *testing.T) {
	e := openEmbedded(t, mem.New(mem.Options{}), engine.Options{})
	o := small()
	o.Ack, o.Rate = Memory, 1e6
	w := NewIngest(o)
	rep := Execute(t.Context(), e, workload{func(ctx context.Context, r *Run) error {
		ctx, enough := context.WithCancel(ctx)
		defer enough()
		r.OnTick(func() {
			if r.Recorder("durable_lag").Latency().Count > 0 {
				enough()
			}
		})
		return w.Run(ctx, r)
	}}, Options{})
	require.False(t, rep.Failed(), rep.Failures)
	require.NotZero(t, rep.Results["durable_lag_latency"].(Latency).Count)
}

// What a server's metrics tell is what its engine and its store tell.
func TestFiguresOfAServer(t *testing.T) {
	e := openEmbedded(t, mem.New(mem.Options{}), engine.Options{})
	remote, err := e.Serve(nil)
	require.NoError(t, err)
	defer func() { require.NoError(t, remote.loopback.stop(context.Background())) }()
	alone, err := NewRemote(remote.URL, RemoteOptions{}) // as of another process
	require.NoError(t, err)
	o := small()
	o.Total = 20 * o.Bytes()
	rep := Execute(t.Context(), alone, NewIngest(o), Options{})
	require.False(t, rep.Failed(), rep.Failures)
	require.Equal(t, uint64(200), rep.Log.AppendedRecords)
	require.NotZero(t, rep.Store.Requests["put"])
	require.NotContains(t, rep.Results, "allocations_per_record", "of two processes")
	require.NoError(t, e.DB.Flush(t.Context()))
	m, err := alone.metrics(t.Context())
	require.NoError(t, err)
	log, store := logCountsOf(e.DB.Status()), e.Store.Stats()
	require.Equal(t, log, m.log())
	got := m.store()
	for op := range store.Ops {
		require.Equal(t, store.Ops[op].Results, got.Ops[op].Results)
		require.Equal(t, store.Ops[op].Bytes, got.Ops[op].Bytes)
	}
	require.Nil(t, parseMetrics("# HELP x\nx 1\nbroken\n").log(), "not the metrics of annals")
}

func TestSentRequestsOfAServer(t *testing.T) {
	m := parseMetrics("annals_store_http_requests_total{answer=\"ok\",operation=\"PutObject\"} 12\n" +
		"annals_store_http_requests_total{answer=\"refused\",operation=\"PutObject\"} 3\n")
	sent := m.sent()
	require.Len(t, sent, 1)
	require.Equal(t, "PutObject", sent[0].Operation)
	require.Equal(t, uint64(12), sent[0].Count[0])
	require.Equal(t, uint64(3), sent[0].Count[1])
}

// A log that is reopened has what it had, and a load goes on with it.
func TestReopen(t *testing.T) {
	targets(t, func(t *testing.T, target Target) {
		_, err := target.Append(t.Context(), []Record{{Key: []byte("k"), Value: []byte("v")}}, Durable)
		require.NoError(t, err)
		reopen := target.(interface{ Reopen(context.Context) error })
		require.NoError(t, reopen.Reopen(t.Context()))
		page, err := target.Scan(t.Context(), []byte("k"), ScanOptions{Last: 1})
		require.NoError(t, err)
		require.Len(t, page.Records, 1)
		require.Equal(t, "v", string(page.Records[0].Value))
	})
	alone, err := NewRemote("http://127.0.0.1:1", RemoteOptions{})
	require.NoError(t, err)
	require.ErrorContains(t, alone.Reopen(t.Context()), "--store")
}

// The live line says how it goes, a line every few seconds where it is not a terminal.
func TestLiveLine(t *testing.T) {
	for _, terminal := range []bool{false, true} {
		e := openEmbedded(t, mem.New(mem.Options{}), engine.Options{})
		var out bytes.Buffer
		o := small()
		o.Total = 20 * o.Bytes()
		rep := Execute(t.Context(), e, NewIngest(o), Options{Live: &out, Terminal: terminal})
		require.False(t, rep.Failed(), rep.Failures)
		require.Contains(t, out.String(), "MB/s")
		require.Contains(t, out.String(), "puts")

		// A running server says what its log consists of, too.
		remote, err := e.Serve(nil)
		require.NoError(t, err)
		remote.Beside = nil
		var ofServer bytes.Buffer
		rep = Execute(t.Context(), remote, NewIngest(o), Options{Live: &ofServer, Terminal: terminal})
		require.False(t, rep.Failed(), rep.Failures)
		require.Contains(t, ofServer.String(), "puts")
		remote.Client.Close()
		require.NoError(t, remote.loopback.stop(context.Background()))

		require.Equal(t, terminal, bytes.Contains(out.Bytes(), []byte("\r\x1b[K")))
	}
}
