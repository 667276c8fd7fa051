package bench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"runtime/debug"
	"sync"
	"time"

	"github.com/annalsdb/annals/bench/crowd"
	"github.com/annalsdb/annals/engine"
)

// Streams of random numbers of bench follow.
const (
	streamFollowValues uint64 = iota + 300
	streamFollowSchedule
	streamFollowRun
)

// FollowForm is how followers follow.
type FollowForm string

// FollowEngine: engine.Follow, in this process and without HTTP. The other forms are those of package crowd.
const FollowEngine FollowForm = "engine"

// Bounds of bench follow.
const (
	// MaxFollowers bounds the followers. Memory ends sooner.
	MaxFollowers = 10_000_000
	// openTimeout is how long nothing may happen while followers connect.
	openTimeout = 2 * time.Minute
	// deliveryTimeout is how long nothing may come, in the end, until what is missing counts as lost.
	deliveryTimeout = 30 * time.Second
	// FollowSettle is long enough for connections that were just made to be at rest.
	FollowSettle = time.Second
	// lookInterval is how often conditions are looked at.
	lookInterval = 5 * time.Millisecond
)

// FollowOptions of NewFollow.
type FollowOptions struct {
	BatchOptions
	Followers int // each follows a key of its own, from key 0 on
	Form      FollowForm
	// StreamsPerConnection is how many followers share a connection of HTTP/2.
	StreamsPerConnection int
	// Connections is how many requests POST /follow follow all keys.
	Connections int
	Appenders   int
	Rate        float64 // key and value bytes a second; 0: as fast as possible, in a closed loop
	Arrivals    Arrivals
	Ack         Ack
	// FollowedShare is which share of the records has a key that is followed; below 0: what the distribution
	// of keys makes of it.
	FollowedShare float64
	// Settle is how long followers are left alone when all are connected, before memory is looked at.
	Settle time.Duration
	// Idle appends nothing: memory and signs of life alone are measured.
	Idle bool
	// ClientsInProcess keeps the followers in this process.
	ClientsInProcess bool
	// ClientProcess is the command that runs crowd.Serve, for the followers' process.
	ClientProcess []string
	// Landings notes when the engine's records become durable; nil: that is not known.
	Landings *Landings
}

// Follow has many followers, appends, and measures how long records take to them.
type Follow struct {
	o        FollowOptions
	d        *deliveries
	run      uint64
	url      string // of the server that is followed
	token    string // that it asks for; empty: none
	values   *Values
	seed     uint64
	readable uint64 // where following begins

	before, idle memoryUse // of this process: without followers, and with all of them
	connecting   time.Duration
	clients      []clientUse
	mu           sync.Mutex // of clients
	usage        crowd.Usage
}

// clientUse is the processor time of the followers' process at a time.
type clientUse struct {
	at  time.Time
	cpu time.Duration
}

// memoryUse is the memory of this process after garbage collection.
type memoryUse struct{ rss, live uint64 }

// NewFollow returns the workload.
func NewFollow(o FollowOptions) *Follow { return &Follow{o: o} }

// Name implements Workload.
func (w *Follow) Name() string { return "follow" }

// Faults implements Workload.
func (w *Follow) Faults() []string {
	o := &w.o
	faults := o.BatchOptions.Faults()
	check := func(ok bool, format string, args ...any) {
		if !ok {
			faults = append(faults, faultf(format, args...))
		}
	}
	check(o.Followers >= 1 && o.Followers <= MaxFollowers, "--followers is %d; it must be from 1 to %d", o.Followers, MaxFollowers)
	check(uint64(o.Followers) <= o.Keys, "--followers is %d and --keys is %d; each follower has a key of its own", o.Followers, o.Keys)
	check(o.Size >= crowd.MinValue, "--value-size is %d; it must be at least %d: a value says when it was due", o.Size, crowd.MinValue)
	check(o.Appenders >= 1 && o.Appenders <= MaxWorkers, "--appenders is %d; it must be from 1 to %d", o.Appenders, MaxWorkers)
	check(o.StreamsPerConnection >= 1, "--streams-per-connection is %d; it must be at least 1", o.StreamsPerConnection)
	check(o.Connections >= 1 && o.Connections <= max(1, o.Followers), "--connections is %d; it must be from 1 to --followers", o.Connections)
	check(o.FollowedShare <= 1, "--followed-share is %v; it must be from 0 to 1", o.FollowedShare)
	check(o.FollowedShare < 0 || o.FollowedShare == 1 || uint64(o.Followers) < o.Keys,
		"--followed-share is %v, and every key is followed: raise --keys", o.FollowedShare)
	check(o.FollowedShare < 0 || o.Distribution == UniformKeys, "--followed-share needs --key-distribution uniform")
	if o.Form == FollowEngine {
		return faults
	}
	check(o.ClientsInProcess || len(o.ClientProcess) > 0, "the followers need a process: use --clients-in-process")
	if o.Form == FollowForm(crowd.Shared) {
		check(w.perConnection() <= engine.MaxStreams, "--connections is %d; one follows %d keys at most: raise it", o.Connections, engine.MaxStreams)
	}
	return faults
}

// perConnection is how many followers share a connection.
func (w *Follow) perConnection() int {
	if w.o.Form == FollowForm(crowd.Shared) {
		return (w.o.Followers + w.o.Connections - 1) / w.o.Connections
	}
	return w.o.StreamsPerConnection
}

// Run implements Workload.
func (w *Follow) Run(ctx context.Context, r *Run) error {
	rnd := r.Rand(streamFollowRun)
	// Another run on the same log must not take these records for its own.
	w.run = rnd.Uint64() ^ uint64(time.Now().UnixNano())
	e := r.Embedded()
	if e == nil {
		w.o.Landings = nil
	}
	w.d = newDeliveries(w.run, w.o.Followers, w.o.Landings)
	if !w.o.Idle {
		w.d.record(r)
		values := r.Rand(streamFollowValues)
		w.values, w.seed = NewValues(w.o.ValueOptions, values), values.Uint64()
	}
	stop, err := w.serve(r, e)
	if err != nil {
		return err
	}
	if w.readable, err = readable(ctx, r.Target); err != nil {
		return errors.Join(err, stop())
	}
	if w.o.Landings != nil {
		w.o.Landings.Start(w.readable)
	}
	err = w.measure(ctx, r)
	return errors.Join(err, stop())
}

// serve makes sure that there is what the followers follow. It returns what stops it.
func (w *Follow) serve(r *Run, e *Embedded) (stop func() error, err error) {
	nothing := func() error { return nil }
	remote, isRemote := r.Target.(*Remote)
	switch {
	case w.o.Form == FollowEngine && e == nil:
		return nil, errors.New("--form engine needs --store: an engine in this process")
	case w.o.Form == FollowEngine:
		return nothing, nil
	case isRemote:
		w.url, w.token = remote.URL, remote.Token
		return nothing, nil
	}
	// Records are appended to the engine itself, and followed through a server.
	if remote, err = e.Serve(nil); err != nil {
		return nil, err
	}
	w.url = remote.URL
	return func() error {
		remote.Client.Close()
		return remote.loopback.stop(context.Background())
	}, nil
}

// readable returns the first sequence that is not readable yet.
func readable(ctx context.Context, t Target) (uint64, error) {
	// A key that no workload has: its records are complete up to there.
	page, err := t.Scan(ctx, []byte("bench follow"), ScanOptions{Limit: 1})
	if err != nil {
		return 0, fmt.Errorf("look where the log ends: %w", err)
	}
	return page.Next, nil
}

// measure connects the followers, loads the log, and ends them.
func (w *Follow) measure(ctx context.Context, r *Run) error {
	w.before = memoryNow()
	began := time.Now()
	f, err := w.start(r)
	if err != nil {
		return err
	}
	if err := w.awaitOpen(ctx, r, f); err != nil {
		if _, why := f.stop(); why != nil {
			return fmt.Errorf("%w: %w", err, why)
		}
		return err
	}
	w.connecting = time.Since(began)
	select {
	case <-time.After(w.o.Settle):
	case <-ctx.Done():
	}
	w.idle = memoryNow()
	r.OnTick(func() { w.noteClients(r, f) })
	loading, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-f.ended(): // there is nothing left to measure
			cancel()
		case <-loading.Done():
		}
	}()
	if w.o.Idle {
		<-r.Begin(loading).Done()
		r.End()
	} else {
		w.load(loading, r, f)
	}
	w.noteClients(r, f)
	usage, err := f.stop()
	w.usage = usage
	w.results(r)
	return err
}

// memoryNow collects garbage and returns what is left.
func memoryNow() memoryUse {
	for range 3 { // stacks shrink by half each time
		runtime.GC()
	}
	debug.FreeOSMemory()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return memoryUse{rss: residentBytes(), live: m.HeapAlloc + m.StackInuse}
}

// noteClients notes what the followers' process has used.
func (w *Follow) noteClients(r *Run, f followersUnderWay) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := clientUse{time.Now(), f.cpu()}
	// Two are enough: the first within what is measured, and the last.
	if len(w.clients) < 2 {
		if len(w.clients) == 0 && !r.Measured() {
			return
		}
		w.clients = append(w.clients, now)
		return
	}
	w.clients[1] = now
}

// awaitOpen waits until all followers are connected.
func (w *Follow) awaitOpen(ctx context.Context, r *Run, f followersUnderWay) error {
	ticker := time.NewTicker(lookInterval)
	defer ticker.Stop()
	last, since := int64(0), time.Now()
	for {
		select {
		case <-ticker.C:
		case <-f.ended():
			return errors.New("the followers ended before all of them were connected")
		case <-ctx.Done():
			return ctx.Err()
		}
		n := w.d.opened.Load()
		if n == int64(w.o.Followers) {
			return nil
		}
		r.Progress("%d of %d followers are connected", n, w.o.Followers)
		if n != last {
			last, since = n, time.Now()
		}
		if time.Since(since) > openTimeout {
			return fmt.Errorf("%d of %d followers are connected, and no other was for %v", n, w.o.Followers, openTimeout)
		}
	}
}

// load appends for as long as it measures, and waits until all was delivered.
func (w *Follow) load(ctx context.Context, r *Run, f followersUnderWay) {
	load := Load{Workers: w.o.Appenders, Recorder: r.Recorder("append")}
	if w.o.Rate > 0 {
		load.Schedule = NewSchedule(w.o.Rate/float64(w.o.Bytes()), w.o.Arrivals, r.Rand(streamFollowSchedule))
	}
	makers := make([]*followMaker, load.Workers)
	for i := range makers {
		makers[i] = w.maker()
	}
	pace := r.Loop(r.Begin(ctx), load, func(ctx context.Context, op Op) (Done, error) {
		m := makers[op.Worker]
		size := m.make(op)
		w.d.begin(op.N)
		first, _, err := AppendRetrying(ctx, r.Target, m.recs, w.o.Ack)
		if err != nil {
			w.d.failed(op.N, m.numbers)
			return Done{}, err
		}
		w.d.acknowledged(op.N, m.numbers, first, time.Now())
		return Done{len(m.recs), size}, nil
	})
	r.End()
	w.awaitDelivered(f)
	r.LoadResults(load, pace, "append")
	r.Series(load.Recorder, "append latency")
}

// awaitDelivered waits until all that was acknowledged was delivered, or nothing comes any more.
func (w *Follow) awaitDelivered(f followersUnderWay) {
	ticker := time.NewTicker(lookInterval)
	defer ticker.Stop()
	last, since := int64(-1), time.Now()
	for w.d.missing() > 0 {
		select {
		case <-ticker.C:
		case <-f.ended():
			return
		}
		if n := w.d.delivered.Load(); n != last {
			last, since = n, time.Now()
		}
		if time.Since(since) > deliveryTimeout {
			return
		}
	}
}

// followMaker makes batches whose values are stamped. It belongs to one goroutine.
type followMaker struct {
	w       *Follow
	source  rand.PCG
	rnd     *rand.Rand
	pick    *KeyPicker
	recs    []Record
	numbers []uint64 // of their keys
	bytes   []byte   // of keys and values
}

func (w *Follow) maker() *followMaker {
	m := &followMaker{w: w, recs: make([]Record, w.o.Records), numbers: make([]uint64, w.o.Records)}
	m.rnd = rand.New(&m.source)
	m.pick = NewKeyPicker(w.o.KeyOptions, m.rnd)
	return m
}

// make makes the batch of an operation, which is valid until the next call.
func (m *followMaker) make(op Op) (size int64) {
	m.source.Seed(m.w.seed, op.N)
	m.bytes = m.bytes[:0]
	first := op.N * uint64(len(m.recs))
	for i := range m.recs {
		number := m.key(first + uint64(i))
		at := len(m.bytes)
		m.bytes = AppendKey(m.bytes, number)
		key := m.bytes[at:len(m.bytes):len(m.bytes)]
		at = len(m.bytes)
		m.bytes = append(m.bytes, m.w.values.Bytes(m.rnd, m.valueSize())...)
		value := m.bytes[at:len(m.bytes):len(m.bytes)]
		s := crowd.Stamp{Run: m.w.run, Due: op.Due.UnixNano(), Op: op.N, Index: uint32(i), Key: uint32(min(number, uint64(noKey)))}
		s.Put(value)
		m.numbers[i], m.recs[i] = number, Record{Key: key, Value: value}
		size += int64(len(key) + len(value))
	}
	return size
}

// noKey stamps a record whose key has a number that no follower has.
const noKey = MaxFollowers

// key draws the number of a record's key.
func (m *followMaker) key(n uint64) uint64 {
	share, followers := m.w.o.FollowedShare, uint64(m.w.o.Followers)
	switch {
	case share < 0:
		return m.pick.Pick(n)
	case m.rnd.Float64() < share:
		return m.rnd.Uint64N(followers)
	default:
		return followers + m.rnd.Uint64N(m.w.o.Keys-followers)
	}
}

func (m *followMaker) valueSize() int { return max(m.w.values.Size(m.rnd), crowd.MinValue) }
