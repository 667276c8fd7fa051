package wal

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/internal/base"
	"github.com/annalsdb/annals/objstore"
	"github.com/annalsdb/annals/objstore/mem"
)

var (
	testIdent  = Identity{LogID: LogID{0: 0xA0, 15: 0x0F}, Tree: 3}
	testWriter = WriterID{0: 0xB1, 15: 0x1B}
	errFlaky   = errors.New("connection reset")
)

const testEpoch = 5

// testEnv returns an environment on the time of package time, which synctest steps,
// with randomness from a seed.
func testEnv(seed uint64) *base.Env {
	start := time.Now()
	var mu sync.Mutex
	rng := rand.NewChaCha8([32]byte{0: byte(seed), 1: byte(seed >> 8)})
	return &base.Env{
		Now:     time.Now,
		Elapsed: func() time.Duration { return time.Since(start) },
		AfterFunc: func(d time.Duration, f func()) func() bool {
			return time.AfterFunc(d, f).Stop
		},
		Go: func(_ string, f func()) { go f() },
		Random: func(p []byte) {
			mu.Lock()
			defer mu.Unlock()
			_, _ = rng.Read(p)
		},
	}
}

// testObject returns record object id of testEpoch with one record a sequence in
// [first, end).
func testObject(id, first, end uint64) []byte {
	return objectOf(Header{Identity: testIdent, Writer: testWriter, Epoch: testEpoch, ID: id, Segment: 1, PrevEnd: first, First: first}, end)
}

// objectOf returns a record object with one record a sequence in [h.First, end), each
// in a batch of its own.
func objectOf(h Header, end uint64) []byte {
	b := NewBuilder(h, nil)
	for seq := h.First; seq < end; seq++ {
		b.AddBatch(seq, 1000+int64(seq), []base.Record{{Key: []byte("key"), Value: fmt.Appendf(nil, "value %d", seq)}})
	}
	return b.Finish()
}

func walName(id uint64) string { return base.WALName(testIdent.Tree, testEpoch, id) }

// putObject writes a WAL object of testEpoch past every fault.
func putObject(t testing.TB, s objstore.Store, id uint64, body []byte) {
	t.Helper()
	_, err := s.Put(context.Background(), walName(id), body, objstore.PutOptions{})
	require.NoError(t, err)
}

// faultyStore is a store in memory whose calls a test decides. A hook gets the number
// of the call on that name, from 1, and the call itself.
type faultyStore struct {
	*mem.Store
	onPut  func(ctx context.Context, name string, n int, apply func() (objstore.PutResult, error)) (objstore.PutResult, error)
	onGet  func(ctx context.Context, name string, n int, apply func() (objstore.Object, error)) (objstore.Object, error)
	onList func(n int, apply func() (objstore.Page, error)) (objstore.Page, error)

	mu                sync.Mutex
	puts, gets        map[string]int
	lists             int
	underway, maximum int // PUTs
}

func newFaultyStore() *faultyStore {
	return &faultyStore{Store: mem.New(mem.Options{}), puts: map[string]int{}, gets: map[string]int{}}
}

func (s *faultyStore) Put(ctx context.Context, name string, body []byte, opts objstore.PutOptions) (objstore.PutResult, error) {
	if !opts.IfAbsent || !opts.SinglePart {
		panic("WAL objects are put once, in a single part")
	}
	s.mu.Lock()
	s.puts[name]++
	n := s.puts[name]
	s.underway++
	s.maximum = max(s.maximum, s.underway)
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		s.underway--
		s.mu.Unlock()
	}()
	// A request that was sent is applied whether or not its caller still waits.
	apply := func() (objstore.PutResult, error) {
		return s.Store.Put(context.WithoutCancel(ctx), name, body, opts)
	}
	if s.onPut == nil {
		return apply()
	}
	return s.onPut(ctx, name, n, apply)
}

func (s *faultyStore) Get(ctx context.Context, name string, opts objstore.GetOptions) (objstore.Object, error) {
	s.mu.Lock()
	s.gets[name]++
	n := s.gets[name]
	s.mu.Unlock()
	apply := func() (objstore.Object, error) { return s.Store.Get(ctx, name, opts) }
	if s.onGet == nil {
		return apply()
	}
	return s.onGet(ctx, name, n, apply)
}

func (s *faultyStore) List(ctx context.Context, prefix, startAfter string, limit int) (objstore.Page, error) {
	s.mu.Lock()
	s.lists++
	n := s.lists
	s.mu.Unlock()
	apply := func() (objstore.Page, error) { return s.Store.List(ctx, prefix, startAfter, limit) }
	if s.onList == nil {
		return apply()
	}
	return s.onList(n, apply)
}

// counts returns how often each name was put and read.
func (s *faultyStore) counts() (puts, gets map[string]int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.puts), maps.Clone(s.gets)
}

// totals returns how many PUTs and GETs there were.
func (s *faultyStore) totals() (puts, gets int) {
	byName, byNameGot := s.counts()
	for _, n := range byName {
		puts += n
	}
	for _, n := range byNameGot {
		gets += n
	}
	return puts, gets
}

func (s *faultyStore) totalPuts() int {
	puts, _ := s.totals()
	return puts
}

func (s *faultyStore) totalGets() int {
	_, gets := s.totals()
	return gets
}

func (s *faultyStore) putsOf(id uint64) int {
	puts, _ := s.counts()
	return puts[walName(id)]
}

// parallel returns how many PUTs are under way, and were at most.
func (s *faultyStore) parallel() (now, most int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.underway, s.maximum
}

// sleepOr waits for d of package time, or until ctx ends, whose error it returns.
func sleepOr(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
