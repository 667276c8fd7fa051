package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/engine"
	"github.com/annalsdb/annals/objstore/mem"
)

// openMem opens a log in memory, behind HTTP if asked.
func openMem(t *testing.T, o engine.Options, http bool) Target {
	e := openEmbedded(t, mem.New(mem.Options{}), o)
	if !http {
		return e
	}
	remote, err := e.Serve(nil)
	require.NoError(t, err)
	t.Cleanup(func() { _ = remote.loopback.stop(context.Background()) }) // the one of the last reopening
	return remote
}

func smallPoll() PollOptions {
	return PollOptions{
		BatchOptions: BatchOptions{KeyOptions: KeyOptions{Keys: 200}, ValueOptions: ValueOptions{Size: 100, Compress: 2}, Records: 10},
		Preload:      250, Rate: 500e3, Appenders: 4, Ack: Durable,
		PollsPerSecond: 500, Cadences: ZipfCadences, Fastest: 20 * time.Millisecond,
		Behind: -1, Limit: 5, Pollers: 16,
	}
}

// requireParses checks that the report can be written in both forms and that its JSON can be read.
func requireParses(t *testing.T, rep *Report) (parsed struct {
	Results map[string]json.RawMessage
	Seconds float64
}) {
	t.Helper()
	var text, js bytes.Buffer
	require.NoError(t, rep.WriteText(&text))
	require.NotEmpty(t, text.String())
	require.NoError(t, rep.WriteJSON(&js))
	require.NoError(t, json.Unmarshal(js.Bytes(), &parsed))
	return parsed
}

func TestPoll(t *testing.T) {
	for name, http := range map[string]bool{"embedded": false, "http": true} {
		t.Run(name, func(t *testing.T) {
			o := smallPoll()
			o.Offline, o.OfflineFor = 0.2, 100*time.Millisecond
			w := NewPoll(o)
			require.Empty(t, w.Faults())
			rep := Execute(t.Context(), openMem(t, engine.Options{}, http), w, Options{Seed: 1, Duration: 600 * time.Millisecond})
			require.False(t, rep.Failed(), "%v %v", rep.Failures, rep.Violations)
			require.False(t, rep.Interrupted)
			require.Equal(t, "open", rep.Loop)
			parsed := requireParses(t, rep)

			tip := rep.Results["poll_under_1s"].(ReadCost)
			require.NotZero(t, tip.Reads)
			require.NotZero(t, tip.RecordsPerRead)
			var ofAges int64
			for _, age := range ages {
				if polls, ok := rep.Results["poll_"+age.name].(ReadCost); ok {
					ofAges += polls.Latency.Count
				}
			}
			require.Equal(t, rep.Results["poll_latency"].(Latency).Count, ofAges, "each poll has an age")
			require.NotZero(t, rep.Results["polls_left_out"])
			require.EqualValues(t, o.Keys, rep.Results["verified_consumers"])
			require.NotZero(t, rep.Results["append_latency"].(Latency).Count)
			if http {
				require.Nil(t, tip.GetsPerRead, "GETs of one poll are not known")
				require.Contains(t, rep.Results, "gets_per_page_in_total")
			} else {
				require.Zero(t, *tip.GetsPerRead, "at the tip nothing is read from the store")
			}
			require.Contains(t, parsed.Results, "poll_under_1s")
		})
	}
}

// As many records as keys are one of each, whoever appends how fast.
func TestPollPreloadsEachKey(t *testing.T) {
	o := smallPoll()
	o.Keys, o.Preload, o.Appenders, o.Records = 101, 101, 7, 3
	target := openMem(t, engine.Options{}, false)
	r := &Run{Target: target}
	l, err := newNumberedLoad(t.Context(), r, o)
	require.NoError(t, err)
	l.appended = func(uint64) {}
	require.NoError(t, l.preload(t.Context(), r))
	total := 0
	for key := range uint32(101) {
		n, err := target.Count(t.Context(), l.key(key))
		require.NoError(t, err)
		require.NotZero(t, n, "key %d", key)
		require.EqualValues(t, l.written[key], n)
		total += int(n)
	}
	require.Equal(t, 101+2, total, "and the first and the last one, which tell where the log ends")
}

// A poll of a key that reads from tables says so.
func TestPollCountsGets(t *testing.T) {
	o := smallPoll()
	o.Behind = time.Hour
	o.Preload = 5000
	engineOptions := engine.Options{MemtableBytes: 100 << 10, RecentBytes: 1, CacheBytes: 1, DisableCompaction: true}
	rep := Execute(t.Context(), openMem(t, engineOptions, false), NewPoll(o), Options{Seed: 1, Duration: 300 * time.Millisecond})
	require.False(t, rep.Failed(), "%v %v", rep.Failures, rep.Violations)
	all := rep.Results["poll_under_10s"]
	if all == nil {
		all = rep.Results["poll_under_1s"]
	}
	require.Greater(t, *all.(ReadCost).GetsPerRead, 1.0)
	require.Greater(t, *all.(ReadCost).Cold, 0.9)
	require.EqualValues(t, o.Keys, rep.Results["verified_consumers"])
}

// liar changes what a log answers.
type liar struct {
	Target
	scan func(key []byte, o ScanOptions, p *Page)
}

func (l *liar) Scan(ctx context.Context, key []byte, o ScanOptions) (Page, error) {
	p, err := l.Target.Scan(ctx, key, o)
	if err == nil {
		l.scan(key, o, &p)
	}
	return p, err
}

// Whatever is lost, repeated or out of order fails the run.
func TestPollNoticesWhatIsWrong(t *testing.T) {
	for name, lie := range map[string]func(o ScanOptions, p *Page){
		"lost":         func(_ ScanOptions, p *Page) { p.Records = slices.Delete(p.Records, 0, 1) },
		"repeated":     func(_ ScanOptions, p *Page) { p.Records = slices.Insert(p.Records, 0, p.Records[0]) },
		"out of order": func(_ ScanOptions, p *Page) { slices.Reverse(p.Records) },
		"below":        func(o ScanOptions, p *Page) { p.Records[0].Seq = o.From - 1 },
		"cursor back":  func(o ScanOptions, p *Page) { p.Next = o.From },
		"all lost":     func(_ ScanOptions, p *Page) { p.Records = nil },
	} {
		t.Run(name, func(t *testing.T) {
			var lied atomic.Bool
			target := &liar{openMem(t, engine.Options{}, false), func(_ []byte, o ScanOptions, p *Page) {
				if len(p.Records) > 1 && lied.CompareAndSwap(false, true) {
					lie(o, p)
				}
			}}
			w := NewPoll(smallPoll())
			rep := Execute(t.Context(), target, w, Options{Seed: 1, Duration: 300 * time.Millisecond})
			require.True(t, lied.Load())
			require.NotEmpty(t, rep.Violations)
			require.Empty(t, rep.Failures)
			require.True(t, rep.Failed())
		})
	}
}

// silent is a log whose reads do not answer from the first one on, until a while is over.
type silent struct {
	Target
	once  sync.Once
	until chan struct{}
	stall time.Duration
}

func (s *silent) Scan(ctx context.Context, key []byte, o ScanOptions) (Page, error) {
	s.once.Do(func() { time.AfterFunc(s.stall, func() { close(s.until) }) })
	<-s.until
	return s.Target.Scan(ctx, key, o)
}

// Polls that were due while the log stood still show it, also those that nobody could begin.
func TestPollShowsAStall(t *testing.T) {
	o := smallPoll()
	o.Pollers = 2
	target := &silent{Target: openMem(t, engine.Options{}, false), until: make(chan struct{}), stall: 300 * time.Millisecond}
	rep := Execute(t.Context(), target, NewPoll(o), Options{Seed: 1, Duration: 600 * time.Millisecond})
	require.False(t, rep.Failed(), "%v %v", rep.Failures, rep.Violations)
	latency := rep.Results["poll_latency"].(Latency)
	require.Greater(t, latency.P99, (200 * time.Millisecond).Microseconds())
	slow := int64(0)
	for _, point := range latency.Distribution {
		if point[1] < float64((100 * time.Millisecond).Microseconds()) {
			slow = latency.Count - int64(point[0]/100*float64(latency.Count))
		}
	}
	require.Greater(t, slow, int64(2*o.Pollers), "more polls than were under way")
}

func TestPollInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var scans atomic.Int64
	target := &liar{openMem(t, engine.Options{}, false), func([]byte, ScanOptions, *Page) {
		if scans.Add(1) == 50 {
			cancel()
		}
	}}
	rep := Execute(ctx, target, NewPoll(smallPoll()), Options{Seed: 1, Duration: time.Hour})
	require.True(t, rep.Interrupted)
	require.False(t, rep.Failed(), "%v %v", rep.Failures, rep.Violations)
	require.NotZero(t, rep.Results["poll_latency"].(Latency).Count)
	requireParses(t, rep)
}

// A consumer makes one poll at a time; others do not wait for it.
func TestReadersClaim(t *testing.T) {
	r := newReaders(&numberedLoad{written: make([]uint32, 200)}, 0)
	release := r.claim(7)
	r.claim(8)()
	r.claim(7 + claimShards)()
	var released atomic.Bool
	waited := make(chan bool)
	go func() {
		again := r.claim(7)
		waited <- released.Load()
		again()
	}()
	require.Never(t, func() bool {
		select {
		case <-waited:
			return true
		default:
			return false
		}
	}, 20*time.Millisecond, time.Millisecond, "two polls of one consumer")
	released.Store(true)
	release()
	require.True(t, <-waited)
}

// The seed decides what is appended, and who polls.
func TestPollIsDecidedByItsSeed(t *testing.T) {
	load := func(seed uint64) (keys []string) {
		r := &Run{Target: openMem(t, engine.Options{}, false), o: Options{Seed: seed}}
		l, err := newNumberedLoad(t.Context(), r, smallPoll())
		require.NoError(t, err)
		for n := range 20 {
			recs, _ := l.make(l.parts[n%len(l.parts)], 10, false)
			for i := range recs {
				keys = append(keys, string(recs[i].Key)+string(recs[i].Value[tagBytes:]))
			}
		}
		return keys
	}
	require.Equal(t, load(1), load(1))
	require.NotEqual(t, load(1), load(2))
	o := smallPoll()
	o.Behind = 0
	turns := func(seed uint64) (all []uint32) {
		r := &Run{o: Options{Seed: seed}}
		drawn := NewPoll(o).turns(r)
		for n := range uint64(100) {
			all = append(all, uint32(drawn.next()), drawn.take(n))
		}
		return all
	}
	require.Equal(t, turns(1), turns(1))
	require.NotEqual(t, turns(1), turns(2))
}

func TestPollFaults(t *testing.T) {
	require.Empty(t, NewPoll(smallPoll()).Faults())
	o := smallPoll()
	o.Size, o.Limit, o.Pollers, o.Fastest = 4, 0, 0, 0
	require.Len(t, NewPoll(o).Faults(), 4)
}
