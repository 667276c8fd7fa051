package fuzz

import (
	"time"

	"github.com/annalsdb/annals/engine"
)

// simEvent is a kind of event that disturbs.
type simEvent int

const (
	evStore simEvent = iota // something happens to a request
	evTimer
	evCall
	evGiveUp // a caller waits no longer
	evWriter
	evReplica
	evCompactor
	evKill
	evStop
	evWake
	evClose
	evClock // the wall clock of a process jumps
	evLeap  // time passes in which nobody does anything
	simEvents
)

var simEventNames = [simEvents]string{
	"store", "timer", "call", "give up", "writer", "replica", "compactor", "kill", "stop", "wake", "close", "clock", "leap",
}

// simFault is what happens to a request.
type simFault int

const (
	faultNone  simFault = iota
	faultApply          // applied; the answer comes later
	faultReset          // the connection breaks before anything was done
	faultBusy           // 503
	faultRace           // 409: a conditional PUT met another one
	faultLost           // applied, and the answer is lost
	faultLie            // applied, and refused because the client's own retry saw its own object
	faultCut            // the body ends early
	simFaults
)

var simFaultNames = [simFaults]string{"none", "answered later", "connection reset", "503", "409", "lost answer", "412 by its own retry", "truncated body"}

// simProfile is the character of a run: which disturbances there are, how often, and the options of the processes. Each
// seed draws its own (Groce and others, "Swarm testing", 2012).
type simProfile struct {
	events     [simEvents]int // weights
	faults     [simFaults]int // weights
	staleLists bool
	coarse     bool // the store's time has a resolution of a second, as S3's has
	writers    int  // at most so many live ones
	replicas   int
	keys       int // of records
	largest    int // value
	options    engine.Options
	compaction int // permille of writers that compact
	linger     int // permille of the times that a request whose caller left is passed over: it may come very late
}

func newSimProfile(d *dice) *simProfile {
	p := &simProfile{
		events: [simEvents]int{
			evStore: 600, evTimer: oneOf(d, 20, 60, 120), evCall: oneOf(d, 80, 200, 400), evGiveUp: oneOf(d, 0, 5, 10),
			evWriter: oneOf(d, 0, 1, 4, 15), evReplica: oneOf(d, 0, 3, 6), evCompactor: oneOf(d, 0, 2, 4),
			evKill: oneOf(d, 0, 1, 3, 10), evStop: oneOf(d, 0, 3, 10), evWake: oneOf(d, 4, 12), evClose: oneOf(d, 0, 2),
			evClock: oneOf(d, 0, 3), evLeap: oneOf(d, 2, 8),
		},
		faults:     [simFaults]int{faultNone: 600, faultApply: oneOf(d, 20, 200, 600)},
		staleLists: d.permille(150),
		coarse:     d.permille(500),
		writers:    oneOf(d, 1, 2, 2, 3),
		replicas:   oneOf(d, 0, 1, 2),
		keys:       oneOf(d, 1, 3, 6),
		largest:    oneOf(d, 8, 8, 100, 1500),
		compaction: oneOf(d, 0, 500, 1000, 1000),
		linger:     oneOf(d, 0, 0, 900, 990),
	}
	for f := faultReset; f < simFaults; f++ {
		p.faults[f] = oneOf(d, 0, 0, 4, 15, 60)
	}
	if d.permille(500) { // wrong bytes end a writer, so only some worlds have them
		p.faults[faultCut] = 0
	}
	p.options = newSimOptions(d)
	if d.permille(100) { // many runs in a segment, which need relief
		o := &p.options
		o.MemtableBytes, o.MaxRuns, o.SegmentBytes, o.SegmentInterval = 1, 4096, 1<<20, time.Hour
		o.Retention, o.RetentionInterval, o.RetentionBytes = 0, 0, 0
		p.compaction, p.events[evKill], p.events[evCall] = 1000, 1, 400
	}
	return p
}

// newSimOptions draws the options that all processes of a log share.
func newSimOptions(d *dice) engine.Options {
	o := engine.Options{
		FlushInterval:     oneOf(d, time.Millisecond, 20*time.Millisecond, 300*time.Millisecond),
		WALObjectBytes:    oneOf[int64](d, 1, 512, 1<<16),
		WALInFlight:       oneOf(d, 1, 2, 8),
		MemtableBytes:     oneOf[int64](d, 1, 16<<10, 24<<10, 64<<10),
		RecentBytes:       oneOf[int64](d, 1, 1<<20),
		MaxRuns:           oneOf(d, 2, 5, 4096),
		CacheBytes:        oneOf[int64](d, 1, 64<<20),
		TableBytes:        oneOf[int64](d, 512, 2<<10, 1<<20),
		BlockBytes:        oneOf(d, 64, 256, 4<<10),
		SegmentInterval:   oneOf(d, time.Millisecond, 2*time.Second, 10*time.Minute, time.Hour),
		SegmentBytes:      oneOf[int64](d, 1, 300, 2<<10, 6<<10, 1<<20, 1<<20),
		MaxKeyBytes:       64,
		MaxValueBytes:     2 << 10,
		MaxUnflushedBytes: oneOf[int64](d, 4<<10, 1<<30),
		MaxProducers:      oneOf(d, 1, 0),
		Retention:         oneOf(d, 0, 5*time.Second, time.Minute, 10*time.Minute),
		RetentionBytes:    oneOf[int64](d, 0, 0, 8<<10),
		GCInterval:        oneOf(d, time.Second, 5*time.Second, time.Minute),
		StaleAfter:        oneOf(d, 5*time.Second, 5*time.Second, time.Minute),
		Ack:               oneOf(d, engine.Durable, engine.Durable, engine.Memory),
		ReadVisibility:    oneOf(d, engine.Durable, engine.Durable, engine.Memory),
	}
	o.SegmentMinBytes = min(o.SegmentBytes, oneOf[int64](d, 1, 1<<10))
	o.GCGrace = o.StaleAfter + time.Minute
	if o.Retention > 0 {
		o.SegmentInterval = min(o.SegmentInterval, o.Retention)
		o.RetentionInterval = min(o.Retention, oneOf(d, time.Second, 10*time.Second))
	}
	if o.RetentionBytes > 0 {
		o.SegmentBytes = min(o.SegmentBytes, o.RetentionBytes)
		o.SegmentMinBytes = min(o.SegmentMinBytes, o.SegmentBytes)
	}
	return o
}

func (p *simProfile) writerOptions(d *dice) engine.Options {
	o := p.options
	o.DisableCompaction = !d.permille(p.compaction)
	return o
}

func (p *simProfile) readerOptions(d *dice) engine.ReaderOptions {
	o := engine.ReaderOptions{
		PollInterval: oneOf(d, 10*time.Millisecond, 100*time.Millisecond, time.Second),
		TailBytes:    oneOf[int64](d, 1, 32<<10, 256<<20),
		CacheBytes:   p.options.CacheBytes,
		StaleAfter:   p.options.StaleAfter,
	}
	if d.permille(300) {
		o.Keys = engine.KeyRange{Start: []byte("a"), End: []byte("b")}
	}
	return o
}

func (p *simProfile) compactOptions() engine.CompactOptions {
	o := p.options
	return engine.CompactOptions{SegmentBytes: o.SegmentBytes, TableBytes: o.TableBytes, BlockBytes: o.BlockBytes, Retention: o.Retention}
}
