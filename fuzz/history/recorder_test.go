package history

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestRecorderTimes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := NewRecorder(Limits{})
		pass := func() { time.Sleep(time.Second) } // on the bubble's clock
		pass()
		p := r.Started(Writer, "a")
		pass()
		r.Ready(p)
		pass()
		r.Ready(p) // it was before
		c, err := r.Begin(Operation{Client: "c", Process: p, Append: &Append{Records: []KeyValue{{"k", "v"}}}})
		require.NoError(t, err)
		pass()
		f, err := r.Begin(Operation{Client: "d", Process: p, Follow: &Follow{Name: "d", Streams: []Stream{{Key: "k"}}}})
		require.NoError(t, err)
		pass()
		require.NoError(t, f.Deliver(Item{Key: "k", Record: Record{Value: "v"}, Next: 1}))
		pass()
		c.Append.First = 0
		require.NoError(t, c.End(OK, nil))
		pass()
		require.NoError(t, f.End(Unknown, errors.New("cut off")))
		r.Ended(p)
		r.Final(Final{Frontier: 1, Records: map[string][]Record{"k": {{0, 0, "v"}}}})

		h := r.History()
		require.Equal(t, []Process{{ID: 1, Name: "a", Role: Writer, Started: time.Second, Ready: 2 * time.Second, Ended: 7*time.Second + 1}}, h.Processes)
		require.Len(t, h.Operations, 2)
		require.Equal(t, []time.Duration{3 * time.Second, 6 * time.Second}, []time.Duration{h.Operations[0].Call, h.Operations[0].Return})
		require.Equal(t, []time.Duration{4 * time.Second, 7 * time.Second}, []time.Duration{h.Operations[1].Call, h.Operations[1].Return})
		require.Equal(t, 5*time.Second, h.Operations[1].Follow.Items[0].At)
		require.Equal(t, "cut off", h.Operations[1].Note)
		requireRight(t, h)
	})
}

// What has not ended has an unknown outcome, and its answer, which may be half filled in, is not looked at.
func TestRecorderPending(t *testing.T) {
	r := NewRecorder(Limits{})
	p := r.Started(Writer, "a")
	c, err := r.Begin(Operation{Process: p, Append: &Append{Records: []KeyValue{{"k", "v"}}}})
	require.NoError(t, err)
	d, err := r.Begin(Operation{Process: p, Scan: &Scan{Key: "k"}})
	require.NoError(t, err)
	c.Append.First = 7
	d.Scan.Records = []Record{{7, 0, "x"}}
	h := r.History()
	require.Zero(t, h.Operations[0].Append.First)
	require.Empty(t, h.Operations[1].Scan.Records)
	h.Final = &Final{}
	requireRight(t, h)
	h.Final = &Final{Frontier: 8, Records: map[string][]Record{"k": {{7, 0, "v"}}}}
	requireRight(t, h)
}

func TestRecorderBounds(t *testing.T) {
	r := NewRecorder(Limits{Operations: 3, Records: 4})
	p := r.Started(Writer, "a")
	two := []KeyValue{{"k", "v"}, {"k", "w"}}
	_, err := r.Begin(Operation{Process: p, Append: &Append{Records: two}})
	require.NoError(t, err)
	_, err = r.Begin(Operation{Process: p, Append: &Append{Records: append(two, two...)}})
	require.ErrorIs(t, err, ErrFull)

	c, err := r.Begin(Operation{Process: p, Scan: &Scan{Key: "k"}})
	require.NoError(t, err)
	c.Scan.Records = make([]Record, 3)
	require.ErrorIs(t, c.End(OK, nil), ErrFull)
	op := r.History().Operations[1]
	require.Equal(t, Unknown, op.Outcome)
	require.Empty(t, op.Scan.Records)

	f, err := r.Begin(Operation{Process: p, Follow: &Follow{Streams: []Stream{{Key: "k"}}}})
	require.NoError(t, err)
	require.NoError(t, f.Deliver(Item{Key: "k"}))
	require.ErrorIs(t, f.Deliver(Item{Key: "k"}), ErrFull)
	require.NoError(t, f.End(OK, nil))
	require.Len(t, r.History().Operations[2].Follow.Items, 1)

	_, err = r.Begin(Operation{Process: p, Count: &Count{}})
	require.ErrorIs(t, err, ErrFull)
	operations, records := r.Recorded()
	require.Equal(t, []int{3, 4}, []int{operations, records})
}

// Many goroutines record at once, while the history is read. Run with -race.
func TestRecorderConcurrent(t *testing.T) {
	const goroutines, each = 8, 50
	r := NewRecorder(Limits{})
	p := r.Started(Writer, "a")
	var wg sync.WaitGroup
	for g := range goroutines {
		wg.Go(func() {
			for i := range each {
				c, err := r.Begin(Operation{Client: fmt.Sprint(g), Process: p, Count: &Count{Key: "k"}})
				if err != nil {
					t.Error(err)
					return
				}
				c.Count.Count = uint64(i)
				if err := c.End(OK, nil); err != nil {
					t.Error(err)
				}
				r.Ready(p)
				_, _ = r.Recorded()
			}
		})
	}
	wg.Go(func() {
		for range 20 {
			for _, o := range r.History().Operations {
				if o.Outcome == Pending && o.Count.Count != 0 {
					t.Error("an answer without an outcome")
				}
			}
		}
	})
	wg.Wait()
	h := r.History()
	require.Len(t, h.Operations, goroutines*each)
	for i, o := range h.Operations {
		require.Equal(t, OK, o.Outcome)
		require.GreaterOrEqual(t, o.Return, o.Call)
		if i > 0 {
			require.GreaterOrEqual(t, o.Call, h.Operations[i-1].Call)
		}
	}
}

func TestText(t *testing.T) {
	require.Equal(t, "user/42", Text([]byte("user/42")))
	require.Empty(t, Text(nil))
	long := strings.Repeat("x", maxText)
	require.Equal(t, long, Text([]byte(long)))
	texts := map[string]bool{}
	for _, b := range []string{long + "x", long + "y", strings.Repeat("x", 1<<20), "\xff", "\xfe"} {
		text := Text([]byte(b))
		require.Less(t, len(text), maxText)
		texts[text] = true
	}
	require.Len(t, texts, 5)
}
