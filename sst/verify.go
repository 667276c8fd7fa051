package sst

import (
	"bytes"
	"cmp"
	"context"

	"github.com/annalsdb/annals/internal/base"
)

// Verify reads the whole table, past the cache, and compares checksums, order,
// index, directory, filter and properties with the records. It returns the
// first fault as a base.CorruptError, and holds ReadAhead bytes and a few
// blocks in memory. visit, if not nil, is called with every record in order; its
// error ends the walk and is returned.
func (r *Reader) Verify(ctx context.Context, visit func(*base.Record) error) error {
	fresh := &Reader{opts: r.opts}
	fresh.opts.Cache = nil
	root, err := fresh.readRoot(ctx)
	if err != nil {
		return err
	}
	fresh.root = root
	v := verifier{r: fresh, visit: visit, blocks: fresh.indexCursor(), keys: fresh.directoryCursor()}
	v.filters.reset(root.filter)
	return v.run(ctx)
}

// verifier walks records, index, directory and filter side by side.
type verifier struct {
	r       *Reader
	blocks  blockCursor
	keys    blockCursor
	filters entryCursor
	filter  *filterBlock
	visit   func(*base.Record) error

	got       Properties  // of the records so far
	last      base.Record // the one before
	blockEnd  uint64      // records up to the end of the current block
	offset    int64       // where the next block must begin
	block     int64       // offset of the current block
	keyFirst  uint64      // first sequence of the current key
	keyRecord uint64      // and the ordinal of that record
	keyBlock  uint64      // and its data block
}

func (v *verifier) run(ctx context.Context) error {
	all := v.r.All(0)
	for {
		rec, ok, err := all.Next(ctx)
		if err != nil {
			return err
		}
		if !ok {
			break
		}
		if err := v.record(ctx, &rec); err != nil {
			return err
		}
		if v.visit == nil {
			continue
		}
		if err := v.visit(&rec); err != nil {
			return err
		}
	}
	if err := v.endKey(); err != nil {
		return err
	}
	return v.end(ctx)
}

func (v *verifier) corrupt(offset int64, what string) error {
	return base.Corruptf(v.r.opts.Name, offset, "%s", what)
}

// record checks one record against the index and the filter.
func (v *verifier) record(ctx context.Context, rec *base.Record) error {
	p := &v.got
	newKey := p.Records == 0 || !bytes.Equal(rec.Key, v.last.Key)
	if !newKey && rec.Timestamp < v.last.Timestamp {
		return v.corrupt(v.block, "timestamps of a key fall from one block to the next")
	}
	if newKey && p.Records > 0 {
		if err := v.endKey(); err != nil {
			return err
		}
	}
	if p.Records == v.blockEnd {
		if err := v.beginBlock(ctx, rec); err != nil {
			return err
		}
	}
	if newKey {
		if err := v.beginKey(ctx, rec); err != nil {
			return err
		}
	}
	if p.Records == 0 {
		p.FirstKey, p.FirstSequence = rec.Key, rec.Sequence
		p.FirstTimestamp, p.LastTimestamp = rec.Timestamp, rec.Timestamp
	}
	p.Records++
	p.Bytes += uint64(rec.Size())
	p.FirstSequence, p.LastSequence = min(p.FirstSequence, rec.Sequence), max(p.LastSequence, rec.Sequence)
	p.FirstTimestamp, p.LastTimestamp = min(p.FirstTimestamp, rec.Timestamp), max(p.LastTimestamp, rec.Timestamp)
	p.LastKey = rec.Key
	v.last = *rec
	return nil
}

// beginBlock checks the index entry of the block whose first record is rec.
func (v *verifier) beginBlock(ctx context.Context, rec *base.Record) error {
	ok, err := v.blocks.next(ctx)
	if err != nil {
		return err
	}
	top, p := &v.blocks.top, &v.got
	if !ok {
		return v.corrupt(v.r.root.rootOffset, "the index has too few blocks")
	}
	ref := v.blocks.ref()
	switch {
	case !v.blocks.startsWith(rec.Key) || ref.seq != rec.Sequence || ref.time != orderTime(rec.Timestamp):
		return v.corrupt(ref.offset, "the index gives the data block another first record")
	case ref.offset != v.offset || ref.records != p.Records || ref.bytes != p.Bytes:
		return v.corrupt(ref.offset, "the index gives wrong totals before the data block")
	}
	if v.blocks.cur.i == 0 {
		split := p.Records > 0 && bytes.Equal(v.last.Key, rec.Key)
		seq, time := uint64(0), uint64(0)
		if split {
			seq, time = ref.seq, ref.time
		}
		if !v.separates(top, rec.Key, split) || top.f[fieldSequence] != seq || top.f[fieldTime] != time ||
			top.f[fieldRecords] != ref.records || top.f[fieldBytes] != ref.bytes || top.f[fieldBlocks] != p.Blocks {
			return v.corrupt(int64(top.f[fieldOffset]), "the top of the index does not fit the partition")
		}
	}
	v.block, v.offset, v.blockEnd = ref.offset, ref.end(), ref.records+ref.count
	p.Blocks++
	return nil
}

// separates reports whether the entry on which top stands separates the record
// before from one with key; split says that both have that key.
func (v *verifier) separates(top *entryCursor, key []byte, split bool) bool {
	switch {
	case top.i == 0:
		return len(top.key) == 0
	case split:
		return bytes.Equal(top.key, key)
	}
	return bytes.Compare(v.last.Key, top.key) < 0 && bytes.Compare(top.key, key) <= 0
}

// beginKey notes the first record of a key and checks the filter.
func (v *verifier) beginKey(ctx context.Context, rec *base.Record) error {
	v.keyFirst, v.keyRecord, v.keyBlock = rec.Sequence, v.got.Records, v.got.Blocks-1
	if v.filters.nextAtMost(rec.Key, fieldSequence, 0) {
		v.filters.forward()
		var err error
		if v.filter, err = v.r.filterPart(ctx, &v.filters); err != nil {
			return err
		}
		if !v.separates(&v.filters, rec.Key, false) || v.filters.f[fieldKeys] != v.got.Keys {
			return v.corrupt(int64(v.filters.f[fieldOffset]), "the top of the filter does not fit the partition")
		}
	}
	if !v.filter.mayContain(hashKey(rec.Key)) {
		return v.corrupt(int64(v.filters.f[fieldOffset]), "the filter lacks a key")
	}
	v.got.Keys++
	return v.beginDirectory(ctx, rec)
}

// beginDirectory moves to the key's directory entry and checks its partition.
func (v *verifier) beginDirectory(ctx context.Context, rec *base.Record) error {
	ok, err := v.keys.next(ctx)
	if err != nil {
		return err
	}
	top := &v.keys.top
	if !ok {
		return v.corrupt(v.r.root.rootOffset, "the directory has too few keys")
	}
	if v.keys.cur.i == 0 && (!v.separates(top, rec.Key, false) || top.f[fieldKeys] != v.got.Keys-1) {
		return v.corrupt(int64(top.f[fieldOffset]), "the top of the directory does not fit the partition")
	}
	return nil
}

// endKey checks the directory entry of the key whose last record was the one before.
func (v *verifier) endKey() error {
	want := [maxFields]uint64{
		dirFirst: v.keyFirst, dirLast: v.last.Sequence, dirCount: v.got.Records - v.keyRecord,
		dirBlock: v.keyBlock, dirOrdinal: v.keyRecord,
	}
	if !v.keys.startsWith(v.last.Key) || v.keys.cur.f != want {
		return v.corrupt(int64(v.keys.top.f[fieldOffset]), "the directory entry of a key does not fit its records")
	}
	return nil
}

// end checks that nothing is left over, and the properties.
func (v *verifier) end(ctx context.Context) error {
	root := v.r.root
	if more, err := v.keys.next(ctx); more || err != nil {
		return cmp.Or(err, v.corrupt(root.rootOffset, "the directory has too many keys"))
	}
	if more, err := v.blocks.next(ctx); more || err != nil {
		return cmp.Or(err, v.corrupt(root.rootOffset, "the index has too many blocks"))
	}
	if v.filters.forward() {
		return v.corrupt(root.rootOffset, "the filter has too many partitions")
	}
	if v.offset != v.r.opts.MetaOffset {
		return v.corrupt(v.offset, "the data blocks do not end at the metadata")
	}
	got, want := v.got, root.props
	got.Segment, got.BlockBytes = want.Segment, want.BlockBytes
	if !got.equal(&want) {
		return v.corrupt(root.rootOffset, "the properties do not fit the records")
	}
	return nil
}

func (p *Properties) equal(o *Properties) bool {
	return p.Records == o.Records && p.Keys == o.Keys && p.Bytes == o.Bytes && p.Blocks == o.Blocks &&
		p.FirstSequence == o.FirstSequence && p.LastSequence == o.LastSequence &&
		p.FirstTimestamp == o.FirstTimestamp && p.LastTimestamp == o.LastTimestamp &&
		bytes.Equal(p.FirstKey, o.FirstKey) && bytes.Equal(p.LastKey, o.LastKey)
}
