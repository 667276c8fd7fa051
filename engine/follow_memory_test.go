package engine

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
)

// heapOf returns the heap that what f makes holds, goroutines aside.
func heapOf(f func() any) (bytes int64) {
	var before, after runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&before)
	made := f()
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&after)
	runtime.KeepAlive(made)
	return int64(after.HeapAlloc) - int64(before.HeapAlloc)
}

// I9: what a follower holds while it waits.
func TestFollowerMemory(t *testing.T) {
	const n = 100_000
	l := newTip()
	perKey := heapOf(func() any {
		streams := make([]Stream, n)
		for i := range streams {
			streams[i] = Stream{Key: followKey(i)}
		}
		f, err := l.Follow(t.Context(), streams...)
		require.NoError(t, err)
		return f
	}) / n
	t.Log("bytes a key of a shared follower:", perKey)
	require.Less(t, perKey, int64(300))

	l = newTip()
	each := heapOf(func() any {
		all := make([]*Follower, n/10)
		for i := range all {
			f, err := l.Follow(t.Context(), Stream{Key: followKey(i)})
			require.NoError(t, err)
			all[i] = f
		}
		return all
	}) / (n / 10)
	t.Log("bytes a follower of one key:", each)
	require.Less(t, each, int64(500))
}

// A prefix that a slow follower watches holds a bounded number of keys, whatever is appended, and returns
// all of them later.
func TestSlowPrefixIsBounded(t *testing.T) {
	const keys = 3 * maxPendingKeys
	l := newTip()
	f, err := l.Follow(t.Context(), Stream{Prefix: true})
	require.NoError(t, err)
	defer f.Close()
	for i := 0; i < keys; i += 1024 {
		recs := make([]Record, 1024)
		for k := range recs {
			recs[k] = record(string(followKey(i+k)), "v")
		}
		l.commit(recs)
	}
	p := f.subs[0].prefix
	require.Len(t, p.pending, maxPendingKeys)
	require.LessOrEqual(t, p.bytes, maxPendingBytes)
	require.Zero(t, f.Cursor())
	got := map[string]bool{}
	for len(got) < keys {
		for _, rec := range mustNext(t, f, FollowRead{}) {
			require.False(t, got[string(rec.Key)], "%s twice", rec.Key)
			got[string(rec.Key)] = true
		}
	}
	require.False(t, f.subs[0].state == ready && f.subs[0].prefix.due())
	require.Nil(t, p.pending)
	l.commit([]Record{record("new", "v")})
	require.Len(t, mustNext(t, f, FollowRead{}), 1)
	require.Equal(t, l.next, f.Cursor())
}
