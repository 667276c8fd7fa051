package client

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptrace"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/annalsdb/annals/wire"
)

// slowModel is a modelLog for requests at the same time: each takes times of the test's on its way there and back.
type slowModel struct {
	mu    sync.Mutex
	model *modelLog
	delay func() time.Duration
	leave time.Duration // how long a request takes to leave

	now, most int // requests under way
	gaps      int // requests that were refused because they came too early
}

func (m *slowModel) RoundTrip(r *http.Request) (*http.Response, error) {
	m.mu.Lock()
	there, back := m.delay(), m.delay()
	m.now++
	m.most = max(m.most, m.now)
	m.mu.Unlock()
	defer func() {
		m.mu.Lock()
		m.now--
		m.mu.Unlock()
	}()
	if err := sleep(r.Context(), m.leave); err != nil {
		return nil, err
	}
	if trace := httptrace.ContextClientTrace(r.Context()); trace != nil {
		trace.WroteRequest(httptrace.WroteRequestInfo{})
	}
	if err := sleep(r.Context(), there); err != nil {
		return nil, err
	}
	m.mu.Lock()
	answer, err := m.model.RoundTrip(r)
	if err == nil && answer.StatusCode == http.StatusConflict {
		m.gaps++
	}
	m.mu.Unlock()
	if serr := sleep(r.Context(), back); serr != nil {
		return nil, serr
	}
	return answer, err
}

func (m *slowModel) underWay() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.now
}

// pause returns a time like those that requests take.
func (m *slowModel) pause() time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.delay()
}

func (m *slowModel) client(t require.TestingT) *Client {
	c, err := New("http://model", Options{HTTP: &http.Client{Transport: m}})
	require.NoError(t, err)
	return c
}

// newSlow returns a model whose n-th request to arrive has one of the fates, and all behind them are answered.
func newSlow(seed uint64, fates ...fate) *slowModel {
	random := rand.New(rand.NewPCG(seed, 0))
	return &slowModel{
		delay: func() time.Duration { return time.Duration(random.IntN(20)) * time.Millisecond },
		model: newModel(func(n int) fate {
			if n > len(fates) {
				return answered
			}
			return fates[n-1]
		}),
	}
}

func drawBatcher(t *rapid.T) BatcherOptions {
	return BatcherOptions{
		Linger:          time.Duration(rapid.IntRange(-1, 30).Draw(t, "linger")) * time.Millisecond,
		MaxRecords:      rapid.IntRange(1, 8).Draw(t, "records"),
		MaxBytes:        rapid.IntRange(1, 100).Draw(t, "bytes"),
		MaxPendingBytes: int64(rapid.IntRange(1, 400).Draw(t, "pending")),
		MaxInFlight:     rapid.IntRange(1, 20).Draw(t, "in flight"),
	}
}

// outcomes appends records 0 to n-1, with pauses, and returns their receipts; an Append that fails has none.
func outcomes(t *testing.T, b *Batcher, n int, pause func() time.Duration) (out []Receipt, errs []error) {
	for i := range n {
		r, err := b.Append(t.Context(), Record{Key: []byte("k"), Value: fmt.Append(nil, i)})
		out, errs = append(out, r), append(errs, err)
		if d := pause(); d > 10*time.Millisecond {
			time.Sleep(d)
		}
	}
	return out, errs
}

// Whatever becomes of requests and answers, and however they overtake one another, each record is there once, in order.
func TestBatcherAppendsOnceInOrder(t *testing.T) {
	pipelined := false
	rapid.Check(t, func(rt *rapid.T) {
		o, seed := drawBatcher(rt), rapid.Uint64().Draw(rt, "seed")
		fates := rapid.SliceOfN(rapid.SampledFrom([]fate{answered, answered, lost, dropped, refused, overloaded, timedOut, cut}), 0, 60).Draw(rt, "fates")
		synctest.Test(t, func(t *testing.T) {
			m := newSlow(seed, fates...)
			b := m.client(t).NewBatcher(o)
			const n = 100
			receipts, errs := outcomes(t, b, n, m.pause)
			require.NoError(t, b.Flush(t.Context()))
			for i, r := range receipts {
				require.NoError(t, errs[i])
				<-r.Done()
				at, err := r.Wait(t.Context())
				require.NoError(t, err)
				require.Equal(t, fmt.Sprint(i), m.model.appended[at.Sequence])
				require.Equal(t, uint64(i), at.Sequence)
			}
			require.NoError(t, b.Close(t.Context()))
			require.Len(t, m.model.appended, n)
			require.LessOrEqual(t, m.most, min(b.o.MaxInFlight, maxInFlight))
			pipelined = pipelined || m.most > 1 && m.gaps > 0 && !slices.Contains(fates, cut)
			require.Zero(t, b.room.taken)
		})
	})
	require.True(t, pipelined, "no request ever overtook another")
}

// When a request fails for good, or for too long, what was appended is a beginning of what was given, and each record's error says
// what became of it.
func TestBatcherFails(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		o, seed := drawBatcher(rt), rapid.Uint64().Draw(rt, "seed")
		o.RetryFor = 200 * time.Millisecond
		fates := rapid.SliceOfN(rapid.SampledFrom([]fate{answered, answered, answered, lost, refused, tooLarge}), 0, 60).Draw(rt, "fates")
		last := rapid.SampledFrom([]fate{answered, tooLarge, lost, dropped, overloaded}).Draw(rt, "last")
		for range 60 { // for longer than it tries
			fates = append(fates, last)
		}
		synctest.Test(t, func(t *testing.T) {
			m := newSlow(seed, fates...)
			b := m.client(t).NewBatcher(o)
			receipts, errs := outcomes(t, b, 60, m.pause)
			closed := b.Close(t.Context())
			synctest.Wait()
			var acknowledged, maybe int
			failed := false
			for i, err := range errs {
				if err == nil {
					_, err = receipts[i].Wait(t.Context())
				}
				if err == nil {
					require.False(t, failed, "record %d is acknowledged behind one that is not", i)
					acknowledged++
					continue
				}
				failed = true
				if !NotAppended(err) {
					maybe++
				} else {
					require.GreaterOrEqual(t, i, len(m.model.appended), "record %d: %v", i, err)
				}
			}
			require.Equal(t, failed, closed != nil)
			require.LessOrEqual(t, acknowledged, len(m.model.appended))
			require.LessOrEqual(t, len(m.model.appended), acknowledged+maybe)
			for i, v := range m.model.appended {
				require.Equal(t, fmt.Sprint(i), v)
			}
			require.Zero(t, b.room.taken)
			require.Zero(t, m.now, "a request is under way after Close")
		})
	})
}

// Records gather while a request is under way, up to the bound of one; and for a moment without one.
func TestBatcherGathers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newSlow(0)
		m.delay = func() time.Duration { return 50 * time.Millisecond }
		b := m.client(t).NewBatcher(BatcherOptions{MaxRecords: 10, MaxInFlight: 1})
		began := time.Now()
		receipts, _ := outcomes(t, b, 13, func() time.Duration { return 0 })
		<-receipts[0].Done()
		require.Equal(t, 100*time.Millisecond, time.Since(began), "a full one does not linger")
		<-receipts[9].Done()
		require.Equal(t, 100*time.Millisecond, time.Since(began))
		<-receipts[12].Done()
		require.Equal(t, 200*time.Millisecond, time.Since(began), "the linger was over before")
		require.Equal(t, 2, m.model.requests)

		began = time.Now()
		receipts, _ = outcomes(t, b, 2, func() time.Duration { return 0 })
		<-receipts[1].Done()
		require.Equal(t, DefaultLinger+100*time.Millisecond, time.Since(began))
		require.Equal(t, 3, m.model.requests)
		require.NoError(t, b.Close(t.Context()))
	})
}

// The first request, and one after a long silence, goes alone; others go before those are acknowledged that come before them.
func TestBatcherPipelines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newSlow(0)
		ways := 0
		m.delay = func() time.Duration {
			ways++
			return 50*time.Millisecond + time.Duration(ways)*time.Microsecond // none overtakes another
		}
		b := m.client(t).NewBatcher(BatcherOptions{MaxRecords: 1, MaxInFlight: 3, Linger: -1})
		for _, c := range []struct {
			atOnce int
			took   time.Duration
			pause  time.Duration
		}{{1, 300 * time.Millisecond, 0}, {3, 200 * time.Millisecond, knownFor}, {1, 300 * time.Millisecond, 0}} {
			began := time.Now()
			receipts, _ := outcomes(t, b, 6, func() time.Duration { return 0 })
			synctest.Wait()
			require.Equal(t, c.atOnce, m.underWay())
			<-receipts[5].Done()
			require.Equal(t, c.took, time.Since(began).Round(10*time.Millisecond))
			time.Sleep(c.pause)
		}
		require.Zero(t, m.gaps)
		require.NoError(t, b.Close(t.Context()))
	})
}

// A request goes ahead of an acknowledgement, but only when the one before it has left: else it would overtake it.
func TestBatcherLetsRequestsLeave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newSlow(0)
		m.delay = func() time.Duration { return time.Second }
		m.leave = 10 * time.Millisecond
		b := m.client(t).NewBatcher(BatcherOptions{MaxRecords: 1, Linger: -1})
		receipts, _ := outcomes(t, b, 1, func() time.Duration { return 0 })
		<-receipts[0].Done()
		outcomes(t, b, 9, func() time.Duration { return 0 })
		for _, n := range []int{1, 2, 3, DefaultInFlight, DefaultInFlight} {
			synctest.Wait()
			require.Equal(t, n, m.underWay())
			time.Sleep(m.leave)
		}
		require.NoError(t, b.Close(t.Context()))
		require.Zero(t, m.gaps)
	})
}

// The oldest request is in the log, but its answers are all lost: what is behind it was answered, and is not acknowledged either.
func TestBatcherKeepsAcknowledgementsInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fates := []fate{answered, lost, answered}
		for range 60 {
			fates = append(fates, lost)
		}
		m := newSlow(0, fates...)
		ways := 0
		m.delay = func() time.Duration {
			ways++
			return time.Millisecond + time.Duration(ways)*time.Microsecond
		}
		b := m.client(t).NewBatcher(BatcherOptions{MaxRecords: 1, Linger: -1, RetryFor: time.Second})
		receipts, _ := outcomes(t, b, 1, func() time.Duration { return 0 })
		<-receipts[0].Done()
		receipts, _ = outcomes(t, b, 2, func() time.Duration { return 0 })
		for _, r := range receipts {
			_, err := r.Wait(t.Context())
			var unsettled *UnsettledError
			require.ErrorAs(t, err, &unsettled)
			require.False(t, NotAppended(err))
		}
		require.Equal(t, []string{"0", "0", "1"}, m.model.appended)
		require.Error(t, b.Close(t.Context()))
	})
}

// Append waits while too much is pending, as long as its context allows.
func TestBatcherBoundsMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newSlow(0)
		m.delay = func() time.Duration { return time.Second }
		b := m.client(t).NewBatcher(BatcherOptions{MaxPendingBytes: 1000, Linger: -1})
		large := Record{Value: make([]byte, 5000)} // alone
		first, err := b.Append(t.Context(), large)
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		_, err = b.Append(ctx, Record{})
		require.ErrorIs(t, err, context.DeadlineExceeded)
		_, err = first.Wait(ctx)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		began := time.Now()
		second, err := b.Append(t.Context(), Record{Key: []byte("small")})
		require.NoError(t, err)
		require.Greater(t, time.Since(began), time.Second)
		require.ErrorIs(t, b.Flush(ctx), context.DeadlineExceeded)
		at, err := second.Wait(t.Context())
		require.NoError(t, err)
		require.Equal(t, uint64(1), at.Sequence)
		require.NoError(t, b.Flush(t.Context()))
		require.NoError(t, b.Close(t.Context()))
		_, err = b.Append(t.Context(), Record{})
		require.ErrorIs(t, err, ErrBatcherClosed)
		require.NoError(t, b.Close(t.Context()))
	})
}

// Close gives up when its context ends: what was sent is unsettled, what was not is not appended.
func TestBatcherClosesInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newSlow(0)
		m.delay = func() time.Duration { return time.Hour }
		b := m.client(t).NewBatcher(BatcherOptions{MaxRecords: 1, MaxPendingBytes: 20})
		receipts, _ := outcomes(t, b, 2, func() time.Duration { return 0 })
		blocked := make(chan error)
		go func() {
			_, err := b.Append(t.Context(), Record{Value: make([]byte, 100)})
			blocked <- err
		}()
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		require.ErrorIs(t, b.Close(ctx), context.DeadlineExceeded)
		require.ErrorIs(t, <-blocked, ErrBatcherClosed)
		_, err := receipts[0].Wait(t.Context())
		var unsettled *UnsettledError
		require.ErrorAs(t, err, &unsettled)
		require.False(t, NotAppended(err))
		_, err = receipts[1].Wait(t.Context())
		require.ErrorIs(t, err, ErrAfterFailure)
		require.True(t, NotAppended(err))
		require.Zero(t, m.now)
	})
}

// transportFunc sends a request as a function does.
type transportFunc func(*http.Request) (*http.Response, error)

func (f transportFunc) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// The answer to the request under way comes as Close gives up: what is behind it, sent or not, has an end nevertheless.
func TestBatcherClosesWhileItIsAnswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newModel(func(int) fate { return answered })
		late := transportFunc(func(r *http.Request) (*http.Response, error) {
			time.Sleep(time.Minute / 2)
			return m.RoundTrip(r.WithContext(context.WithoutCancel(r.Context()))) // it was given up too late
		})
		c, err := New("http://model", Options{HTTP: &http.Client{Transport: late}})
		require.NoError(t, err)
		b := c.NewBatcher(BatcherOptions{MaxRecords: 2, Linger: time.Hour})
		receipts, _ := outcomes(t, b, 5, func() time.Duration { return 0 })
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		require.ErrorIs(t, b.Close(ctx), context.DeadlineExceeded)
		for i, r := range receipts {
			select {
			case <-r.Done():
			default:
				t.Fatalf("record %d is still waited for after Close", i)
			}
			_, err := r.Wait(t.Context())
			if i < len(m.appended) {
				require.NoError(t, err)
				continue
			}
			require.ErrorIs(t, err, context.DeadlineExceeded)
			require.True(t, NotAppended(err))
		}
		require.Len(t, m.appended, 2)
		require.ErrorIs(t, b.Flush(t.Context()), context.DeadlineExceeded)
		require.Zero(t, b.room.taken)
	})
}

func TestBatcherErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newSlow(0, tooLarge)
		b := m.client(t).NewBatcher(BatcherOptions{MaxRecords: 1})
		receipts, _ := outcomes(t, b, 2, func() time.Duration { return 0 })
		_, err := receipts[0].Wait(t.Context())
		require.ErrorIs(t, err, ErrInvalid)
		require.NotErrorIs(t, err, ErrAfterFailure)
		require.True(t, NotAppended(err))
		_, err = receipts[1].Wait(t.Context())
		require.ErrorIs(t, err, ErrAfterFailure)
		require.ErrorIs(t, err, ErrInvalid)
		_, err = b.Append(t.Context(), Record{})
		require.ErrorIs(t, err, ErrAfterFailure)
		require.ErrorIs(t, b.Flush(t.Context()), ErrInvalid)
		require.ErrorIs(t, b.Close(t.Context()), ErrInvalid)
		require.Empty(t, m.model.appended)
	})
}

// What a record keeps of the caller's memory is a copy.
func TestBatcherCopies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newSlow(0)
		b := m.client(t).NewBatcher(BatcherOptions{})
		value := []byte("before")
		_, err := b.Append(t.Context(), Record{Value: value})
		require.NoError(t, err)
		copy(value, "after!")
		require.NoError(t, b.Close(t.Context()))
		require.Equal(t, []string{"before"}, m.model.appended)
	})
}

// Those who wait for room get it in the order in which they came, and no more than there is.
func TestBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &budget{most: 10}
		require.NoError(t, b.take(t.Context(), 8))
		var order []int
		ctx, cancel := context.WithCancel(t.Context())
		for i, n := range []int64{5, 2, 20, 1} {
			go func() {
				who := t.Context()
				if i == 0 {
					who = ctx
				}
				if b.take(who, n) == nil {
					order = append(order, i)
				}
			}()
			synctest.Wait()
		}
		require.Empty(t, order, "2 would fit, but 5 came before")
		cancel()
		synctest.Wait()
		require.Equal(t, []int{1}, order)
		b.give(8)
		synctest.Wait()
		require.Equal(t, []int{1}, order)
		b.give(2)
		synctest.Wait()
		require.Equal(t, []int{1, 2}, order, "alone")
		b.close(errors.New("closed"))
		b.close(nil)
		synctest.Wait()
		require.Equal(t, []int{1, 2}, order)
		require.EqualError(t, b.take(t.Context(), 1), "closed")
	})
}

func TestAppendOptionsOfABatch(t *testing.T) {
	rec := Record{Key: []byte("k"), Value: []byte("v")}
	o := AppendOptions{Ack: AckDurable, Producer: "p", ProducerSequence: 7}
	var b wire.AppendBody
	require.NoError(t, b.UnmarshalProtobuf(appendOptions(appendRecord(nil, &rec), &o)))
	require.Equal(t, encodeAppend([]Record{rec}, o), appendOptions(appendRecord(nil, &rec), &o))
	require.Len(t, appendRecord(nil, &rec), encodedSize(&rec))
}
