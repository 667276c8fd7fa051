package engine

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/internal/base"
	"github.com/annalsdb/annals/objstore"
	"github.com/annalsdb/annals/objstore/fault"
)

// readOnly is a store as a replica needs it: it answers GETs, and the test may break them. Anything
// else fails the test.
type readOnly struct {
	*fault.Store

	mu             sync.Mutex
	wal, head, all int // GETs since take
	broken         func(name string) fault.Plan
}

func newReadOnly(t *testing.T, inner objstore.Store) *readOnly {
	s := &readOnly{}
	s.Store = fault.New(inner, func(_ context.Context, op fault.Op) fault.Plan {
		if op.Kind != fault.Get {
			t.Errorf("a replica asked for %s", op)
			return fault.Refuse(objstore.ErrDenied)
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.all++
		switch {
		case strings.Contains(op.Name, "/wal/"):
			s.wal++
		case strings.HasSuffix(op.Name, "/MANIFEST"):
			s.head++
		}
		if s.broken == nil {
			return fault.Plan{}
		}
		return s.broken(op.Name)
	})
	return s
}

// breaks sets what happens to GETs from now on; nil: nothing.
func (s *readOnly) breaks(plan func(name string) fault.Plan) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.broken = plan
}

// take returns the GETs of WAL objects, of the MANIFEST, and of all since the last call.
func (s *readOnly) take() (wal, head, all int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	wal, head, all = s.wal, s.head, s.all
	s.wal, s.head, s.all = 0, 0, 0
	return wal, head, all
}

// walDown fails all GETs of WAL objects.
func walDown(name string) fault.Plan {
	if strings.Contains(name, "/wal/") {
		return fault.Refuse(fault.ErrInjected)
	}
	return fault.Plan{}
}

func allDown(string) fault.Plan { return fault.Refuse(fault.ErrInjected) }

// replicaRig is a writer and what a replica reads.
type replicaRig struct {
	t     *testing.T
	env   *base.Env
	inner objstore.Store
	store *readOnly
	db    *DB
	o     Options
}

func newReplicaRig(t *testing.T, o Options) *replicaRig {
	r := &replicaRig{t: t, env: simulatedEnv(), inner: newStore()}
	r.o = o
	r.o.Env, r.o.DisableCompaction = r.env, true
	r.store = newReadOnly(t, r.inner)
	r.db = openTest(t, r.inner, r.o)
	return r
}

func (r *replicaRig) open(o ReaderOptions) *Reader {
	r.t.Helper()
	o.Env = r.env
	reader, err := OpenReader(r.t.Context(), r.store, o)
	require.NoError(r.t, err)
	r.t.Cleanup(func() { _ = reader.Close(context.Background()) })
	return reader
}

// append appends n records of a key, each a WAL object of its own.
func (r *replicaRig) append(key string, n int) {
	r.t.Helper()
	for i := range n {
		mustAppend(r.t, r.db, record(key, fmt.Sprint(r.db.Status().Next, "-", i)))
	}
}

// same requires that the replica returns what the writer does.
func (r *replicaRig) same(reader *Reader, keys ...string) {
	r.t.Helper()
	require.Equal(r.t, r.db.Frontier(), reader.Frontier())
	for _, key := range keys {
		require.Equal(r.t, values(r.t, r.db, key, All(), ScanOptions{}), values(r.t, reader, key, All(), ScanOptions{}))
		want, err := r.db.Count(r.t.Context(), []byte(key), All())
		require.NoError(r.t, err)
		got, err := reader.Count(r.t.Context(), []byte(key), All())
		require.NoError(r.t, err)
		require.Equal(r.t, want, got)
	}
}

// after lets time pass, and what is due then be done.
func after(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}
