package engine

import (
	"testing"
	"time"

	"github.com/annalsdb/annals/objstore/mem"
)

// allocLog is a log in which "hot" has records of 100 bytes, each between two of other keys; if flushed, they
// are in blocks that are cached and nowhere else.
func allocLog(t testing.TB, records int, flushed bool) *DB {
	db, err := Open(t.Context(), mem.New(mem.Options{}), Options{FlushInterval: 2 * time.Millisecond, RecentBytes: 1, DisableCompaction: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close(t.Context()) })
	var recs []Record
	for i := range records {
		recs = append(recs, Record{Key: []byte("hot"), Value: make([]byte, 100)}, Record{Key: benchKey(i), Value: make([]byte, 100)})
	}
	recs = append(recs, Record{Key: []byte("zebra")})
	if _, err := db.Append(t.Context(), recs, AppendOptions{}); err != nil {
		t.Fatal(err)
	}
	if !flushed {
		return db
	}
	if err := db.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := db.Append(t.Context(), []Record{{Key: benchKey(0)}}, AppendOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := db.Flush(t.Context()); err != nil { // which lets go of what was flushed before
		t.Fatal(err)
	}
	return db
}

func scanHot(t testing.TB, db *DB, want int, o ScanOptions) {
	n := 0
	it := db.Scan(t.Context(), []byte("hot"), All(), o)
	for range it.All() {
		n++
	}
	if n != want || it.Err() != nil {
		t.Fatal(n, it.Err())
	}
}

// allocAppend is how appends are measured: batches of records of a size.
type allocAppend struct {
	batch, size int
	ack         Durability
}

func (c allocAppend) records() []Record {
	recs := make([]Record, c.batch)
	for i := range recs {
		recs[i] = Record{Key: benchKey(i), Value: make([]byte, c.size)}
	}
	return recs
}

// An append allocates at most twice a record, also one of a single record among others that share its WAL object; a
// warm scan at most once a record.
func TestAllocationsPerRecord(t *testing.T) {
	for _, c := range []allocAppend{{100, 1024, Durable}, {100, 1024, Memory}, {1, 100, Memory}} {
		db := allocLog(t, 1, false)
		recs := c.records()
		perRecord := testing.AllocsPerRun(100, func() {
			if _, err := db.Append(t.Context(), recs, AppendOptions{Ack: c.ack}); err != nil {
				t.Fatal(err)
			}
		}) / float64(c.batch)
		if perRecord > 2 {
			t.Errorf("append %+v: %.2f allocations a record", c, perRecord)
		}
	}
	for _, flushed := range []bool{false, true} {
		for _, n := range []int{10, 1000} {
			db := allocLog(t, n, flushed)
			perRecord := testing.AllocsPerRun(100, func() { scanHot(t, db, n, ScanOptions{Limit: n}) }) / float64(n)
			if perRecord > 1 {
				t.Errorf("scan of %d, flushed %v: %.2f allocations a record", n, flushed, perRecord)
			}
		}
	}
}
