package fuzz

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/engine"
	"github.com/annalsdb/annals/objstore"
)

// An older MANIFEST that was put back, as from a backup, is intact, and says nothing of what came
// after it. A process that starts then knows it from what is not there any more, and a writer and Check also from the WAL
// of writers that came later. A process that ran before knows it at once.

// TestOlderManifest puts back every MANIFEST that there was. The log is refused because of what is gone,
// or it is a prefix of what it was: never with a hole, and with nothing wrong in it. Check says of each that gives less
// than the whole log that something is wrong.
func TestOlderManifest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSpecimen(t)
		refused, whole := 0, 0
		for i, head := range s.heads {
			d := s.damage(t, nil)
			d.objects[manifestName] = head
			report, err := engine.Check(t.Context(), d.objects.store(t), engine.CheckOptions{Env: simEnv()})
			require.NoError(t, err)
			db, err := engine.Open(t.Context(), d.objects.store(t), specimenOptions())
			if err != nil {
				require.ErrorIs(t, err, engine.ErrCorrupt, "MANIFEST %d", i)
				require.ErrorContains(t, err, "trees/00000000/", "MANIFEST %d", i)
				require.ErrorIs(t, report.Err(), engine.ErrCorrupt, "MANIFEST %d", i)
				refused++
				continue
			}
			end := s.prefix(t, db)
			require.True(t, end >= s.end || report.Err() != nil, "MANIFEST %d: Check finds nothing, records from %d on are lost", i, end)
			if end >= s.end {
				whole++
			}
			kill(db)
		}
		t.Logf("of %d older MANIFESTs %d are refused, %d give the whole log", len(s.heads), refused, whole)
		require.Greater(t, refused, len(s.heads)/2)
		require.Positive(t, whole)
	})
}

// prefix requires that a log is all of the specimen up to one sequence, which it returns.
func (s *specimen) prefix(t *testing.T, db *engine.DB) (end uint64) {
	got := make(map[string][]engine.Record)
	for _, key := range sweepKeys {
		recs, err := collect(db.Scan(t.Context(), []byte(key), engine.All(), engine.ScanOptions{}))
		require.NoError(t, err)
		if n := len(recs); n > 0 {
			end = max(end, recs[n-1].Sequence+1)
		}
		got[key] = recs
	}
	for _, key := range sweepKeys {
		want := s.records[key]
		for i, rec := range want {
			if rec.Sequence >= end {
				want = want[:i]
				break
			}
		}
		require.True(t, sameRecords(want, got[key]), "key %q up to %d:\n got %s\nwant %s", key, end, describe(got[key]), describe(want))
	}
	return end
}

// TestOlderManifestUnderARunningLog puts an older MANIFEST back while a writer and a replica run: nothing is built
// on it.
func TestOlderManifestUnderARunningLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSpecimen(t)
		for _, i := range []int{len(s.heads) - 1, len(s.heads) / 2, 0} {
			s.putBackUnder(t, s.heads[i])
		}
	})
}

func (s *specimen) putBackUnder(t *testing.T, head []byte) {
	store := s.damage(t, nil).objects.store(t)
	db, err := engine.Open(t.Context(), store, specimenOptions())
	require.NoError(t, err)
	defer kill(db)
	replica, err := engine.OpenReader(t.Context(), store, engine.ReaderOptions{Env: simEnv()})
	require.NoError(t, err)
	defer func() { require.NoError(t, replica.Close(context.Background())) }()
	mustAppend(t, db, "before")
	time.Sleep(time.Second)
	before := replica.Frontier()
	require.Equal(t, db.Frontier(), before)

	_, err = store.Put(t.Context(), manifestName, head, objstore.PutOptions{})
	require.NoError(t, err)
	// What is in the WAL is durable, whatever MANIFEST says: there may be one more.
	_, _ = db.Append(t.Context(), batch("after"), engine.AppendOptions{})
	require.ErrorIs(t, db.Flush(t.Context()), engine.ErrCorrupt)
	_, err = db.Append(t.Context(), batch("later"), engine.AppendOptions{})
	require.ErrorIs(t, err, engine.ErrCorrupt)
	require.Equal(t, engine.NotAppended, outcome(t, err))
	require.ErrorIs(t, db.Err(), engine.ErrCorrupt)
	time.Sleep(10 * time.Second)
	require.GreaterOrEqual(t, replica.Frontier(), before, "the frontier runs back")
	require.ErrorIs(t, replica.Ready(t.Context()), engine.ErrCorrupt)
}
