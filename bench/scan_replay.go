package bench

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/annalsdb/annals/engine"
	"github.com/annalsdb/annals/objstore"
	"github.com/annalsdb/annals/objstore/metered"
)

// replayPage and replayPageBytes size the pages of a replay over HTTP.
const (
	replayPage      = maxRead
	replayPageBytes = 4 << 20
)

// ReplayResult is what reading all of the large key took, the mean of all replays.
type ReplayResult struct {
	Replays     int     `json:"replays"`
	Records     uint64  `json:"records"`
	Bytes       int64   `json:"bytes"` // of values
	Seconds     float64 `json:"seconds"`
	First       float64 `json:"first_record_seconds"`
	BytesPerSec float64 `json:"bytes_per_second"` // of values

	// Of the engine in this process. Stored bytes are as they lie in the store, compressed.
	Stored       float64 `json:"stored_bytes,omitempty"` // of data that was read
	StoredPerSec float64 `json:"stored_bytes_per_second,omitempty"`
	OfStore      float64 `json:"of_store_bandwidth,omitempty"` // stored bytes a second / what one request gives
	Runs         int     `json:"runs,omitempty"`               // that hold the key
	Tables       int     `json:"tables,omitempty"`             // of these, those that hold it
	DataGets     float64 `json:"data_gets,omitempty"`
	MetaGets     float64 `json:"metadata_gets,omitempty"`
	GetsPerRun   float64 `json:"data_gets_per_run,omitempty"`
	BytesPerGet  float64 `json:"bytes_per_data_get,omitempty"`
}

// String writes it in a few lines.
func (p ReplayResult) String() string {
	s := fmt.Sprintf("%d records, %s in %s, the first after %s: %.1f MB/s of values", p.Records, formatBytes(float64(p.Bytes)),
		formatSeconds(p.Seconds), formatSeconds(p.First), p.BytesPerSec/1e6)
	if p.Runs > 0 {
		s += fmt.Sprintf("\n%.1f MB/s as stored", p.StoredPerSec/1e6)
		if p.OfStore > 0 {
			s += fmt.Sprintf(", %.2f of what one request gives", p.OfStore)
		}
		s += fmt.Sprintf("\n%d runs and %d tables hold the key; %.1f data GETs (%.2f a run, %s each), %.1f GETs of metadata",
			p.Runs, p.Tables, p.DataGets, p.GetsPerRun, formatBytes(p.BytesPerGet), p.MetaGets)
	}
	return s
}

// replay reads the large key from its first record to its last, as often as asked, each time from a log that was just opened.
func (s *Reads) replay(ctx context.Context, r *Run) error {
	rec := r.Recorder(string(Replay))
	if n, err := r.Target.Count(ctx, s.hot); err != nil || n == 0 {
		if err == nil {
			err = fmt.Errorf("the log has no key %q: build it with --hot-bytes", s.hot)
		}
		return err
	}
	var sum ReplayResult
	for range s.o.Replays {
		one, err := s.replayOnce(ctx, r, rec)
		if err != nil {
			if ctx.Err() != nil {
				break
			}
			return err
		}
		sum.add(one)
	}
	if sum.Replays > 0 {
		r.Result(string(Replay), "replay", sum.mean(s.o.StoreBandwidth), Plain)
	}
	return nil
}

// replayOnce is one replay: of the engine itself, or page by page over HTTP.
func (s *Reads) replayOnce(ctx context.Context, r *Run, rec *Recorder) (ReplayResult, error) {
	var one ReplayResult
	want, err := r.Target.Count(ctx, s.hot)
	if err != nil {
		return one, err
	}
	e, direct := r.Target.(*Embedded)
	var gets *tableGets
	if direct {
		gets, err = s.watchTables(ctx, e, &one)
	} else {
		err = s.reopen(ctx, r)
	}
	if err != nil {
		return one, err
	}
	r.Show(rec)
	if len(s.o.Modes) == 1 {
		r.setLoop(Load{})
	}
	r.Begin(ctx) // a replay goes on to its end, however long that takes
	began := time.Now()
	if direct {
		err = one.stream(gets.watch(ctx), r, e, s.hot)
	} else {
		err = one.pages(ctx, r, s.hot)
	}
	end := time.Now()
	r.End()
	one.Replays, one.Seconds = 1, end.Sub(began).Seconds()
	if err != nil {
		if ctx.Err() == nil { // else it was interrupted, which is no failure
			rec.Fail(end, err)
		}
		return one, err
	}
	rec.Observe(began, end, int(one.Records), one.Bytes)
	if one.Records != want {
		r.Violation("%s: a replay gave %d records of %d", s.hot, one.Records, want)
	}
	if direct {
		one.DataGets, one.MetaGets, one.Stored = float64(gets.data.Load()), float64(gets.meta.Load()), float64(gets.bytes.Load())
	}
	return one, nil
}

// watchTables opens the log again, with empty caches, on a store that tells what is read of the large key's tables.
func (s *Reads) watchTables(ctx context.Context, e *Embedded, one *ReplayResult) (*tableGets, error) {
	where, err := e.DB.KeyRuns(ctx, s.hot, engine.All())
	if err != nil {
		return nil, fmt.Errorf("look where %s lies: %w", s.hot, err)
	}
	one.Runs, one.Tables = where.Runs, len(where.Tables)
	gets := newTableGets(e.Store, where)
	return gets, e.reopenOn(ctx, gets)
}

// stream reads all records of the engine's own iterator.
func (p *ReplayResult) stream(ctx context.Context, r *Run, e *Embedded, key []byte) error {
	began := time.Now()
	it := e.DB.Scan(ctx, key, engine.All(), engine.ScanOptions{})
	var next uint64
	for rec := range it.All() {
		p.saw(r, string(key), began, &next, rec.Sequence, len(rec.Value))
	}
	return it.Err()
}

// pages reads all records page by page.
func (p *ReplayResult) pages(ctx context.Context, r *Run, key []byte) error {
	began := time.Now()
	var next uint64
	for {
		page, err := r.Target.Scan(ctx, key, ScanOptions{From: next, Limit: replayPage, MaxBytes: replayPageBytes})
		if err != nil {
			return err
		}
		for _, got := range page.Records {
			p.saw(r, string(key), began, &next, got.Seq, len(got.Value))
		}
		if len(page.Records) == 0 {
			return nil
		}
		next = page.Next
	}
}

// saw counts a record.
func (p *ReplayResult) saw(r *Run, key string, began time.Time, next *uint64, seq uint64, size int) {
	if p.Records == 0 {
		p.First = time.Since(began).Seconds()
	}
	if seq < *next {
		r.Violation("%s: sequence %d came at or after cursor %d", key, seq, *next)
	}
	*next = seq + 1
	p.Records++
	p.Bytes += int64(size)
}

// add adds up replays of the same key.
func (p *ReplayResult) add(o ReplayResult) {
	p.Replays++
	p.Records, p.Bytes, p.Runs, p.Tables = o.Records, o.Bytes, o.Runs, o.Tables
	p.Seconds += o.Seconds
	p.First += o.First
	p.Stored += o.Stored
	p.DataGets += o.DataGets
	p.MetaGets += o.MetaGets
}

// mean makes the mean of a sum.
func (p ReplayResult) mean(bandwidth float64) ReplayResult {
	n := float64(p.Replays)
	for _, v := range []*float64{&p.Seconds, &p.First, &p.Stored, &p.DataGets, &p.MetaGets} {
		*v /= n
	}
	p.BytesPerSec = ratio(float64(p.Bytes), p.Seconds)
	p.StoredPerSec = ratio(p.Stored, p.Seconds)
	p.OfStore = ratio(p.StoredPerSec, bandwidth)
	p.GetsPerRun = ratio(p.DataGets, float64(p.Runs))
	p.BytesPerGet = ratio(p.Stored, p.DataGets)
	return p
}

// tableGets is a store that tells the GETs of records from those of metadata, of the tables that hold a key.
// What has no part in a watched read does not count.
type tableGets struct {
	*metered.Store
	dataBytes map[string]int64 // by table: where its metadata begins

	data, meta, bytes atomic.Uint64
}

// watched is the key of a watched read's context.
type watched struct{}

func newTableGets(store *metered.Store, where engine.KeyRuns) *tableGets {
	t := &tableGets{Store: store, dataBytes: make(map[string]int64)}
	for _, table := range where.Tables {
		t.dataBytes[table.Name] = table.DataBytes
	}
	return t
}

// watch returns a context whose reads count.
func (t *tableGets) watch(ctx context.Context) context.Context {
	return context.WithValue(ctx, watched{}, t)
}

// Get implements objstore.Store.
func (t *tableGets) Get(ctx context.Context, name string, o objstore.GetOptions) (objstore.Object, error) {
	obj, err := t.Store.Get(ctx, name, o)
	if ctx.Value(watched{}) != t {
		return obj, err
	}
	if end, ok := t.dataBytes[name]; ok && o.Offset < end {
		t.data.Add(1)
		t.bytes.Add(uint64(len(obj.Body)))
	} else {
		t.meta.Add(1)
	}
	return obj, err
}

// reopenOn is Reopen on a store around the log's own.
func (e *Embedded) reopenOn(ctx context.Context, store objstore.Store) error {
	if err := e.DB.Close(ctx); err != nil {
		return fmt.Errorf("close the log: %w", err)
	}
	db, err := engine.Open(ctx, store, e.options)
	if err != nil {
		return errors.Join(fmt.Errorf("open the log: %w", err), e.open(ctx))
	}
	e.DB = db
	return nil
}
