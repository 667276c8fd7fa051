package engine

import (
	"fmt"
	"slices"
	"time"

	"github.com/annalsdb/annals/wal"
)

// maxSpareBuffers bounds the buffers kept for the next objects.
const maxSpareBuffers = 4

// object returns the WAL object under construction, and begins one if there is none. Callers hold mu.
func (db *DB) object() *wal.Builder {
	if db.builder == nil {
		db.builder = db.newObject(db.next)
	}
	return db.builder
}

// newObject begins the next WAL object. Callers hold mu.
func (db *DB) newObject(first uint64) *wal.Builder {
	var buf []byte
	if n := len(db.spare); n > 0 {
		buf = db.spare[n-1][:0]
		db.spare = db.spare[:n-1]
	}
	return wal.NewBuilder(wal.Header{
		Identity: db.ident,
		Writer:   db.owner,
		Epoch:    db.epoch,
		ID:       db.nextID,
		Segment:  db.active.segment,
		First:    first,
		End:      first,
		PrevEnd:  first,
		Durable:  db.durableID,
	}, buf)
}

// cutIfDue cuts the object under construction when it is full or FlushInterval
// has passed since the previous cut, so that an append after a quiet moment
// goes out at once and a steady stream costs a bounded number of requests.
// Callers hold mu.
func (db *DB) cutIfDue() {
	db.submitCuts()
	if db.builder == nil || len(db.cuts) > 0 {
		return
	}
	if int64(db.builder.Size()) < db.opts.WALObjectBytes {
		if wait := db.lastCut + db.opts.FlushInterval - db.env.Elapsed(); wait > 0 {
			db.armCutTimer(wait)
			return
		}
	}
	if db.uploader.CanSubmit() {
		db.cut()
	} // else the upload that makes room calls again
}

// armCutTimer makes cutIfDue run after d. Callers hold mu.
func (db *DB) armCutTimer(d time.Duration) {
	if db.stopCut != nil {
		return
	}
	db.stopCut = db.env.AfterFunc(d, func() {
		db.mu.Lock()
		defer db.mu.Unlock()
		db.stopCut = nil
		if db.failed == nil && !db.closed {
			db.cutIfDue()
		}
	})
}

// cut ends the object under construction and hands it to the uploader. Its id is
// bound to its bytes from here on. Callers hold mu; builder is not nil.
func (db *DB) cut() {
	body := db.builder.Finish()
	db.cuts = append(db.cuts, cut{id: db.nextID, end: db.builder.End(), body: body, at: db.env.Elapsed()})
	db.builder = nil
	db.nextID++
	db.lastCut = db.env.Elapsed()
	db.stats.walObjects++
	db.stats.walBytes += uint64(len(body))
	db.submitCuts()
}

// submitCuts hands finished objects to the uploader while its window has room.
// Callers hold mu.
func (db *DB) submitCuts() {
	n := 0
	for n < len(db.cuts) && db.uploader.CanSubmit() {
		db.uploader.Submit(db.cuts[n].id, db.cuts[n].body)
		db.submitted = append(db.submitted, db.cuts[n])
		n++
	}
	if n > 0 {
		db.cuts = slices.Delete(db.cuts, 0, n)
		db.room()
	}
}

// onDurable is told by the uploader, in id order, that an object and all before
// it are in the store. Order matters: first the durable sequence and with it
// what is readable, then those who wait for it (F12).
func (db *DB) onDurable(d wal.Durable) {
	db.mu.Lock()
	if db.failed != nil || db.closed {
		db.mu.Unlock()
		return
	}
	done := db.submitted[0]
	if done.id != d.ID {
		panic(fmt.Sprintf("engine: WAL object %d became durable before %d", d.ID, done.id)) // I1
	}
	db.submitted[0] = cut{}
	db.submitted = db.submitted[1:]
	db.durable, db.durableID = done.end, done.id
	db.storeClock.set(d.StoreTime, db.env.Elapsed())
	visible := db.opts.ReadVisibility == Durable
	if visible {
		db.frontier.Store(db.durable)
	}
	ready := db.takeDurable()
	db.landing = true
	db.cutIfDue()
	db.mu.Unlock()

	for _, w := range ready {
		w.done <- nil
	}
	if visible && !db.followers.none() {
		db.wakeFollowersOf(done)
	}
	db.keepBuffer(d.Buffer)
}

// keepBuffer takes a buffer that no request can still read. nil is none.
func (db *DB) keepBuffer(buf []byte) {
	if buf == nil || int64(cap(buf)) > 2*db.opts.WALObjectBytes {
		return
	}
	db.mu.Lock()
	defer db.mu.Unlock()
	if len(db.spare) < maxSpareBuffers {
		db.spare = append(db.spare, buf)
	}
}

// onSpace is told by the uploader that objects landed, and that all which are durable were reported: the next
// ones may start, and appends may enter.
func (db *DB) onSpace() {
	db.mu.Lock()
	defer db.mu.Unlock()
	db.landing = false
	if db.failed == nil && !db.closed {
		db.cutIfDue()
		db.room()
	}
}

// wakeFollowersOf wakes those who wait for a key of the object's records. Only the uploader's
// callbacks call it, one at a time; acknowledgements wait for it.
func (db *DB) wakeFollowersOf(c cut) {
	for e := range wal.Built(c.body).Entries() {
		if e.Type == wal.EntryBatch {
			db.announced = e.Batch.AppendRecords(db.announced)
		}
	}
	db.followers.commit(db.announced, c.end)
	clear(db.announced)
	if db.announced = db.announced[:0]; cap(db.announced) > maxAnnounced {
		db.announced = nil
	}
}

// maxAnnounced is for how many records of an object the memory is kept for the next.
const maxAnnounced = 1 << 14
