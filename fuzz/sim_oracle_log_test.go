package fuzz

import (
	"math"
	"slices"
	"sort"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/annalsdb/annals/engine"
	"github.com/annalsdb/annals/internal/base"
	"github.com/annalsdb/annals/manifest"
	"github.com/annalsdb/annals/objstore/fault"
	walfile "github.com/annalsdb/annals/wal"
)

// simLog is what the log consists of by its WAL: every object that was sent, in which order objects became part of the
// log, and all records of it, those too that retention has dropped since. An object is part of the log, for ever, from the moment at which
// it and all earlier ones of its epoch are in the bucket, if no fence came first.
type simLog struct {
	o       *oracle
	epochs  map[uint64]*simEpoch
	named   map[uint64]*simRecord // by sequence: what it names, for ever (I3); of records that were lost too
	objects []*simObject          // of the log, in order
	batches []*simBatch           // of the log, in order
	records []*simRecord          // of the log, in order
	bytes   []int64               // of the first i records
	keys    map[string][]*simRecord
	fences  map[manifest.Pos]bool // that landed, late ones too
	end     uint64                // behind the last of objects
	lastAt  manifest.Pos
	lastTS  int64
	segment uint32
}

// simEpoch is what a writer of this epoch did.
type simEpoch struct {
	owner  [16]byte // by the MANIFEST
	begins uint64   // its first sequence
	limit  uint64   // where the next epoch begins
	sent   map[uint64]*simObject
	end    uint64                // behind the last sequence that it sent
	landed map[uint64]*simObject // behind a gap
	prefix uint64                // objects 1 to prefix are part of the log
	fence  uint64                // 0: none
}

// simObject is a record object of the WAL.
type simObject struct {
	walfile.Header
	sum     uint64 // of its bytes
	batches []*simBatch
	changes []walfile.Entry // of the small state
	step    int             // in which it became part of the log
}

// count returns the number of its records.
func (x *simObject) count() uint64 { return x.End - x.First }

// simBatch is a batch of an object.
type simBatch struct {
	first, end uint64
	timestamp  int64
	epoch      uint64
	records    []*simRecord
	calls      []*simCall // that it may be
}

// simRecord is what a sequence names.
type simRecord struct {
	key, value string
	seq        uint64
	timestamp  int64
	live       bool // it is part of the log
	batch      *simBatch
}

func (r *simRecord) is(rec *engine.Record) bool {
	return rec.Sequence == r.seq && rec.Timestamp == r.timestamp && string(rec.Key) == r.key && string(rec.Value) == r.value
}

func newSimLog(o *oracle) *simLog {
	return &simLog{
		o: o, epochs: map[uint64]*simEpoch{}, named: map[uint64]*simRecord{}, keys: map[string][]*simRecord{},
		fences: map[manifest.Pos]bool{}, bytes: []int64{0}, lastTS: math.MinInt64,
	}
}

// open begins an epoch, by a MANIFEST.
func (l *simLog) open(epoch uint64, owner [16]byte, begins uint64) {
	for _, e := range l.epochs {
		e.limit = min(e.limit, begins)
		if e.end > begins {
			l.o.broke("I3: epoch %d begins at sequence %d, and one before it has sent all below %d", epoch, begins, e.end)
		}
	}
	if begins < l.end {
		l.o.broke("I3: epoch %d begins at sequence %d, the log ends at %d", epoch, begins, l.end)
	}
	l.epochs[epoch] = &simEpoch{
		owner: owner, begins: begins, limit: base.MaxSequence, end: begins,
		sent: map[uint64]*simObject{}, landed: map[uint64]*simObject{},
	}
}

// sent looks at a PUT of a WAL name when it is sent.
func (l *simLog) sent(p *simProcess, op fault.Op, at manifest.Pos) {
	e := l.epochs[at.Epoch]
	switch {
	case !op.PutOptions.IfAbsent:
		l.o.broke("I2: process %d puts %v without a condition", p.id, at)
	case e == nil:
		l.o.broke("I2: process %d puts %v, and no MANIFEST knows the epoch", p.id, at)
	case len(op.Body) == walfile.FenceSize:
		l.sentFence(p, op, at)
	default:
		l.sentRecords(p, e, op, at)
	}
}

func (l *simLog) sentFence(p *simProcess, op fault.Op, at manifest.Pos) {
	f, err := walfile.Decode(op.Name, l.identity(), at.Epoch, at.ID, op.Body)
	switch {
	case err != nil:
		l.o.broke("I8: process %d puts a fence that cannot be read: %w", p.id, err)
	case f.Fencer <= at.Epoch || f.Fencer > l.o.head.state.GetWriter().GetEpoch():
		l.o.broke("I2: process %d fences %v for epoch %d, which is not taken", p.id, at, f.Fencer)
	}
}

// sentRecords looks at a record object. Most are sent once.
func (l *simLog) sentRecords(p *simProcess, e *simEpoch, op fault.Op, at manifest.Pos) {
	sum := xxhash.Sum64(op.Body)
	if before := e.sent[at.ID]; before != nil {
		if before.sum != sum {
			l.o.broke("I1: process %d puts other bytes as %v than before", p.id, at)
		}
		return
	}
	x, err := walfile.Decode(op.Name, l.identity(), at.Epoch, at.ID, op.Body)
	if err != nil {
		l.o.broke("I8: process %d puts an object that cannot be read: %w", p.id, err)
		return
	}
	obj := &simObject{Header: x.Header, sum: sum}
	e.sent[at.ID] = obj
	prevEnd := e.begins
	if before := e.sent[at.ID-1]; before != nil {
		prevEnd = before.End
	}
	switch {
	case x.Writer != e.owner:
		l.o.broke("I2: process %d puts %v as writer %x; the epoch is %x's", p.id, at, x.Writer, e.owner)
	case x.Durable > e.prefix:
		l.o.broke("I1: object %v says that all up to %d is durable; it is up to %d", at, x.Durable, e.prefix)
	case x.PrevEnd != prevEnd && (at.ID == 1 || e.sent[at.ID-1] != nil):
		l.o.broke("I4: object %v follows sequence %d; the one before it ends at %d", at, x.PrevEnd, prevEnd)
	case x.First < e.begins || x.End > e.limit:
		l.o.broke("I3: object %v has sequences [%d, %d); its epoch may assign [%d, %d)", at, x.First, x.End, e.begins, e.limit)
	case x.End > l.o.head.state.GetSeqLimit():
		l.o.broke("I3: object %v has sequences up to %d, above the limit %d", at, x.End, l.o.head.state.GetSeqLimit())
	}
	e.end = max(e.end, x.End)
	for entry := range x.Entries() {
		if entry.Type == walfile.EntryBatch {
			obj.batches = append(obj.batches, l.sentBatch(at, &entry.Batch))
			continue
		}
		if entry.Type == walfile.EntryCursor {
			entry.Cursor.Key = append([]byte(nil), entry.Cursor.Key...)
		}
		obj.changes = append(obj.changes, entry)
	}
}

// maxLead is how far a timestamp may run ahead of the store's time, which may have a resolution of a second.
const maxLead = 5*time.Minute + time.Second

// sentBatch looks at a batch when it is sent: a client asked for it, whole.
func (l *simLog) sentBatch(at manifest.Pos, w *walfile.Batch) *simBatch {
	b := &simBatch{first: w.First, end: w.End(), timestamp: w.Timestamp, epoch: at.Epoch}
	for rec := range w.Records() {
		r := l.name(&rec)
		r.batch = b
		b.records = append(b.records, r)
	}
	if b.timestamp > l.o.time().Add(maxLead).UnixMilli() {
		l.o.broke("F17: the batch [%d, %d) in %v has timestamp %d", b.first, b.end, at, b.timestamp)
	}
	refused := false
	for _, c := range l.o.valueOf(b.records[0].value).calls {
		if sameAs(b.records, c.records) {
			if refusedAppend(c) {
				refused = true
				continue
			}
			b.calls = append(b.calls, c)
		}
	}
	for _, r := range b.records {
		l.o.valueOf(r.value).sent = true
	}
	switch {
	case len(b.calls) > 0:
	case refused:
		l.o.broke("F48: the batch [%d, %d) in %v was refused: nothing was appended", b.first, b.end, at)
	default:
		l.o.broke("I4: nobody has asked to append the batch [%d, %d) in %v", b.first, b.end, at)
	}
	return b
}

// name notes what a sequence names, and returns it. It never names anything else (I3).
func (l *simLog) name(rec *engine.Record) *simRecord {
	if r := l.named[rec.Sequence]; r != nil {
		if !r.is(rec) {
			l.o.broke("I3: sequence %d names %q of key %q at %d, and %q of key %q at %d",
				r.seq, r.value, r.key, r.timestamp, rec.Value, rec.Key, rec.Timestamp)
		}
		return r
	}
	r := &simRecord{key: string(rec.Key), value: string(rec.Value), seq: rec.Sequence, timestamp: rec.Timestamp}
	l.named[r.seq] = r
	return r
}

func sameAs(a []*simRecord, b []engine.Record) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i].key != string(b[i].Key) || a[i].value != string(b[i].Value) {
			return false
		}
	}
	return true
}

// landed takes in a WAL object that is in the bucket from now on.
func (l *simLog) landed(at manifest.Pos, body []byte) {
	e, fence := l.epochs[at.Epoch], len(body) == walfile.FenceSize
	if fence {
		l.fences[at] = true
	}
	if at.Less(l.o.head.state.GetPosition().Pos()) || e == nil {
		return // late: a name that nobody reads again
	}
	if fence {
		if at.ID != e.prefix+1 || e.fence != 0 {
			l.o.broke("I2: a fence landed at %v; the epoch's objects reach up to %d, its fence is at %d", at, e.prefix, e.fence)
		}
		e.fence = at.ID
		return
	}
	obj := e.sent[at.ID]
	if obj == nil || obj.sum != xxhash.Sum64(body) {
		l.o.broke("I1: %v landed with bytes that were not sent", at)
		return
	}
	if e.fence != 0 {
		return // dead (F5)
	}
	e.landed[at.ID] = obj
	for next := e.landed[e.prefix+1]; next != nil; next = e.landed[e.prefix+1] {
		e.prefix++
		delete(e.landed, e.prefix)
		l.add(next)
	}
}

// add makes an object part of the log.
func (l *simLog) add(x *simObject) {
	at := manifest.Pos{Epoch: x.Epoch, ID: x.ID}
	switch {
	case !l.lastAt.Less(at):
		l.o.broke("I2: object %v became part of the log after %v", at, l.lastAt)
	case x.First < l.end || x.PrevEnd < l.end:
		l.o.broke("I4: object %v has sequences [%d, %d) after %d; the log ends at %d", at, x.First, x.End, x.PrevEnd, l.end)
	case x.First < l.o.head.state.GetFlushedEnd():
		l.o.broke("I4: object %v begins at sequence %d, below flushed_end %d", at, x.First, l.o.head.state.GetFlushedEnd())
	case x.Segment < l.segment:
		l.o.broke("I6: object %v is of segment %d, after %d", at, x.Segment, l.segment)
	}
	x.step = l.o.now
	l.objects = append(l.objects, x)
	var again []*simBatch
	for _, b := range x.batches {
		if l.addBatch(at, b) {
			again = append(again, b)
		}
	}
	l.lastAt, l.end, l.segment = at, max(l.end, x.End), x.Segment
	l.o.small.add(at, x)
	for _, b := range again { // the object itself may say that its producer was forgotten
		if !l.o.mayComeAgain(b) {
			l.o.broke("I4: value %q of key %q is in the log again, at sequence %d", b.records[0].value, b.records[0].key, b.first)
		}
	}
}

// addBatch makes a batch part of the log, and reports whether it was part of it before.
func (l *simLog) addBatch(at manifest.Pos, b *simBatch) (again bool) {
	if b.timestamp < l.lastTS {
		l.o.broke("F17: the batch [%d, %d) in %v has timestamp %d after %d", b.first, b.end, at, b.timestamp, l.lastTS)
	}
	l.lastTS = b.timestamp
	l.o.checkExpected(b)
	l.batches = append(l.batches, b)
	for _, r := range b.records {
		v := l.o.valueOf(r.value)
		again = again || v.live != nil
		v.live, r.live = r, true
		l.records = append(l.records, r)
		l.bytes = append(l.bytes, l.bytes[len(l.bytes)-1]+int64(len(r.key)+len(r.value)))
		l.keys[r.key] = append(l.keys[r.key], r)
	}
	return again
}

// mayComeAgain reports whether a batch is of a producer that was forgotten meanwhile.
func (o *oracle) mayComeAgain(b *simBatch) bool {
	return slices.ContainsFunc(b.calls, func(c *simCall) bool { return o.small.forgotten[c.append.Producer] })
}

func (l *simLog) identity() walfile.Identity {
	return walfile.Identity{LogID: [16]byte(l.o.head.state.GetLogId())}
}

// batchAround returns the batch of the log that has sequences on either side of a frontier, or nil.
func (l *simLog) batchAround(frontier uint64) *simBatch {
	i := sort.Search(len(l.batches), func(i int) bool { return l.batches[i].end >= frontier })
	if i < len(l.batches) && l.batches[i].first < frontier && frontier < l.batches[i].end {
		return l.batches[i]
	}
	return nil
}

// between returns the records of a list in sequence order that have sequences in a range.
func between(list []*simRecord, r engine.Range) []*simRecord {
	from := sort.Search(len(list), func(i int) bool { return list[i].seq >= r.Start })
	to := sort.Search(len(list), func(i int) bool { return list[i].seq >= r.End })
	return list[from:max(from, to)]
}

// bytesFrom returns the bytes of the log's records from a sequence on.
func (l *simLog) bytesFrom(seq uint64) int64 {
	i := sort.Search(len(l.records), func(i int) bool { return l.records[i].seq >= seq })
	return l.bytes[len(l.records)] - l.bytes[i]
}
