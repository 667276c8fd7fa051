package server

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/engine"
	"github.com/annalsdb/annals/internal/base"
	"github.com/annalsdb/annals/objstore"
	"github.com/annalsdb/annals/objstore/mem"
	"github.com/annalsdb/annals/wal"
)

// The followers of a benchmark are another process, the test binary again, so that what
// the server takes can be told from what its clients take. It ends when its input does.

const (
	followersURL   = "ANNALS_TEST_FOLLOWERS_URL"
	followersCount = "ANNALS_TEST_FOLLOWERS_COUNT"
	followersForm  = "ANNALS_TEST_FOLLOWERS_FORM"

	streamsPerConn = maxStreams
)

// delivery says when a record came.
type delivery struct {
	Seq  uint64
	Nano int64
}

func followedKey(i int) string { return fmt.Sprintf("key-%012d", i) }

// TestFollowersProcess is not a test but the followers' process.
func TestFollowersProcess(t *testing.T) {
	url := os.Getenv(followersURL)
	if url == "" {
		t.Skip("only for benchmarks of followers")
	}
	n, err := strconv.Atoi(os.Getenv(followersCount))
	require.NoError(t, err)
	f := &crowd{t: t, url: url, n: n, ctx: t.Context()}
	switch os.Getenv(followersForm) {
	case "h2":
		f.events(true)
	case "h1":
		f.events(false)
	default:
		f.shared()
	}
	fmt.Fprintln(os.Stderr, "READY")
	_, _ = io.Copy(io.Discard, os.Stdin)
	f.mu.Lock()
	defer f.mu.Unlock()
	out := bufio.NewWriterSize(os.Stdout, 1<<20)
	require.NoError(t, binary.Write(out, binary.LittleEndian, f.got))
	require.NoError(t, out.Flush())
	os.Exit(0) // the connections go with it
}

// crowd is many followers.
type crowd struct {
	t   *testing.T
	url string
	n   int
	ctx context.Context

	mu  sync.Mutex
	got []delivery
}

func (c *crowd) add(seq uint64) {
	d := delivery{seq, time.Now().UnixNano()}
	c.mu.Lock()
	c.got = append(c.got, d)
	c.mu.Unlock()
}

// events opens an event stream for each key and returns when all are open.
func (c *crowd) events(http2 bool) {
	var clients []*http.Client
	perClient := c.n
	if http2 {
		perClient = streamsPerConn
	}
	for range (c.n + perClient - 1) / perClient {
		clients = append(clients, newClient(c.t, http2))
	}
	var opened sync.WaitGroup
	limit := make(chan struct{}, 64)
	for i := range c.n {
		limit <- struct{}{}
		opened.Add(1)
		go func() {
			resp := c.open(clients[i/perClient], "GET", scanPath+"?follow=true&key="+followedKey(i), nil, "text/event-stream")
			<-limit
			opened.Done()
			c.readEvents(resp.Body)
		}()
	}
	opened.Wait()
}

func (c *crowd) open(client *http.Client, method, path string, body []byte, accept string) *http.Response {
	req, err := http.NewRequestWithContext(c.ctx, method, c.url+path, bytes.NewReader(body))
	require.NoError(c.t, err)
	req.Header.Set("Accept", accept)
	resp, err := client.Do(req)
	require.NoError(c.t, err)
	require.Equal(c.t, 200, resp.StatusCode)
	return resp
}

// readEvents notes each event with data by its id, the sequence behind its record.
func (c *crowd) readEvents(r io.Reader) {
	in := bufio.NewReaderSize(r, 2048)
	var next uint64
	var data, long bool
	for {
		line, err := in.ReadSlice('\n')
		if long { // the rest of a line
			long = err == bufio.ErrBufferFull
			continue
		}
		switch {
		case bytes.HasPrefix(line, []byte("id:")):
			next, _ = strconv.ParseUint(string(bytes.TrimSpace(line[3:])), 10, 64)
		case bytes.HasPrefix(line, []byte("data:")):
			data = true
		case len(line) == 1 && data:
			c.add(next - 1)
			data = false
		}
		if long = err == bufio.ErrBufferFull; err != nil && !long {
			return
		}
	}
}

// shared follows all keys by one request.
func (c *crowd) shared() {
	var body bytes.Buffer
	body.WriteString(`{"streams":[`)
	for i := range c.n {
		if i > 0 {
			body.WriteByte(',')
		}
		fmt.Fprintf(&body, `{"key":"%s","startSeq":0}`, base64.StdEncoding.EncodeToString([]byte(followedKey(i))))
	}
	body.WriteString(`]}`)
	resp := c.open(newClient(c.t, false), "POST", "/api/v1/log/follow", body.Bytes(), "application/x-ndjson")
	go func() {
		in := bufio.NewReaderSize(resp.Body, 1<<20)
		for {
			line, err := in.ReadBytes('\n')
			if err != nil {
				return
			}
			var rec struct{ Sequence *uint64 }
			if json.Unmarshal(line, &rec) == nil && rec.Sequence != nil {
				c.add(*rec.Sequence)
			}
		}
	}()
}

// landings notes when sequences became durable.
type landings struct {
	objstore.Store
	mu    sync.Mutex
	spans []landing
}

type landing struct {
	first, end uint64
	nano       int64
}

func (l *landings) Put(ctx context.Context, name string, body []byte, o objstore.PutOptions) (objstore.PutResult, error) {
	res, err := l.Store.Put(ctx, name, body, o)
	if _, _, _, isWAL := base.ParseWALName(name); err == nil && isWAL && len(body) > wal.FenceSize {
		l.mu.Lock()
		l.spans = append(l.spans, landing{binary.LittleEndian.Uint64(body[72:]), binary.LittleEndian.Uint64(body[80:]), time.Now().UnixNano()})
		l.mu.Unlock()
	}
	return res, err
}

// durable returns when each of n sequences became durable: with its object and all before it.
func (l *landings) durable(n uint64) []int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	slices.SortFunc(l.spans, func(a, b landing) int { return int(a.first) - int(b.first) })
	at := make([]int64, n)
	var latest int64
	for _, s := range l.spans {
		latest = max(latest, s.nano)
		for seq := s.first; seq < min(s.end, n); seq++ {
			at[seq] = latest
		}
	}
	return at
}

// followBench is one setting.
type followBench struct {
	form      string // h2, h1, shared
	followers int
	keys      int // that are appended to
	rate      int // records a second
}

// BenchmarkFollowers measures the time from durable to delivered: what a record of 1 KiB takes from the
// moment at which the store has it to the client's process. Both processes share the processors. One run takes
// followTime; -benchtime 1x is enough. Memory is the server's: heap and stacks, while nobody gets anything.
func BenchmarkFollowers(b *testing.B) {
	for _, f := range []followBench{
		{"h2", 50_000, 1_000_000, 20_000},
		{"h2", 50_000, 50_000, 20_000},
		{"h1", 15_000, 1_000_000, 20_000},
		{"h1", 15_000, 15_000, 20_000},
		{"shared", 100_000, 1_000_000, 20_000},
		{"shared", 100_000, 100_000, 20_000},
		{"h2", 1, 1, 20},
		{"h1", 1, 1, 20},
	} {
		f = f.sized()
		b.Run(fmt.Sprintf("%s/followers=%d/keys=%d/rate=%d", f.form, f.followers, f.keys, f.rate), f.run)
	}
}

// sized makes a setting small with -short.
func (f followBench) sized() followBench {
	if testing.Short() {
		f.followers, f.keys, f.rate = max(1, f.followers/500), max(1, f.keys/500), max(20, f.rate/10)
	}
	return f
}

// followTime is how long a load lasts, and followCalm how long nothing happens before it and after it.
func followTime() time.Duration { return time.Duration(sized(15, 1)) * time.Second }
func followCalm() time.Duration { return time.Duration(sized(2000, 200)) * time.Millisecond }

func (f followBench) run(b *testing.B) {
	store := &landings{Store: mem.New(mem.Options{})}
	db := openDB(b, store, engine.Options{FlushInterval: 2 * time.Millisecond})
	r := start(b, Options{DB: db})
	before := heapAndStacks()
	cmd := exec.CommandContext(b.Context(), os.Args[0], "-test.run=^TestFollowersProcess$", "-test.timeout=10m")
	cmd.Env = append(os.Environ(), followersURL+"="+r.url, fmt.Sprintf("%s=%d", followersCount, f.followers), followersForm+"="+f.form)
	stdin, err := cmd.StdinPipe()
	require.NoError(b, err)
	stderr, err := cmd.StderrPipe()
	require.NoError(b, err)
	var out bytes.Buffer
	cmd.Stdout = &out
	require.NoError(b, cmd.Start())
	line, err := bufio.NewReader(stderr).ReadString('\n')
	require.NoError(b, err, "the followers did not start")
	require.Equal(b, "READY\n", line)
	for db.Status().Followers < 1 {
		time.Sleep(time.Millisecond)
	}
	time.Sleep(followCalm() / 2)
	b.ReportMetric(float64(heapAndStacks()-before)/float64(f.followers), "B/follower")

	cpu, began := processCPU(), time.Now()
	var due []uint64
	for range b.N {
		due = append(due, f.load(b, db)...)
	}
	b.ReportMetric((processCPU()-cpu).Seconds()/time.Since(began).Seconds(), "server-cpu")
	time.Sleep(followCalm())
	require.NoError(b, stdin.Close())
	require.NoError(b, cmd.Wait())
	f.report(b, store.durable(db.Frontier()), due, out.Bytes())
}

// load appends at the rate, with batches due at fixed times, and returns the sequences that somebody follows.
func (f followBench) load(b *testing.B, db *engine.DB) (due []uint64) {
	const batch = 100
	value := benchValue()
	interval := time.Second * batch / time.Duration(f.rate)
	size := batch
	if f.rate < batch {
		interval, size = time.Second/time.Duration(f.rate), 1
	}
	began := time.Now()
	var failed error
	var mu sync.Mutex
	var wg sync.WaitGroup
	for i := 0; time.Since(began) < followTime(); i++ {
		time.Sleep(time.Until(began.Add(time.Duration(i) * interval)))
		recs, keys := make([]engine.Record, size), make([]int, size)
		for j := range recs {
			keys[j] = rand.IntN(f.keys)
			recs[j] = engine.Record{Key: []byte(followedKey(keys[j])), Value: value}
		}
		wg.Go(func() {
			res, err := db.Append(b.Context(), recs, engine.AppendOptions{})
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				failed = err
			}
			for j, key := range keys {
				if key < f.followers {
					due = append(due, res.First+uint64(j))
				}
			}
		})
	}
	wg.Wait()
	require.NoError(b, failed)
	b.ReportMetric(float64(db.Status().AppendedBytes)/1e6/time.Since(began).Seconds(), "MB/s-in")
	return due
}

// report compares what came with what was due.
func (f followBench) report(b *testing.B, durable []int64, due []uint64, raw []byte) {
	got := make([]delivery, len(raw)/16)
	require.NoError(b, binary.Read(bytes.NewReader(raw), binary.LittleEndian, got))
	seqs := make([]uint64, len(got))
	late := make([]time.Duration, len(got))
	for i, d := range got {
		seqs[i], late[i] = d.Seq, time.Duration(d.Nano-durable[d.Seq])
	}
	slices.Sort(seqs)
	slices.Sort(due)
	require.True(b, slices.Equal(due, seqs), "%d records were due, %d came", len(due), len(seqs))
	slices.Sort(late)
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(float64(len(got))/followTime().Seconds(), "deliveries/s")
	for name, i := range map[string]int{"p50-ms": len(late) / 2, "p99-ms": len(late) * 99 / 100, "max-ms": len(late) - 1} {
		b.ReportMetric(float64(late[i].Microseconds())/1000, name)
	}
}

// processCPU is what this process has used.
func processCPU() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
