package fuzz

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/annalsdb/annals/engine"
	"github.com/annalsdb/annals/internal/base"
	"github.com/annalsdb/annals/objstore"
	"github.com/annalsdb/annals/objstore/fault"
	"github.com/annalsdb/annals/objstore/mem"
)

// Replicas that read along while a random history goes on. What each returns, at every moment,
// must be a prefix of the model.

// bucket is a store that the history can replace, as when a machine that takes over works on with what
// is there: what a replica had asked the old one for is then lost.
type bucket struct {
	objstore.Store // of the moment; nil while it is replaced. Reads only

	mu         sync.Mutex
	generation int
}

func (b *bucket) now() (objstore.Store, int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.Store, b.generation
}

func (b *bucket) replace(store objstore.Store) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.Store = store
	b.generation++
}

// Get implements objstore.Store.
func (b *bucket) Get(ctx context.Context, name string, o objstore.GetOptions) (objstore.Object, error) {
	store, generation := b.now()
	if store == nil {
		return objstore.Object{}, errNetwork
	}
	obj, err := store.Get(ctx, name, o)
	if _, now := b.now(); now != generation {
		return objstore.Object{}, errNetwork
	}
	return obj, err
}

// String implements objstore.Store.
func (b *bucket) String() string { return "bucket:" }

// replica is one, and what was last seen of it.
type replica struct {
	*engine.Reader
	o      engine.ReaderOptions
	bucket *bucket

	mu      sync.Mutex // guards what follows
	trouble string     // what happens to its requests
	n       int        // of requests
	wrote   error      // it asked for something else than objects
	random  *rand.Rand

	frontier, first uint64 // last seen
}

// troubles of a replica's requests. All but "slow" make some fail.
var troubles = []string{"", "", "slow", "no WAL", "no MANIFEST", "down", "some fail", "some are cut", "some are damaged"}

func (r *replica) hook(_ context.Context, op fault.Op) fault.Plan {
	r.mu.Lock()
	defer r.mu.Unlock()
	if op.Kind != fault.Get {
		r.wrote = fmt.Errorf("a replica asked for %s", op)
		return fault.Refuse(r.wrote)
	}
	r.n++
	some := r.random.IntN(3) == 0
	_, _, _, isWAL := base.ParseWALName(op.Name)
	switch {
	case r.trouble == "down", r.trouble == "no WAL" && isWAL, r.trouble == "no MANIFEST" && op.Name == manifestName, r.trouble == "some fail" && some:
		return fault.Refuse(errNetwork)
	case r.trouble == "some are cut" && some:
		return fault.Truncate(r.random.IntN(200))
	case r.trouble == "some are damaged" && some:
		return fault.FlipByte(r.random.IntN(1 << 20))
	case r.trouble == "slow":
		half := time.Duration(r.random.Int64N(int64(2 * time.Second)))
		pause := func(ctx context.Context) error {
			select {
			case <-time.After(half):
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		return fault.Plan{Before: pause, After: pause}
	}
	return fault.Plan{}
}

func (r *replica) setTrouble(what string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.trouble = what
}

// begin is what a read that begins now may observe.
func (r *replica) begin() moment { return moment{r.FirstSequence(), r.Frontier()} }

// shown is the sequence below which replicas have shown what there is: that must never be lost.
func (m *machine) shown() (end uint64) {
	for _, r := range m.replicas {
		end = max(end, r.Frontier())
	}
	return end
}

func (m *machine) detachReplicas() {
	for _, r := range m.replicas {
		r.bucket.replace(nil)
	}
}

func (m *machine) attachReplicas() {
	for _, r := range m.replicas {
		r.bucket.replace(m.rig.mem)
	}
}

// openReplica opens one more, or closes one.
func (m *machine) openReplica(t *rapid.T) {
	if len(m.replicas) == 2 {
		i := rapid.IntRange(0, 1).Draw(t, "closed")
		require.NoError(t, m.replicas[i].Close(context.Background()))
		m.replicas = slices.Delete(m.replicas, i, i+1)
		return
	}
	r := &replica{bucket: &bucket{Store: m.rig.mem}, random: rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "troubles"), 0))}
	r.o = engine.ReaderOptions{
		Keys:         rapid.SampledFrom([]engine.KeyRange{{}, {}, {Start: []byte("a"), End: []byte("b")}, {Start: []byte("p")}}).Draw(t, "keys"),
		PollInterval: rapid.SampledFrom([]time.Duration{0, 0, 5 * time.Millisecond, 3 * time.Second}).Draw(t, "poll interval"),
		TailBytes:    rapid.SampledFrom([]int64{0, 0, 1, 6 << 10, 30 << 10}).Draw(t, "tail bytes"),
		CacheBytes:   rapid.SampledFrom([]int64{0, 1}).Draw(t, "cache bytes"),
		StaleAfter:   min(m.o.StaleAfter, engine.DefaultStaleAfter),
		Env:          m.env(),
	}
	var err error
	r.Reader, err = engine.OpenReader(context.Background(), fault.New(r.bucket, r.hook), r.o)
	require.NoError(t, err)
	m.replicas = append(m.replicas, r)
}

func (m *machine) closeReplicas() {
	for _, r := range m.replicas {
		_ = r.Close(context.Background()) // or closed already
	}
	m.replicas = nil
}

func (m *machine) drawReplica(t *rapid.T) *replica {
	if len(m.replicas) == 0 {
		t.Skip("no replica")
	}
	return rapid.SampledFrom(m.replicas).Draw(t, "replica")
}

func (m *machine) replicaTrouble(t *rapid.T) {
	m.drawReplica(t).setTrouble(rapid.SampledFrom(troubles).Draw(t, "trouble"))
}

// whole is the model with what was dropped.
func (m *machine) whole() *model {
	return &model{
		recs: slices.Concat(m.model.gone, m.model.recs), ends: slices.Concat(m.model.goneEnds, m.model.ends), next: m.model.next,
	}
}

// allowed requires that a read of the replica succeeded, or had a reason not to, and reports
// whether it did.
func (r *replica) allowed(t *rapid.T, key []byte, err error) bool {
	if !r.o.Keys.Contains(key) {
		require.ErrorIs(t, err, engine.ErrOutOfRange)
		return false
	}
	if err != nil {
		r.mu.Lock()
		defer r.mu.Unlock()
		require.True(t, r.trouble != "" || errors.Is(err, engine.ErrStale), "read failed on a store that works: %v", err)
	}
	return err == nil
}

func (m *machine) replicaScan(t *rapid.T) {
	r := m.drawReplica(t)
	m.replicaScanAgrees(t, r, drawKey(t), m.drawRange(t), engine.ScanOptions{
		Limit:    rapid.SampledFrom([]int{0, 0, 1, 7}).Draw(t, "limit"),
		MaxBytes: rapid.SampledFrom([]int64{0, 0, 1, 300}).Draw(t, "max bytes"),
		Last:     rapid.SampledFrom([]int{0, 0, 0, 2, 100}).Draw(t, "last"),
	})
}

// replicaScanAgrees scans and compares with what there was at one of the moments that the scan may
// have observed.
func (m *machine) replicaScanAgrees(t *rapid.T, r *replica, key []byte, rng engine.Range, o engine.ScanOptions) {
	before := r.begin()
	it := r.Scan(context.Background(), key, rng, o)
	got, err := collect(it)
	if !r.allowed(t, key, err) {
		return
	}
	now, whole := r.begin(), m.whole()
	if o.Last == 0 {
		whole.passed = notAmong(got, now.first)
	}
	for _, whole.first = range whole.frontiers(before.first, now.first) {
		for _, frontier := range whole.frontiers(before.frontier, now.frontier) {
			want, next := whole.scan(string(key), rng, frontier, o)
			if next == it.Next() && agree(got, want) {
				return
			}
		}
	}
	whole.first = before.first
	want, next := whole.scan(string(key), rng, now.frontier, o)
	t.Fatalf("replica's scan of %q in %v with %+v, %+v to %+v:\n got %s, next %d\nwant %s, next %d",
		key, rng, o, before, now, describe(got), it.Next(), describeModel(want), next)
}

func (m *machine) replicaCount(t *rapid.T) {
	r, key, rng := m.drawReplica(t), drawKey(t), m.drawRange(t)
	before := r.begin()
	n, err := r.Count(context.Background(), key, rng)
	if !r.allowed(t, key, err) {
		return
	}
	now, whole := r.begin(), m.whole()
	for _, whole.first = range whole.frontiers(before.first, now.first) {
		for _, frontier := range whole.frontiers(before.frontier, now.frontier) {
			if n == whole.count(string(key), rng, frontier) {
				return
			}
		}
	}
	t.Fatalf("replica's count of %q in %v: %d, %+v to %+v", key, rng, n, before, now)
}

func (m *machine) replicaKeys(t *rapid.T) {
	r := m.drawReplica(t)
	o := engine.KeysOptions{
		Prefix: []byte(rapid.SampledFrom([]string{"", "", "a", "p", "\xff"}).Draw(t, "prefix")),
		Limit:  rapid.SampledFrom([]int{0, 1, 3}).Draw(t, "limit"),
	}
	if rapid.Bool().Draw(t, "after") {
		o.After = drawKey(t)
	}
	before := r.begin()
	page, err := r.Keys(context.Background(), o)
	keys, lowest := r.o.Keys, o.Prefix // the lowest that has the prefix and can be in the range
	if bytes.Compare(lowest, keys.Start) < 0 {
		lowest = keys.Start
	}
	if !bytes.HasPrefix(lowest, o.Prefix) || keys.End != nil && bytes.Compare(lowest, keys.End) >= 0 {
		require.ErrorIs(t, err, engine.ErrOutOfRange)
		return
	}
	if !r.allowed(t, keys.Start, err) {
		return
	}
	now, whole := r.begin(), m.whole()
	if before.first != now.first {
		return // a part of the keys may be gone
	}
	whole.first = now.first
	whole.recs = slices.DeleteFunc(whole.recs, func(rec *modelRecord) bool { return !r.o.Keys.Contains([]byte(rec.key)) })
	one := []engine.SegmentInfo{{ID: 1}}
	for _, frontier := range whole.frontiers(before.frontier, now.frontier) {
		want, more := whole.keys(o, frontier, one)
		if more == page.More && slices.EqualFunc(want, page.Keys, func(a string, b []byte) bool { return a == string(b) }) {
			return
		}
	}
	want, more := whole.keys(o, now.frontier, one)
	t.Fatalf("replica's keys of %+v in %v: got %q, more %v; want %q, more %v, %+v to %+v", o, r.o.Keys, page.Keys, page.More, want, more, before, now)
}

// replicaSegments requires that segments are as the model has them, in the replica's own window.
func (m *machine) replicaSegments(t *rapid.T) {
	r := m.drawReplica(t)
	var page engine.SegmentsPage
	var err error
	m.unchanged(t, func() uint64 { s := r.Status(); return s.ManifestVersion + s.WALObjectsRead }, func() {
		page, err = r.Segments(context.Background(), engine.SegmentsOptions{})
	})
	if err != nil {
		r.allowed(t, r.o.Keys.Start, err)
		return
	}
	require.False(t, page.More)
	records, sizes := map[uint32]uint64{}, map[uint32]uint64{}
	now, whole := r.begin(), m.whole()
	require.Equal(t, now.first, page.Segments[0].Start)
	for _, rec := range whole.recs[whole.upTo(now.first):whole.upTo(now.frontier)] {
		id := segmentOf(page.Segments, rec.seq).ID
		records[id]++
		sizes[id] += uint64(len(rec.key) + len(rec.value))
	}
	for _, s := range page.Segments {
		require.Equal(t, records[s.ID], s.Records, "%+v of %+v", s, page.Segments)
		require.Equal(t, sizes[s.ID], s.Bytes, "%+v of %+v", s, page.Segments)
	}
}

// replicaWait waits for what is there already.
func (m *machine) replicaWait(t *rapid.T) {
	r := m.drawReplica(t)
	now, whole := r.begin(), m.whole()
	for _, rec := range whole.recs[:whole.upTo(now.frontier)] {
		if rec.seq >= now.first && r.o.Keys.Contains([]byte(rec.key)) {
			ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
			defer cancel()
			err := r.Wait(ctx, []byte(rec.key), engine.Between(rec.seq, rec.seq+1))
			r.allowed(t, []byte(rec.key), err)
			return
		}
	}
}

// cursorChange is a cursor that was set, durably, when the log held so many records.
type cursorChange struct {
	consumer, key string
	next          uint64
	records       int
}

var consumers = []string{"c1", "c2"}

// setCursor sets a cursor at the writer. Where its outcome is not known, cursors are not compared any more.
func (m *machine) setCursor(t *rapid.T) {
	c := cursorChange{
		consumer: rapid.SampledFrom(consumers).Draw(t, "consumer"), key: string(drawKey(t)), next: rapid.Uint64Range(1, 1000).Draw(t, "next"),
		records: len(m.model.gone) + len(m.model.recs),
	}
	if m.o.MaxKeyBytes > 0 && len(c.key) > m.o.MaxKeyBytes {
		return
	}
	ctx, cancel := m.patient()
	defer cancel()
	cursors := []engine.Cursor{{Key: []byte(c.key), Next: c.next}}
	_, err := m.db.SetCursors(ctx, c.consumer, cursors, engine.CursorOptions{Force: true})
	if !m.settledState(t, err) {
		return
	}
	m.ledger.change(err == nil, func(s *smallModel) { s.set(c.consumer, cursors, true) })
	m.cursors, m.unsure = append(m.cursors, c), m.unsure || err != nil
}

// replicaCursors requires that the cursors are those after some of the changes: all that came before
// the records that were readable, none that came behind those that are not.
func (m *machine) replicaCursors(t *rapid.T) {
	r := m.drawReplica(t)
	before := m.whole().upTo(r.Frontier())
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	consumer := rapid.SampledFrom(consumers).Draw(t, "consumer")
	page, err := r.Cursors(ctx, consumer, engine.CursorsOptions{})
	if !r.allowed(t, r.o.Keys.Start, err) || m.unsure {
		return
	}
	now := m.whole().upTo(r.Frontier())
	got := map[string]uint64{}
	for _, c := range page.Cursors {
		got[string(c.Key)] = c.Next
	}
	state := map[string]uint64{}
	for i := 0; ; i++ {
		last := i == len(m.cursors)
		if (last || m.cursors[i].records >= before) && maps.Equal(got, state) {
			return
		}
		if last || m.cursors[i].records > now {
			break
		}
		if c := m.cursors[i]; c.consumer == consumer && r.o.Keys.Contains([]byte(c.key)) {
			state[c.key] = c.next
		}
	}
	t.Fatalf("replica's cursors of %s are %v with %d to %d records readable, changes %v", consumer, got, before, now, m.cursors)
}

// replicaInvariants hold after every operation.
func (m *machine) replicaInvariants(t *rapid.T) {
	m.invariants(t)
	for _, r := range m.replicas {
		require.NoError(t, r.Err())
		require.NoError(t, r.wrote)
		now := r.begin()
		require.GreaterOrEqual(t, now.frontier, r.frontier, "the frontier fell")
		require.GreaterOrEqual(t, now.first, r.first, "what was dropped came back")
		r.frontier, r.first = now.frontier, now.first
		require.LessOrEqual(t, now.frontier, m.db.Status().Next)
		flushed := r.Status().FlushedEnd // first: both may move at any moment
		require.LessOrEqual(t, flushed, r.Frontier())
	}
}

// replicasCatchUp lets time pass on a store that works: replicas must then have everything.
func (m *machine) replicasCatchUp(t *rapid.T) {
	m.weather.calm()
	for _, r := range m.replicas {
		r.setTrouble("")
	}
	m.append(t)
	ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
	defer cancel()
	if m.model.next > 0 {
		require.NoError(t, m.db.WaitDurable(ctx, m.model.next-1))
	}
	full := slices.ContainsFunc(m.replicas, func(r *replica) bool { return r.o.TailBytes != 0 })
	if full {
		require.NoError(t, m.db.Flush(ctx))
	}
	time.Sleep(3 * time.Minute)
	for _, r := range m.replicas {
		require.NoError(t, r.Ready(context.Background()))
		require.Equal(t, m.model.upTo(m.db.Frontier()), m.model.upTo(r.Frontier()), "%+v", r.Status())
		for range 3 { // retention may drop something at this moment, which the replica sees within a second
			if m.db.FirstSequence() == r.FirstSequence() {
				break
			}
			time.Sleep(1500 * time.Millisecond)
		}
		require.Equal(t, m.db.FirstSequence(), r.FirstSequence())
		require.Zero(t, r.Status().LagTime)
		for _, consumer := range consumers {
			want, err := m.db.Cursors(ctx, consumer, engine.CursorsOptions{})
			require.NoError(t, err)
			want.Cursors = slices.DeleteFunc(want.Cursors, func(c engine.Cursor) bool { return !r.o.Keys.Contains(c.Key) })
			got, err := r.Cursors(ctx, consumer, engine.CursorsOptions{})
			require.NoError(t, err)
			require.Equal(t, fmt.Sprint(want.Cursors), fmt.Sprint(got.Cursors))
		}
		for _, key := range modelKeys {
			m.replicaScanAgrees(t, r, []byte(key), engine.All(), engine.ScanOptions{})
		}
	}
}

// TestRandomHistoriesOfReplicas lets replicas read along while a writer appends, flushes, ages, crashes
// and is passed by others, and the store fails each of them.
func TestRandomHistoriesOfReplicas(t *testing.T) {
	setRuns(t, defaultRuns)
	sets := optionSets()
	names := make([]string, 0, len(sets))
	for name := range sets {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range append(names, anyOptions) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rapid.Check(t, func(t *rapid.T) {
				rapid.SyncTest(t, func(t *rapid.T) { replicaHistory(t, optionsOf(sets, names, name)) })
			})
		})
	}
}

func replicaHistory(t *rapid.T, options func(*rapid.T) engine.Options) {
	m := &machine{model: &model{}, ledger: newLedger(), options: options}
	defer m.killAll()
	defer m.closeReplicas()
	m.seed = rand.NewChaCha8([32]byte(rapid.SliceOfN(rapid.Byte(), 32, 32).Draw(t, "randomness")))
	m.moveTo(t, rigOn(nil, mem.New(mem.Options{})))
	m.open(t, 0, true)
	m.openReplica(t)
	t.Repeat(map[string]func(*rapid.T){
		"append":          m.append,
		"append more":     m.append,
		"append again":    m.append,
		"flush":           m.flush,
		"time passes":     m.timePasses,
		"more time":       m.timePasses,
		"store fault":     m.storeFault,
		"store is back":   m.storeBack,
		"clean reopen":    m.reopen,
		"crash":           m.crash,
		"takeover":        m.takeover,
		"collect":         m.collect,
		"compactor":       m.compactor,
		"replica":         m.openReplica,
		"replica trouble": m.replicaTrouble,
		"scan there":      m.replicaScan,
		"scan there too":  m.replicaScan,
		"count there":     m.replicaCount,
		"keys there":      m.replicaKeys,
		"wait there":      m.replicaWait,
		"segments there":  m.replicaSegments,
		"set a cursor":    m.setCursor,
		"cursors there":   m.replicaCursors,
		"":                m.replicaInvariants,
	})
	m.replicasCatchUp(t)
	m.readAll(t)
}
