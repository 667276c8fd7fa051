package client

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/annalsdb/annals/wire"
)

// modelLog answers requests to append as the log does, without a network: it
// remembers producers, and what a test says becomes of each request.
type modelLog struct {
	appended []string
	last     map[string]uint64 // of each producer
	results  map[string]*wire.AppendResponse
	fate     func(n int) fate // of the n-th request
	requests int
}

type fate int

const (
	answered   fate = iota
	lost            // applied, no answer
	dropped         // not applied, no answer
	refused         // not applied: 503
	overloaded      // not applied: 429
	timedOut        // applied: 504
	tooLarge        // not applied: 413
	cut             // not applied: 409, and the connection ends in the message
)

func newModel(fate func(n int) fate) *modelLog {
	return &modelLog{last: map[string]uint64{}, results: map[string]*wire.AppendResponse{}, fate: fate}
}

func (m *modelLog) client(t require.TestingT) *Client {
	c, err := New("http://model", Options{HTTP: &http.Client{Transport: m}})
	require.NoError(t, err)
	return c
}

var errLost = errors.New("connection reset by peer")

func (m *modelLog) RoundTrip(r *http.Request) (*http.Response, error) {
	if err := r.Context().Err(); err != nil {
		return nil, err
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	var b wire.AppendBody
	if err := b.UnmarshalProtobuf(body); err != nil {
		return nil, err
	}
	m.requests++
	what := m.fate(m.requests)
	switch what {
	case dropped:
		return nil, errLost
	case refused:
		return reply(503, &wire.ErrorBody{Outcome: OutcomeNotAppended})
	case overloaded:
		return reply(429, &wire.ErrorBody{})
	case tooLarge:
		return reply(413, &wire.ErrorBody{})
	case cut:
		answer, err := reply(409, &wire.ErrorBody{LastProducerSeq: new(uint64)})
		answer.Body = io.NopCloser(io.MultiReader(io.LimitReader(answer.Body, 9), iotest.ErrReader(io.ErrUnexpectedEOF)))
		return answer, err
	}
	resp, conflict := m.apply(&b)
	switch {
	case what == lost:
		return nil, errLost
	case conflict != nil:
		return reply(409, conflict)
	case what == timedOut:
		return reply(504, &wire.ErrorBody{Outcome: OutcomeUnknown})
	}
	return &http.Response{StatusCode: 200, Header: http.Header{}, Body: io.NopCloser(bytes.NewReader(wire.AppendMessage(nil, wire.Protobuf, resp)))}, nil
}

func reply(status int, e *wire.ErrorBody) (*http.Response, error) {
	e.Status = wire.StatusError
	return &http.Response{StatusCode: status, Header: http.Header{}, Body: io.NopCloser(bytes.NewReader(e.AppendJSON(nil)))}, nil
}

func (m *modelLog) apply(b *wire.AppendBody) (*wire.AppendResponse, *wire.ErrorBody) {
	id, seq := *b.ProducerID, *b.ProducerSeq
	last, known := m.last[id]
	if known && seq <= last {
		first, there := m.results[fmt.Sprint(id, seq)]
		if !there {
			return nil, &wire.ErrorBody{LastProducerSeq: &last}
		}
		return first, nil
	}
	if known && seq != last+1 {
		return nil, &wire.ErrorBody{LastProducerSeq: &last}
	}
	for _, e := range b.ExpectedNext {
		if uint64(len(m.appended)) > e.Sequence {
			newest := uint64(len(m.appended) - 1)
			return nil, &wire.ErrorBody{Key: e.Key, LastSequence: &newest}
		}
	}
	resp := &wire.AppendResponse{Status: wire.StatusSuccess, RecordsAppended: int32(len(b.Records)), StartSequence: uint64(len(m.appended))}
	for _, r := range b.Records {
		m.appended = append(m.appended, string(r.Value))
	}
	m.last[id], m.results[fmt.Sprint(id, seq)] = seq, resp
	return resp, nil
}

func one(value string) []Record { return []Record{{Key: []byte("k"), Value: []byte(value)}} }

// Whatever becomes of requests and answers, each acknowledged batch is there once,
// each refused one is not, in order; an unsettled one is settled by Retry.
func TestProducerAppendsOnce(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		fates := rapid.SliceOfN(rapid.SampledFrom([]fate{answered, answered, lost, dropped, refused, overloaded, timedOut, tooLarge, cut}), 1, 60).Draw(rt, "fates")
		synctest.Test(t, func(t *testing.T) {
			m := newModel(func(n int) fate {
				if n > len(fates) {
					return answered
				}
				return fates[n-1]
			})
			p := m.client(t).NewProducer(ProducerOptions{RetryFor: time.Second, Next: 5})
			var want []string
			for i := range 10 {
				value := fmt.Sprint(i)
				at := uint64(len(want))
				res, err := p.Append(t.Context(), one(value), AppendOptions{})
				for err != nil && !NotAppended(err) {
					var unsettled *UnsettledError
					require.ErrorAs(t, err, &unsettled)
					_, again := p.Append(t.Context(), one("never"), AppendOptions{})
					require.ErrorIs(t, again, ErrUnsettled)
					res, err = p.Retry(t.Context())
				}
				if err == nil {
					require.Equal(t, AppendResult{Start: at, Records: 1}, res)
					want = append(want, value)
				}
				require.Equal(t, want, m.appended)
				require.Equal(t, uint64(5+len(want)), p.Next())
			}
		})
	})
}

func TestProducersWaitBetweenAttempts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newModel(func(n int) fate {
			if n <= 20 {
				return refused
			}
			return answered
		})
		began := time.Now()
		_, err := m.client(t).NewProducer(ProducerOptions{}).Append(t.Context(), one("v"), AppendOptions{})
		require.NoError(t, err)
		require.Equal(t, 21, m.requests)
		// 50, 100, ... 3200 ms and then 5 s, each between a half and the whole of it.
		most := 6350*time.Millisecond + 13*5*time.Second
		require.InDelta(t, float64(most*3/4), float64(time.Since(began)), float64(most/4))
	})
}

func TestProducerGivesUp(t *testing.T) {
	for what, unknown := range map[fate]bool{refused: false, overloaded: false, dropped: true, lost: true, timedOut: true} {
		synctest.Test(t, func(t *testing.T) {
			m := newModel(func(int) fate { return what })
			p := m.client(t).NewProducer(ProducerOptions{RetryFor: 10 * time.Second})
			began := time.Now()
			_, err := p.Append(t.Context(), one("v"), AppendOptions{})
			require.Error(t, err)
			require.Equal(t, unknown, !NotAppended(err), "%v", err)
			require.InDelta(t, float64(10*time.Second), float64(time.Since(began)), float64(5*time.Second))
			require.Zero(t, p.Next())
			// The context bounds it, too.
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			began = time.Now()
			if unknown {
				_, err = p.Retry(ctx)
			} else {
				_, err = p.Append(ctx, one("v"), AppendOptions{})
			}
			require.Error(t, err)
			require.Equal(t, unknown, !NotAppended(err))
			require.LessOrEqual(t, time.Since(began), time.Second)
			m.fate = func(int) fate { return answered }
			if unknown {
				_, err = p.Retry(t.Context())
			} else {
				_, err = p.Append(t.Context(), one("v"), AppendOptions{})
			}
			require.NoError(t, err)
			require.Equal(t, []string{"v"}, m.appended)
			require.Equal(t, uint64(1), p.Next())
		})
	}
}

// A conflict is final, also behind an attempt whose outcome was unknown; a refusal that
// comes before the log looks for a repeat is not.
func TestProducerAndConflicts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fates := []fate{answered, dropped, answered, dropped, tooLarge, answered}
		m := newModel(func(n int) fate { return fates[n-1] })
		p := m.client(t).NewProducer(ProducerOptions{})
		_, err := p.Append(t.Context(), one("a"), AppendOptions{ExpectedNext: []KeySequence{{Key: []byte("k")}}})
		require.NoError(t, err)
		_, err = p.Append(t.Context(), one("b"), AppendOptions{ExpectedNext: []KeySequence{{Key: []byte("k")}}})
		var conflict *ConflictError
		require.ErrorAs(t, err, &conflict)
		require.Equal(t, "k", string(conflict.Key))
		require.Zero(t, conflict.LastSequence)
		require.True(t, NotAppended(err))
		_, err = p.Append(t.Context(), one("c"), AppendOptions{})
		require.NoError(t, err)
		require.Equal(t, []string{"a", "c"}, m.appended)
		require.Equal(t, 6, m.requests)
	})
}

// The log lost appends that it acknowledged from memory, or another uses the name.
func TestProducerAndNumbers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newModel(func(int) fate { return answered })
		p := m.client(t).NewProducer(ProducerOptions{ID: "p", Next: 9})
		require.Equal(t, "p", p.ID())
		m.last["p"] = 5
		_, err := p.Append(t.Context(), one("v"), AppendOptions{})
		var number *SequenceError
		require.ErrorAs(t, err, &number)
		require.Equal(t, uint64(5), number.Last)
		require.True(t, NotAppended(err))

		// Too old behind an unknown attempt: this may have been the one.
		m.last["p"] = 100
		m.fate = func(n int) fate {
			if n == 2 {
				return dropped
			}
			return answered
		}
		p = m.client(t).NewProducer(ProducerOptions{ID: "p", Next: 9, RetryFor: time.Second})
		_, err = p.Append(t.Context(), one("v"), AppendOptions{})
		require.ErrorAs(t, err, &number)
		require.False(t, NotAppended(err))
		require.Empty(t, m.appended)
	})
}

func TestProducersOfEmptyBatches(t *testing.T) {
	m := newModel(func(int) fate { return answered })
	p := m.client(t).NewProducer(ProducerOptions{})
	res, err := p.Append(t.Context(), nil, AppendOptions{})
	require.NoError(t, err)
	require.Zero(t, res)
	res, err = p.Retry(t.Context())
	require.NoError(t, err)
	require.Zero(t, res)
	require.Zero(t, m.requests)
	require.Zero(t, p.Next())
	require.Len(t, p.ID(), 32)
	require.NotEqual(t, p.ID(), m.client(t).NewProducer(ProducerOptions{}).ID())
}

// Nobody listens: nothing was appended, and it is tried again.
func TestProducerDials(t *testing.T) {
	c, err := New(nobody, Options{})
	require.NoError(t, err)
	_, err = c.NewProducer(ProducerOptions{RetryFor: 10 * time.Millisecond}).Append(t.Context(), one("v"), AppendOptions{})
	require.Error(t, err)
	require.True(t, NotAppended(err))
}
