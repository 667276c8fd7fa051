package history

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// busyHistory is one key with n appends, one each ten ticks, and as many reads. Each takes up to so many ticks before
// and after it takes effect. Some appends have no answer.
func busyHistory(n, length int) *scene {
	rng := rand.New(rand.NewPCG(1, 1))
	s := newScene()
	s.Operations = make([]Operation, 0, 2*n)
	s.Final.Frontier = uint64(n)
	recs := make([]Record, n)
	for i := range n {
		at := 100 + 10*i // when it takes effect
		recs[i] = Record{Sequence: uint64(i), Timestamp: 1000, Value: fmt.Sprint("v", i)}
		o := s.append(at-rng.IntN(length), at+1+rng.IntN(length), uint64(i), "k="+recs[i].Value)
		if rng.IntN(10) == 0 {
			o.Outcome = Unknown
		}
		at += rng.IntN(10)
		s.scan(at-rng.IntN(length), at+1+rng.IntN(length), "k", uint64(i), uint64(i+1), fmt.Sprint(i, "=", recs[i].Value))
	}
	s.Final.Records["k"] = recs
	return s
}

// A long history of one key is decided in seconds, and what is wrong in its last piece is found.
func TestLongHistory(t *testing.T) {
	s := busyHistory(30_000, 20)
	began := time.Now()
	requireRight(t, &s.History)
	t.Logf("%d operations on one key in %v", len(s.Operations), time.Since(began))
	s.count(1_000_000, 1_000_001, "k", 29_999)
	requireBroken(t, &s.History, RuleLinear, RuleStale)
}

// What takes too long is said to be undecided, and is no success.
func TestUndecided(t *testing.T) {
	s := busyHistory(100, 20)
	c := Check(&s.History, Options{Timeout: time.Nanosecond})
	require.Equal(t, []string{"k"}, c.Undecided)
	require.ErrorIs(t, c.Err(), ErrUndecided)
	require.Empty(t, c.Violations)
}
