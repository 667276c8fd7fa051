package bench

import (
	"context"
	"errors"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/bench/crowd"
	"github.com/annalsdb/annals/engine"
	"github.com/annalsdb/annals/internal/base"
	"github.com/annalsdb/annals/objstore"
	"github.com/annalsdb/annals/objstore/mem"
)

func followOptions(form FollowForm) FollowOptions {
	return FollowOptions{
		BatchOptions: BatchOptions{
			KeyOptions: KeyOptions{Keys: 100}, ValueOptions: ValueOptions{Size: 200, Sizes: LognormalSizes, Compress: 2}, Records: 10,
		},
		Followers: 50, Form: form, StreamsPerConnection: 20, Connections: 3, Appenders: 8, Rate: 200_000,
		FollowedShare: -1, ClientsInProcess: true, Landings: new(Landings),
	}
}

// followTarget opens a log in the store, which is checked in the end.
func followTarget(t *testing.T, store objstore.Store, o FollowOptions) *Embedded {
	e, err := OpenEmbedded(t.Context(), o.Landings.Wrap(store), engine.Options{FlushInterval: time.Millisecond})
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		require.NoError(t, e.Close(ctx))
		_, err := engine.Check(ctx, store, engine.CheckOptions{})
		require.NoError(t, err)
	})
	return e
}

func runFollow(t *testing.T, target Target, o FollowOptions) *Report {
	w := NewFollow(o)
	require.Empty(t, w.Faults())
	return Execute(t.Context(), target, w, Options{Seed: 1, Duration: 300 * time.Millisecond})
}

var followForms = []FollowForm{FollowForm(crowd.HTTP2), FollowForm(crowd.HTTP1), FollowForm(crowd.Shared), FollowEngine}

func TestFollowDeliversEverything(t *testing.T) {
	for _, form := range followForms {
		t.Run(string(form), func(t *testing.T) {
			t.Parallel()
			o := followOptions(form)
			e := followTarget(t, mem.New(mem.Options{}), o)
			rep := runFollow(t, e, o)
			require.False(t, rep.Failed(), "%v %v", rep.Failures, rep.Violations)
			require.Equal(t, "open", rep.Loop)
			require.EqualValues(t, 50, rep.Results["followers"])
			appended := rep.Results["appended_records"].(int64)
			require.Positive(t, appended)
			require.Less(t, appended, int64(e.DB.Status().AppendedRecords), "half of the keys are followed")
			require.Equal(t, appended, rep.Results["delivered_records"])
			for _, name := range []string{"lost_records", "duplicated_records", "out_of_order_records", "extra_records",
				"misdirected_records", "misnumbered_records", "mistaken_keys", "unmatched_records", "undurable_records"} {
				require.EqualValues(t, 0, rep.Results[name], name)
			}
			due := rep.Results["delivered_from_due_latency"].(Latency)
			require.Positive(t, due.Count)
			require.LessOrEqual(t, due.Count, appended)
			durable := rep.Results["delivered_from_durable_latency"].(Latency)
			require.Positive(t, durable.Count)
			require.LessOrEqual(t, durable.P50, due.P50, "a record is due before it is durable")
		})
	}
}

// A second run on the same log, behind HTTP: the records of the first are not its own. All records are of followed keys.
func TestFollowOverHTTP(t *testing.T) {
	o := followOptions(FollowForm(crowd.HTTP2))
	o.FollowedShare = 1
	e := followTarget(t, mem.New(mem.Options{}), o)
	require.False(t, runFollow(t, e, o).Failed())
	remote, err := e.Serve(nil)
	require.NoError(t, err)
	defer func() { require.NoError(t, remote.loopback.stop(context.Background())) }()
	before := e.DB.Status().AppendedRecords
	rep := runFollow(t, remote, o)
	require.False(t, rep.Failed(), "%v %v", rep.Failures, rep.Violations)
	require.EqualValues(t, e.DB.Status().AppendedRecords-before, rep.Results["delivered_records"])

	// As of a server of another process: then nothing is known of its inside.
	o.Landings = nil
	elsewhere, err := NewRemote(remote.URL, RemoteOptions{})
	require.NoError(t, err)
	defer elsewhere.Client.Close()
	rep = runFollow(t, elsewhere, o)
	require.False(t, rep.Failed(), "%v %v", rep.Failures, rep.Violations)
	require.Contains(t, rep.Results, "delivered_from_acknowledged_latency")
	require.NotContains(t, rep.Results, "delivered_from_durable_latency")
	require.NotContains(t, rep.Results, "rss_per_follower_bytes")
}

func TestFollowIdle(t *testing.T) {
	o := followOptions(FollowForm(crowd.HTTP2))
	o.Idle = true
	e := followTarget(t, mem.New(mem.Options{}), o)
	rep := runFollow(t, e, o)
	require.False(t, rep.Failed(), "%v %v", rep.Failures, rep.Violations)
	require.Zero(t, e.DB.Status().AppendedRecords)
	require.EqualValues(t, 50, rep.Results["followers"])
	require.Positive(t, rep.Results["live_per_follower_bytes"])
	require.NotContains(t, rep.Results, "delivered_records")
}

// A stall of the store is in the latency of all records that were due meanwhile, and not in what came after they
// were durable.
func TestFollowShowsAStall(t *testing.T) {
	o := followOptions(FollowEngine)
	o.Appenders, o.Arrivals = 2, Uniform // fewer than are due meanwhile
	store := &stallingPuts{Store: mem.New(mem.Options{})}
	e := followTarget(t, store, o)
	store.armed.Store(true)
	rep := Execute(t.Context(), e, NewFollow(o), Options{Seed: 1, Duration: 4 * stall})
	require.False(t, rep.Failed(), "%v %v", rep.Failures, rep.Violations)
	due := rep.Results["delivered_from_due_latency"].(Latency)
	require.GreaterOrEqual(t, due.Max, (stall - 50*time.Millisecond).Microseconds())
	require.GreaterOrEqual(t, due.P90, (stall / 4).Microseconds(), "it was in a quarter of the time")
	durable := rep.Results["delivered_from_durable_latency"].(Latency)
	require.Less(t, durable.P50, due.Max)
}

// signalWriter closes said when something is written that looks like a load.
type signalWriter struct {
	once sync.Once
	said chan struct{}
}

func (s *signalWriter) Write(p []byte) (int, error) {
	if strings.Contains(string(p), "ops/s") {
		s.once.Do(func() { close(s.said) })
	}
	return len(p), nil
}

// Followers that cannot connect, or whose process fails, fail the run, which says why.
func TestFollowFails(t *testing.T) {
	o := followOptions(FollowForm(crowd.HTTP2))
	o.StreamsPerConnection = 2000
	o.Followers, o.Keys = 1500, 2000
	e := followTarget(t, mem.New(mem.Options{}), o)
	rep := runFollow(t, e, o)
	require.True(t, rep.Failed())
	require.Contains(t, strings.Join(rep.Failures, "\n"), "lower --streams-per-connection")

	o = followOptions(FollowForm(crowd.HTTP2))
	o.ClientsInProcess, o.ClientProcess = false, []string{os.Args[0], "-test.list=^$"} // it ends at once
	rep = runFollow(t, e, o)
	require.True(t, rep.Failed())
	require.Contains(t, strings.Join(rep.Failures, "\n"), "the followers ended before all of them were connected")
}

func TestFollowInterrupted(t *testing.T) {
	o := followOptions(FollowEngine)
	e := followTarget(t, mem.New(mem.Options{}), o)
	ctx, cancel := context.WithCancel(t.Context())
	begun := &signalWriter{said: make(chan struct{})}
	go func() { <-begun.said; cancel() }()
	rep := Execute(ctx, e, NewFollow(o), Options{Seed: 1, Duration: time.Hour, Live: begun})
	require.True(t, rep.Interrupted)
	require.False(t, rep.Failed(), "%v %v", rep.Failures, rep.Violations)
	require.Positive(t, rep.Results["delivered_records"])
	require.Equal(t, rep.Results["appended_records"], rep.Results["delivered_records"])
}

func TestFollowFaults(t *testing.T) {
	for fault, change := range map[string]func(*FollowOptions){
		"--followers is 0":              func(o *FollowOptions) { o.Followers = 0 },
		"a key of its own":              func(o *FollowOptions) { o.Followers = 101 },
		"--value-size is 32":            func(o *FollowOptions) { o.Size = 32 },
		"--appenders is 0":              func(o *FollowOptions) { o.Appenders = 0 },
		"--streams-per-connection is 0": func(o *FollowOptions) { o.StreamsPerConnection = 0 },
		"--connections is 51":           func(o *FollowOptions) { o.Connections = 51 },
		"it must be from 0 to 1":        func(o *FollowOptions) { o.FollowedShare = 1.1 },
		"raise --keys":                  func(o *FollowOptions) { o.Followers, o.FollowedShare = 100, 0.5 },
		"--key-distribution uniform":    func(o *FollowOptions) { o.Distribution, o.FollowedShare = ZipfKeys, 0.5 },
		"--clients-in-process":          func(o *FollowOptions) { o.ClientsInProcess = false },
		"one follows 1000000 keys": func(o *FollowOptions) {
			o.Form, o.Followers, o.Keys, o.Connections = FollowForm(crowd.Shared), 2_000_001, 1e7, 2
		},
	} {
		o := followOptions(FollowForm(crowd.HTTP2))
		require.Empty(t, NewFollow(o).Faults())
		change(&o)
		require.Contains(t, strings.Join(NewFollow(o).Faults(), "\n"), fault)
	}
}

// The same seed appends the same keys, whoever makes a batch.
func TestFollowBatchesAreOfTheSeed(t *testing.T) {
	for _, share := range []float64{-1, 0, 0.3, 1} {
		o := followOptions(FollowEngine)
		o.FollowedShare = share
		w := NewFollow(o)
		w.values, w.seed = NewValues(o.ValueOptions, (&Run{o: Options{Seed: 3}}).Rand(1)), 17
		a, b := w.maker(), w.maker()
		followed, all := 0, 0
		for n := uint64(0); n < 200; n++ {
			op := Op{N: n, Due: time.Unix(5, 7)}
			size := a.make(op)
			b.make(Op{N: n + 1})
			require.Equal(t, size, b.make(op))
			require.Equal(t, a.recs, b.recs)
			for i, rec := range a.recs {
				s, ok := crowd.StampOf(rec.Value)
				require.True(t, ok)
				require.Equal(t, crowd.Stamp{Due: 5e9 + 7, Op: n, Index: uint32(i), Key: uint32(a.numbers[i])}, s)
				require.Equal(t, AppendKey(nil, a.numbers[i]), rec.Key)
				all++
				if a.numbers[i] < 50 {
					followed++
				}
			}
		}
		want := share
		if share < 0 {
			want = 0.5
		}
		require.InDelta(t, want, float64(followed)/float64(all), 0.05)
	}
}

// What a follower must not get, or misses, is found.
func TestFollowCheckFindsFaults(t *testing.T) {
	const run, op = 9, 70
	r := &Run{}
	check := func(change func(d *deliveries, all []crowd.Delivery) []crowd.Delivery) (*deliveries, followVerdict) {
		d := newDeliveries(run, 2, nil)
		d.record(r)
		d.begin(op)
		d.acknowledged(op, []uint64{0, 1, 5, 0, 1}, 100, time.Unix(0, 10))
		var all []crowd.Delivery
		for i, key := range []uint32{0, 1, 5, 0, 1} {
			if key != 5 {
				all = append(all, crowd.Delivery{
					Stamp: crowd.Stamp{Run: run, Op: op, Index: uint32(i), Key: key}, Follower: key, Seq: 100 + uint64(i), At: 20,
				})
			}
		}
		for _, got := range change(d, all) {
			d.Delivered(got)
		}
		return d, d.verdict()
	}
	d, v := check(func(_ *deliveries, all []crowd.Delivery) []crowd.Delivery { return all })
	require.Equal(t, followVerdict{}, v)
	require.Zero(t, d.missing())

	d, v = check(func(_ *deliveries, all []crowd.Delivery) []crowd.Delivery { return all[1:] })
	require.Equal(t, followVerdict{lost: 1}, v)
	require.EqualValues(t, 1, d.missing())

	d, v = check(func(_ *deliveries, all []crowd.Delivery) []crowd.Delivery { return append(all, all[3]) })
	require.Equal(t, followVerdict{}, v)
	require.EqualValues(t, 1, d.duplicated.Load())

	d, v = check(func(_ *deliveries, all []crowd.Delivery) []crowd.Delivery {
		all[0], all[2] = all[2], all[0]
		return all
	})
	require.Equal(t, followVerdict{lost: 1}, v, "a reader that goes by sequences does not see it")
	require.EqualValues(t, 1, d.outOfOrder.Load())

	_, v = check(func(_ *deliveries, all []crowd.Delivery) []crowd.Delivery { // one instead of another
		all[2].Seq, all[2].Index = 105, 5
		return all
	})
	require.Equal(t, followVerdict{mistaken: 1}, v)

	d, _ = check(func(_ *deliveries, all []crowd.Delivery) []crowd.Delivery {
		all[2].Seq = 104
		return all
	})
	require.EqualValues(t, 1, d.misnumbered.Load())

	d, v = check(func(_ *deliveries, all []crowd.Delivery) []crowd.Delivery {
		all[0].Follower = 1
		return append(all, crowd.Delivery{Stamp: all[0].Stamp, Follower: 2})
	})
	require.EqualValues(t, 2, d.misdirected.Load())
	require.Equal(t, followVerdict{lost: 1}, v)

	// An append that failed may be there or not; a record of nobody may not.
	extra := crowd.Delivery{Stamp: crowd.Stamp{Run: run, Op: op + 1}, Seq: 200, At: 30}
	_, v = check(func(_ *deliveries, all []crowd.Delivery) []crowd.Delivery { return append(all, extra) })
	require.Equal(t, followVerdict{extra: 1}, v)
	for _, came := range []bool{false, true} {
		_, v = check(func(d *deliveries, all []crowd.Delivery) []crowd.Delivery {
			d.begin(op + 1)
			d.failed(op+1, []uint64{0, 7})
			if came {
				return append(all, extra)
			}
			return all
		})
		require.Equal(t, followVerdict{}, v)
	}
	d, v = check(func(_ *deliveries, all []crowd.Delivery) []crowd.Delivery {
		return append(all, crowd.Delivery{Follower: 0, Seq: 300, Foreign: true})
	})
	require.Equal(t, followVerdict{}, v)
	require.EqualValues(t, 1, d.foreign.Load())
}

// A record may come before the answer to its append does.
func TestFollowMatchesEarlyDeliveries(t *testing.T) {
	r := &Run{}
	r.to.Store(int64(time.Hour))
	r.began = time.Unix(0, 0)
	d := newDeliveries(1, 1, nil)
	d.record(r)
	d.begin(4)
	d.Delivered(crowd.Delivery{Stamp: crowd.Stamp{Run: 1, Op: 4}, Seq: 10, At: 1000})
	require.Zero(t, d.fromAck.Latency().Count)
	d.acknowledged(4, []uint64{0}, 10, time.Unix(0, 5_000_000))
	l := d.fromAck.Latency()
	require.EqualValues(t, 1, l.Count)
	require.EqualValues(t, 1, l.Clamped, "it came before")
	d.Delivered(crowd.Delivery{Stamp: crowd.Stamp{Run: 1, Op: 5}, Seq: 11, At: 1000})
	require.EqualValues(t, 1, d.unmatched.Load(), "of an append that nobody began")
}

func TestLandings(t *testing.T) {
	var l Landings
	at := func(n int) time.Time { return time.Unix(int64(n), 0) }
	when := func(seq uint64) int {
		t, ok := l.At(seq)
		if !ok {
			return -1
		}
		return int(t.Unix())
	}
	l.landed(0, 5, at(1)) // before it was started
	l.Start(10)
	require.Equal(t, -1, when(10))
	l.landed(8, 10, at(2))
	l.landed(10, 12, at(3))
	l.landed(15, 20, at(4)) // early
	require.Equal(t, []int{3, 3, -1, -1}, []int{when(10), when(11), when(12), when(15)})
	l.landed(12, 15, at(6))
	l.landed(12, 15, at(9)) // sent twice
	l.landed(20, 21, at(5)) // noted late: the one before it took longer
	require.Equal(t, []int{3, 6, 6, 6, 6, -1}, []int{when(11), when(12), when(15), when(19), when(20), when(21)})

	// One whose answer was lost does not stop the others for ever.
	next := uint64(30)
	for range maxEarly + 1 {
		l.landed(next, next+1, at(20))
		next++
	}
	require.Equal(t, []int{-1, 20}, []int{when(next), when(next - 1)})
	for range maxLandings {
		l.landed(next, next+1, at(30))
		next++
	}
	require.Equal(t, []int{-1, -1, 30}, []int{when(15), when(next - maxLandings), when(next - maxLandings + 1)})
}

// A store that fails a PUT says nothing of when it landed, and what metered asks of stores passes through.
func TestLandingsStore(t *testing.T) {
	var l Landings
	l.Start(0)
	s := l.Wrap(&failing{Store: mem.New(mem.Options{})})
	_, err := s.Put(t.Context(), base.WALName(0, 1, 1), make([]byte, 200), objstore.PutOptions{})
	require.ErrorIs(t, err, errPut)
	require.Empty(t, l.early)
	_, isSender := s.(objstore.Sender)
	require.False(t, isSender)
	n, err := s.(interface {
		AbortUploads(context.Context, time.Time) (int, error)
	}).AbortUploads(t.Context(), time.Time{})
	require.NoError(t, err)
	require.Equal(t, 3, n)
	sender, isSender := l.Wrap(&sendingFailing{failing{Store: mem.New(mem.Options{})}}).(objstore.Sender)
	require.True(t, isSender)
	require.Len(t, sender.Sent(), 1)
}

var errPut = errors.New("no")

type failing struct{ objstore.Store }

func (f *failing) Put(context.Context, string, []byte, objstore.PutOptions) (objstore.PutResult, error) {
	return objstore.PutResult{}, errPut
}
func (f *failing) AbortUploads(context.Context, time.Time) (int, error) { return 3, nil }

type sendingFailing struct{ failing }

func (f *sendingFailing) Sent() []objstore.SentRequests { return make([]objstore.SentRequests, 1) }
