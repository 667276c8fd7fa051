package engine

import (
	"time"

	"github.com/annalsdb/annals/compaction"
	"github.com/annalsdb/annals/manifest"
)

// Status is what operators want to know of a DB at one moment.
type Status struct {
	Store     string // the store's URL, without secrets
	LogID     [16]byte
	Epoch     uint64
	Recovered uint64 // records that Open took from the WAL

	Next       uint64 // the next sequence to be assigned
	Durable    uint64 // every sequence below is durable
	Frontier   uint64 // every sequence below is readable
	FlushedEnd uint64 // every sequence below is in a run
	First      uint64 // the oldest sequence that the log holds

	ManifestVersion uint64
	Groups          int // of consolidated segments
	Segments        int // in groups and not
	Runs            int
	Tables          int
	StoredBytes     uint64 // of all tables
	ObsoleteObjects int    // no longer in the log, kept for their grace
	ObsoleteBytes   uint64 // of these

	UnflushedBytes int64         // record bytes, and bytes of changes of the small state, that are not in runs
	MemtableBytes  int64         // heap of the memtables: active, being flushed, kept
	WALPending     int           // WAL objects that are not yet durable
	Followers      int64         // reads that wait for a record
	CacheBytes     int64         // of the memory cache
	DiskCacheBytes int64         // of the files in the disk cache
	HeadAge        time.Duration // since the request that last proved the view current

	Consumers  int    // that have cursors
	Cursors    int    // of all consumers
	Producers  int    // remembered
	StateBytes int64  // heap of the three
	StateSize  uint64 // bytes of the state objects in force

	Troubles []Trouble // what fails now; usually nothing

	ReplicaStatus

	Counters
}

// Counters count since Open.
type Counters struct {
	AppendedRecords, AppendedBytes uint64
	Overloaded                     uint64 // appends refused because the write path was full
	ScannedRecords, ScannedBytes   uint64
	WALObjects, WALBytes           uint64
	WALRetries, WALHedges          uint64
	Flushes, FlushedBytes          uint64 // runs written, bytes of their tables
	FlushFailures                  uint64 // failed store calls of flushes, all retried
	StateObjects, StateObjectBytes uint64 // state objects written by flushes, and their bytes
	Conflicts                      uint64 // appends refused because the log was not as they expected
	Repeats                        uint64 // appends of a producer that were there already
	Seals                          uint64
	Commits                        uint64 // MANIFEST versions adopted
	CacheHits, CacheMisses         uint64
	TableReads, TableReadBytes     uint64 // range requests for tables

	TableReadTime                       time.Duration // of all range requests together
	TableReadHedges                     uint64        // of these, because an earlier one was slow
	DiskCacheHits, DiskCacheMisses      uint64
	DiskCacheErrors, DiskCacheEvictions uint64 // files that were damaged, or could not be read, written or removed; files evicted
	DiskCacheDropped                    uint64 // ranges that were not kept because the disk was too slow, or failed lately

	Compaction CompactionCounters

	SegmentsDropped, BytesDropped uint64 // by retention, with their key and value bytes
	RetentionFailures             uint64 // looks of the retention that failed; all are repeated
	Collected                     Collected
	Collections, Sweeps           uint64 // rounds of the collector, and walks over the whole bucket that came to their end
	CollectFailures               uint64 // steps of rounds that failed; all are repeated
}

// Status returns a consistent picture; it costs no I/O.
func (db *DB) Status() Status {
	v := db.view.Load()
	s := Status{Store: db.store.String(), LogID: db.ident.LogID, Epoch: db.epoch, Recovered: db.recovered}
	compacting := db.compacting(v.snap.State)
	wal := db.uploader.Stats()
	s.Troubles = db.troubles.list()
	db.mu.Lock()
	defer db.mu.Unlock()
	s.Next, s.Durable = db.next, db.durable
	s.UnflushedBytes = db.unflush
	s.Consumers, s.Cursors, s.Producers = db.small.tables.Counts()
	s.StateBytes = db.small.tables.Bytes()
	s.WALPending = len(db.submitted) + len(db.cuts)
	c := db.stats
	s.Counters = Counters{
		AppendedRecords: c.appendedRecords, AppendedBytes: c.appendedBytes,
		Overloaded: c.overloaded,
		WALObjects: c.walObjects, WALBytes: c.walBytes,
		WALRetries: wal.Retries, WALHedges: wal.Hedges,
		Flushes: c.flushes, FlushedBytes: c.flushedBytes, FlushFailures: c.flushFailures,
		StateObjects: c.stateObjects, StateObjectBytes: c.stateObjectBytes,
		Conflicts: c.conflicts, Repeats: c.repeats,
		Seals: c.seals, Commits: c.commits,
		Compaction:      compacting,
		SegmentsDropped: c.segmentsDropped, BytesDropped: c.bytesDropped, RetentionFailures: c.retentionFailures,
		Collected: c.collected, Collections: c.collections, Sweeps: c.sweeps, CollectFailures: c.collectFailures,
	}
	db.report(v, &s)
	return s
}

// report fills in what a writer and a replica tell alike.
func (c *core) report(v *view, s *Status) {
	s.Frontier = c.frontier.Load()
	s.FlushedEnd = v.snap.State.GetFlushedEnd()
	s.First = v.first
	s.StateSize = v.snap.State.GetStateSize() + v.snap.State.GetStateChangesSize()
	s.ManifestVersion = v.snap.State.GetVersion()
	s.StateSize = v.snap.State.GetStateSize() + v.snap.State.GetStateChangesSize()
	s.Groups, s.Segments, s.Runs = len(v.groups), len(v.segments), len(v.runs)
	s.Followers = c.followers.waiting.Load()
	s.HeadAge = c.headAge()
	for i := range v.groups {
		g := v.groups[i].line
		s.Segments += int(g.GetSegments())
		s.Runs += int(g.GetSegments()) // of one run each
		s.Tables += int(g.GetTables())
		s.StoredBytes += g.GetStoredBytes()
	}
	for i := range v.runs {
		s.Tables += len(v.runs[i].tables)
		for j := range v.runs[i].tables {
			s.StoredBytes += uint64(v.runs[i].tables[j].size)
		}
	}
	for _, o := range v.snap.State.GetObsolete() {
		s.ObsoleteObjects++
		s.ObsoleteBytes += o.GetSize()
	}
	for _, m := range v.memories {
		s.MemtableBytes += m.table.Bytes()
	}
	s.CacheBytes = int64(c.tables.cache.meta.WeightedSize() + c.tables.cache.data.WeightedSize())
	s.ScannedRecords, s.ScannedBytes = c.scannedRecords.Load(), c.scannedBytes.Load()
	s.CacheHits, s.CacheMisses = c.tables.cache.hits.Load(), c.tables.cache.misses.Load()
	s.TableReads, s.TableReadBytes = c.tables.gets.Load(), c.tables.bytes.Load()
	c.tables.report(s)
}

// compacting returns what this process knows of compaction. The debt is planned here
// unless this process is the compactor, so that it shows when nobody is.
func (db *DB) compacting(s *manifest.State) (c CompactionCounters) {
	if db.compactor != nil {
		c = db.compactor.snapshot()
	}
	if !c.Working {
		jobs := compaction.Plan(s, db.opts.compactionLimits())
		c.Planned, c.Debt = len(jobs), debtOf(jobs)
	}
	return c
}

// Head returns the state of the MANIFEST that reads use now. It must not be
// changed.
func (db *DB) Head() *manifest.State { return db.view.Load().snap.State }
