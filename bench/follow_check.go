package bench

import (
	"math/bits"
	"sync"
	"sync/atomic"
	"time"

	"github.com/annalsdb/annals/bench/crowd"
)

// maxUnderWay is how many appends are remembered, so that what is delivered can be compared with when they were
// acknowledged. It is many more than are under way.
const maxUnderWay = 1 << 17

// deliveries compares what followers get with what was appended: it measures how long it took, and checks that
// every follower gets each record of its key once, and in order. It is a crowd.Sink.
//
// Per follower it keeps how many records are due and came, and a sum over their sequences. So nothing is kept per
// record, and a record that is lost is not made up for by another one.
type deliveries struct {
	run      uint64
	landings *Landings // nil: it is not known when records are durable
	keys     []followed
	appends  []underWay // by number, modulo their count

	fromDue, fromAck, fromDurable *Recorder

	opened, broken       atomic.Int64
	appended, delivered  atomic.Int64 // records of followed keys
	duplicated           atomic.Uint64
	outOfOrder           atomic.Uint64
	misdirected          atomic.Uint64 // records of another key
	foreign              atomic.Uint64 // records that this run did not append
	misnumbered          atomic.Uint64 // records whose sequence is not the one that was acknowledged
	unmatched, undurable atomic.Uint64 // records without a time of acknowledgement, or of durability
	breaks               messages      // guarded by mu
	mu                   sync.Mutex
}

// followed is one follower's key.
type followed struct {
	appended, appendedSum atomic.Uint64
	came, cameSum         atomic.Uint64
	next                  atomic.Uint64 // above the sequence of the last record that came
	unknown               atomic.Uint64 // records of appends that failed: they may come or not
}

// underWay is an append whose records are being delivered.
type underWay struct {
	mu     sync.Mutex
	number uint64 // of the append, plus one
	first  uint64 // sequence
	acked  time.Time
	early  []crowd.Delivery // that came before the acknowledgement; a batch's at most
}

func newDeliveries(run uint64, followers int, landings *Landings) *deliveries {
	return &deliveries{run: run, landings: landings, keys: make([]followed, followers), appends: make([]underWay, maxUnderWay)}
}

// record makes the recorders. The first is what the live line shows.
func (d *deliveries) record(r *Run) {
	d.fromDue, d.fromAck = r.Recorder("delivered_from_due"), r.Recorder("delivered_from_acknowledged")
	if d.landings != nil {
		d.fromDurable = r.Recorder("delivered_from_durable")
	}
}

// mix makes the sum of sequences one that others hardly have.
func mix(seq uint64) uint64 {
	hi, lo := bits.Mul64(seq+0x9e3779b97f4a7c15, 0xd6e8feb86659fd93)
	return hi ^ lo
}

func (d *deliveries) append(n uint64) *underWay { return &d.appends[n%maxUnderWay] }

// begin notes that an append is about to be sent.
func (d *deliveries) begin(n uint64) {
	a := d.append(n)
	a.mu.Lock()
	defer a.mu.Unlock()
	d.unmatched.Add(uint64(len(a.early)))
	a.number, a.first, a.acked, a.early = n+1, 0, time.Time{}, nil
}

// acknowledged notes that an append was answered: the keys of its records, and the first one's sequence.
func (d *deliveries) acknowledged(n uint64, keys []uint64, first uint64, at time.Time) {
	mine := 0
	for i, key := range keys {
		if key < uint64(len(d.keys)) {
			k := &d.keys[key]
			k.appendedSum.Add(mix(first + uint64(i)))
			k.appended.Add(1)
			mine++
		}
	}
	d.appended.Add(int64(mine))
	a := d.append(n)
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.number != n+1 {
		return
	}
	a.first, a.acked = first, at
	for i := range a.early {
		d.match(a, &a.early[i])
	}
	a.early = nil
}

// failed notes that an append failed: its records may be delivered or not.
func (d *deliveries) failed(n uint64, keys []uint64) {
	for _, key := range keys {
		if key < uint64(len(d.keys)) {
			d.keys[key].unknown.Add(1)
		}
	}
	d.begin(n)
}

// Opened implements crowd.Sink.
func (d *deliveries) Opened(n int) { d.opened.Add(int64(n)) }

// Broken implements crowd.Sink.
func (d *deliveries) Broken(err error) {
	d.broken.Add(1)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.breaks.add(err.Error())
}

// Delivered implements crowd.Sink.
func (d *deliveries) Delivered(got crowd.Delivery) {
	if int(got.Follower) >= len(d.keys) {
		d.misdirected.Add(1)
		return
	}
	k := &d.keys[got.Follower]
	switch next := k.next.Load(); {
	case got.Seq+1 == next:
		d.duplicated.Add(1)
		return
	case got.Seq < next: // for a reader that goes by sequences it is lost
		d.outOfOrder.Add(1)
		return
	}
	k.next.Store(got.Seq + 1)
	switch {
	case got.Foreign:
		d.foreign.Add(1)
		return
	case got.Key != got.Follower:
		d.misdirected.Add(1)
		return
	}
	k.cameSum.Add(mix(got.Seq))
	k.came.Add(1)
	d.delivered.Add(1)
	at := time.Unix(0, got.At)
	d.fromDue.Observe(time.Unix(0, got.Due), at, 1, 0)
	if d.landings != nil {
		if durable, ok := d.landings.At(got.Seq); ok {
			d.fromDurable.Observe(durable, at, 1, 0)
		} else {
			d.undurable.Add(1)
		}
	}
	a := d.append(got.Op)
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case a.number != got.Op+1:
		d.unmatched.Add(1)
	case a.acked.IsZero():
		a.early = append(a.early, got)
	default:
		d.match(a, &got)
	}
}

// match measures a delivery from when its append was acknowledged. Callers hold the append's lock.
func (d *deliveries) match(a *underWay, got *crowd.Delivery) {
	if got.Seq != a.first+uint64(got.Index) {
		d.misnumbered.Add(1)
		return
	}
	d.fromAck.Observe(a.acked, time.Unix(0, got.At), 1, 0)
}

// followVerdict is what the check found in the end.
type followVerdict struct {
	lost uint64 // records that were acknowledged and did not come
	// extra came and were not acknowledged, beyond those of appends that failed.
	extra uint64
	// mistaken are keys of which as many records came as were acknowledged, but not the same.
	mistaken uint64
}

// missing returns how many records were acknowledged and did not come yet.
func (d *deliveries) missing() (n int64) { return d.appended.Load() - d.delivered.Load() }

// verdict compares what was appended with what came. Nothing is appended or delivered meanwhile.
func (d *deliveries) verdict() (v followVerdict) {
	for i := range d.keys {
		k := &d.keys[i]
		appended, came, unknown := k.appended.Load(), k.came.Load(), k.unknown.Load()
		switch {
		case came < appended:
			v.lost += appended - came
		case came > appended+unknown:
			v.extra += came - appended - unknown
		case unknown == 0 && k.cameSum.Load() != k.appendedSum.Load():
			v.mistaken++
		}
	}
	return v
}
