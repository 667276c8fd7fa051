package engine

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/objstore/fault"
)

// cursors lists all cursors of a log, as text.
func cursors(t *testing.T, r LogReader) string {
	t.Helper()
	var b strings.Builder
	consumers, err := r.Consumers(t.Context(), "", 0)
	require.NoError(t, err)
	for _, consumer := range consumers.Consumers {
		page, err := r.Cursors(t.Context(), consumer, CursorsOptions{})
		require.NoError(t, err)
		for _, c := range page.Cursors {
			fmt.Fprintf(&b, "%s/%s=%d ", consumer, c.Key, c.Next)
		}
	}
	return b.String()
}

func (r *replicaRig) setCursor(consumer, key string, next uint64) {
	r.t.Helper()
	_, err := r.db.SetCursors(r.t.Context(), consumer, []Cursor{{Key: []byte(key), Next: next}}, CursorOptions{Force: true})
	require.NoError(r.t, err)
}

func TestReplicaCursors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReplicaRig(t, smallOptions())
		r.append("a", 2)
		r.setCursor("c1", "a", 1)
		require.NoError(t, r.db.Flush(t.Context()))
		r.setCursor("c1", "b", 2)
		r.setCursor("c2", "a", 3)
		reader := r.open(ReaderOptions{})
		scoped := r.open(ReaderOptions{Keys: KeyRange{Start: []byte("b")}})
		require.Equal(t, "c1/a=1 c1/b=2 c2/a=3 ", cursors(t, reader))
		require.Equal(t, "c1/b=2 ", cursors(t, scoped))
		_, err := scoped.Cursors(t.Context(), "c1", CursorsOptions{Keys: [][]byte{[]byte("b"), []byte("a")}})
		require.ErrorIs(t, err, ErrOutOfRange)

		for i := range 50 {
			key := fmt.Sprint("k", i%7)
			r.append(key, 1)
			r.setCursor("c1", key, uint64(i))
			if i%5 == 0 {
				require.NoError(t, r.db.DeleteCursors(t.Context(), "c1", []byte("k3")))
			}
			if i%11 == 0 {
				require.NoError(t, r.db.DeleteCursors(t.Context(), "c2"))
			}
			if i%9 == 0 {
				require.NoError(t, r.db.Flush(t.Context()))
			}
			r.setCursor("c2", key, uint64(i))
			after(200 * time.Millisecond)
			require.Equal(t, cursors(t, r.db), cursors(t, reader))
		}
		after(2 * time.Second)
		require.NotZero(t, reader.Status().Cursors)
		require.Equal(t, r.db.Status().Cursors, reader.Status().Cursors)
		require.NotZero(t, reader.Status().StateBytes)

		require.NoError(t, reader.Close(t.Context()))
		_, err = reader.Cursors(t.Context(), "c1", CursorsOptions{})
		require.ErrorIs(t, err, ErrClosed)
	})
}

// After a jump cursors are those of the state objects that the MANIFEST names: until they are read, who asks waits.
func TestReplicaCursorsAfterAJump(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReplicaRig(t, smallOptions())
		r.append("a", 1)
		r.setCursor("c", "a", 1)
		reader := r.open(ReaderOptions{})
		require.Equal(t, "c/a=1 ", cursors(t, reader))

		noState := func(name string) fault.Plan {
			if strings.Contains(name, "/wal/") || strings.Contains(name, "/state/") {
				return fault.Refuse(fault.ErrInjected)
			}
			return fault.Plan{}
		}
		r.store.breaks(noState)
		r.append("a", 1)
		r.setCursor("c", "a", 2)
		r.setCursor("d", "b", 7)
		require.Equal(t, "c/a=1 ", cursors(t, reader), "as of what was read")
		require.NoError(t, r.db.Flush(t.Context()))
		after(2 * time.Second)
		require.Len(t, values(t, reader, "a", All(), ScanOptions{}), 2, "records are readable")
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := reader.Cursors(ctx, "c", CursorsOptions{})
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorIs(t, err, fault.ErrInjected)
		after(6 * time.Second)
		require.ErrorIs(t, reader.Ready(t.Context()), fault.ErrInjected)

		got := make(chan string, 1)
		go func() { got <- cursors(t, reader) }()
		synctest.Wait()
		require.Empty(t, got)
		// Meanwhile other objects come into force.
		r.setCursor("c", "a", 3)
		r.append("a", 1)
		require.NoError(t, r.db.Flush(t.Context()))
		_, err = r.db.CollectGarbage(t.Context())
		require.NoError(t, err)
		r.setCursor("c", "a", 4)
		after(2 * time.Second)
		r.store.breaks(nil)
		require.Contains(t, []string{"c/a=3 d/b=7 ", "c/a=4 d/b=7 "}, <-got)
		after(2 * time.Second)
		require.Equal(t, cursors(t, r.db), cursors(t, reader))
		r.same(reader, "a")
		require.NoError(t, reader.Ready(t.Context()))

		// Damage of a state object stops the tail, and is not taken for an empty state.
		r.store.breaks(func(name string) fault.Plan {
			if strings.Contains(name, "/wal/") {
				return fault.Refuse(fault.ErrInjected)
			}
			if strings.Contains(name, "/state/") {
				return fault.FlipByte(40)
			}
			return fault.Plan{}
		})
		r.append("a", 1)
		require.NoError(t, r.db.Flush(t.Context()))
		after(10 * time.Second)
		require.ErrorIs(t, reader.Ready(t.Context()), ErrCorrupt)
		r.store.breaks(nil)
		after(2 * time.Second)
		require.Equal(t, cursors(t, r.db), cursors(t, reader))
	})
}
