package bench

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/engine"
	"github.com/annalsdb/annals/objstore"
	"github.com/annalsdb/annals/objstore/mem"
	"github.com/annalsdb/annals/objstore/metered"
	"github.com/annalsdb/annals/objstore/s3sim"
)

// A minute of 10 PUTs and 100 GETs a second, and 1 GiB more in a store of 100 GiB. By hand: 30 days have 43,200
// minutes; 600 PUTs x 43,200 = 25,920,000 at $0.005 for 1,000 = $129.60; 6,000 GETs x 43,200 = 259,200,000 at
// $0.0004 for 1,000 = $103.68; 100 GiB x $0.023 = $2.30; 43,200 GiB x $0.023 = $993.60.
func TestCostByHand(t *testing.T) {
	u := Usage{Seconds: 60, StoredBytes: 100 << 30, AddedBytes: 1 << 30}
	u.Requests.Ops[metered.Put].Results[metered.OK] = 600
	u.Requests.Ops[metered.Get].Results[metered.OK] = 6000
	c, ok := ListPrices.PerMonth(u)
	require.True(t, ok)
	require.InDelta(t, 25_920_000, c.Puts, 1e-3)
	require.InDelta(t, 259_200_000, c.Gets, 1e-3)
	require.InDelta(t, 129.60, c.PutDollars, 1e-9)
	require.InDelta(t, 103.68, c.GetDollars, 1e-9)
	require.InDelta(t, 2.30, c.StorageDollars, 1e-9)
	require.InDelta(t, 43_200<<30, c.AddedBytes, 1)
	require.InDelta(t, 993.60, c.AddedDollars, 1e-9)
	require.InDelta(t, 235.58, c.Dollars, 1e-9)
	var said text
	c.write(&said)
	require.Equal(t, [][2]string{
		{"cost of a month like this", "$235.58 (S3 Standard, us-east-1, list prices of 2025)"},
		{"  PUT and LIST", "$129.60 for 25920000"},
		{"  GET", "$103.68 for 259200000"},
		{"  storage", "$2.30 for 100.0 GiB"},
		{"  storage that it adds", "42.2 TiB a month, $993.60 in each month in which they are kept"},
	}, said.rows)

	encoded, err := json.Marshal(c)
	require.NoError(t, err)
	var back Cost
	require.NoError(t, json.Unmarshal(encoded, &back))
	require.Equal(t, c, back)

	_, ok = ListPrices.PerMonth(Usage{})
	require.False(t, ok)
}

func TestBilledCalls(t *testing.T) {
	var s metered.Stats
	for op := range metered.Op(metered.NumOps) {
		s.Ops[op].Results[metered.OK] = 1 << (2 * op)
		s.Ops[op].Results[metered.Precondition] = 2 << (2 * op)
	}
	puts, gets := billed(s)
	require.Equal(t, uint64(3*(1<<(2*metered.Put)|1<<(2*metered.List)|1<<(2*metered.Time)|1<<(2*metered.AbortUploads))), puts)
	require.Equal(t, uint64(3*(1<<(2*metered.Get)|1<<(2*metered.Head))), gets)
}

// What was sent counts instead of the calls, where it is known; server errors are not billed.
func TestBilledRequests(t *testing.T) {
	var s metered.Stats
	s.Ops[metered.Put].Results[metered.OK] = 1_000_000
	count := [objstore.NumAnswers]uint64{
		objstore.AnswerOK: 1, objstore.AnswerRefused: 10, objstore.AnswerThrottled: 100, objstore.AnswerFailed: 1000, objstore.AnswerNone: 10_000,
	}
	const each = 10_011
	for _, c := range []struct {
		operation  string
		puts, gets uint64
	}{
		{"PutObject", each, 0}, {"ListObjectsV2", each, 0}, {"CreateMultipartUpload", each, 0}, {"UploadPart", each, 0},
		{"CompleteMultipartUpload", each, 0}, {"ListMultipartUploads", each, 0}, {"other", each, 0},
		{"GetObject", 0, each}, {"HeadObject", 0, each},
		{"DeleteObjects", 0, 0}, {"AbortMultipartUpload", 0, 0},
	} {
		s.Sent = []objstore.SentRequests{{Operation: c.operation, Count: count}}
		puts, gets := billed(s)
		require.Equal(t, []uint64{c.puts, c.gets}, []uint64{puts, gets}, c.operation)
	}
}

// A large object of a simulated S3 costs the requests of its parts.
func TestBilledParts(t *testing.T) {
	o := s3sim.Default()
	o.Put = s3sim.Latency{P50: time.Microsecond, P99: time.Microsecond}
	o.PartSize, o.Bandwidth = 1000, 1<<40
	store := metered.New(s3sim.New(mem.New(mem.Options{}), o), metered.Options{})
	_, err := store.Put(t.Context(), "n", make([]byte, 2500), objstore.PutOptions{})
	require.NoError(t, err)
	puts, gets := billed(store.Stats())
	require.Equal(t, []uint64{5, 0}, []uint64{puts, gets})
}

// A report has the cost of what its store was asked for while it measured, when that would cost anything.
func TestCostOfARun(t *testing.T) {
	o := s3sim.Default()
	o.Put = s3sim.Latency{P50: time.Millisecond, P99: time.Millisecond}
	e, err := OpenEmbedded(t.Context(), s3sim.New(mem.New(mem.Options{}), o), engine.Options{FlushInterval: time.Millisecond})
	require.NoError(t, err)
	w := NewIngest(IngestOptions{
		BatchOptions: BatchOptions{
			KeyOptions: KeyOptions{Keys: 10}, ValueOptions: ValueOptions{Size: 100, Compress: 2}, Records: 10,
		},
		Appenders: 1, InFlight: 1, Ack: engine.Durable, Total: 20_000,
	})
	require.Empty(t, w.Faults())
	rep := Execute(t.Context(), e, w, Options{Costs: true})
	require.Empty(t, rep.Failures)
	require.NotNil(t, rep.Cost)
	puts, gets := billed(rep.stats)
	require.GreaterOrEqual(t, puts, uint64(10))
	seconds := month.Seconds()
	require.InEpsilon(t, float64(puts)*seconds/rep.Seconds, rep.Cost.Puts, 1e-9)
	require.InDelta(t, float64(gets)*seconds/rep.Seconds, rep.Cost.Gets, 1e-3)
	var said strings.Builder
	require.NoError(t, rep.WriteText(&said))
	require.Contains(t, said.String(), "cost of a month like this")

	require.Nil(t, Execute(t.Context(), e, w, Options{}).Cost, "nobody charges for it")
	require.NoError(t, e.Close(t.Context()))
}
