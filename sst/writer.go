package sst

import (
	"bytes"
	"fmt"

	"github.com/annalsdb/annals/internal/base"
)

// WriterOptions say how a table is written.
type WriterOptions struct {
	// ID is the table's id. It seeds every checksum: the table reads under this
	// id only.
	ID base.ULID
	// Segment is the segment for which the table is written.
	Segment uint32
	// BlockBytes is the size to which decoded data blocks are cut; 0 means
	// DefaultBlockBytes. Larger blocks compress better and cost more a point read.
	BlockBytes int
	// Compression says how data blocks are compressed. Metadata is always Dense.
	Compression Compression
	// PartitionBytes is the size to which the decoded blocks of index, directory
	// and filter are cut; 0 means DefaultPartitionBytes.
	PartitionBytes int
	// Buffer, when not nil, gives its memory to the body, which begins at
	// Buffer[:0] and moves only if it outgrows the capacity.
	Buffer []byte
}

// Compression is how a Writer compresses data blocks.
type Compression uint8

const (
	// Dense is zstd: for tables that are kept.
	Dense Compression = iota
	// Fast is S2, a fifth of the work: for tables that are soon rewritten.
	Fast
)

// Info is what the manifest needs to know about a finished table.
type Info struct {
	// Size is the size of the object in bytes, MetaOffset where its data blocks
	// end and its metadata begins.
	Size, MetaOffset int64
	Properties       Properties
}

// Writer builds one table in memory. It belongs to one goroutine.
type Writer struct {
	opts WriterOptions
	pack packer
	body []byte

	block   blockBuilder
	first   [maxFields]uint64 // the index entry of the block that is being built
	blockIn []byte            // key of its first record
	before  []byte            // last key of the block before
	// sinceSmall counts blocks since one was cut while it was small.
	sinceSmall int

	dir    partitioner
	dirs   listBuilder
	index  partitioner
	blocks listBuilder
	filter partitioner
	hashes []uint64 // keys of the filter partition that is being built

	props   Properties
	key     []byte            // the last one added
	prevKey []byte            // the one before it
	entry   [maxFields]uint64 // directory entry of key
	lastSeq uint64
	lastTS  int64
	scratch []byte
	done    bool
}

// NewWriter returns an empty Writer.
func NewWriter(opts WriterOptions) *Writer {
	if opts.BlockBytes <= 0 {
		opts.BlockBytes = DefaultBlockBytes
	}
	if opts.PartitionBytes <= 0 {
		opts.PartitionBytes = DefaultPartitionBytes
	}
	w := &Writer{opts: opts, body: opts.Buffer[:0]}
	w.pack.fast = opts.Compression == Fast
	w.dirs.kind, w.blocks.kind = directoryKind, indexKind
	w.props.Segment, w.props.BlockBytes = opts.Segment, uint64(opts.BlockBytes)
	return w
}

// Records returns the number of records added.
func (w *Writer) Records() uint64 { return w.props.Records }

// EstimatedSize returns about how many bytes the table would have if it were
// finished now. What is not yet compressed counts whole.
func (w *Writer) EstimatedSize() int64 {
	const root = 512
	return int64(len(w.body) + w.block.size() +
		w.dir.stored + w.index.stored + w.filter.stored + w.dirs.size() + w.blocks.size() +
		len(w.hashes)*filterBitsPerKey/8 + root + footerSize)
}

// Add appends a record. The pair (key, seq) must be above that of the record
// before, and a key's timestamps must not fall; key and value must keep their
// limits: Add panics otherwise. It copies what it keeps.
func (w *Writer) Add(key []byte, seq uint64, timestamp int64, value []byte) {
	newKey := w.props.Records == 0 || !bytes.Equal(key, w.key)
	w.assert(newKey, key, seq, timestamp, len(value))
	size := recordOverhead + len(value)
	if newKey {
		size += groupOverhead + len(key)
	}
	if w.block.records > 0 && w.block.size()+size > w.opts.BlockBytes {
		w.flushBlock()
	}
	w.begin(newKey, key, seq, timestamp)
	w.block.add(newKey, key, seq, timestamp, value)
	w.count(1, len(key)+len(value), seq, seq, timestamp, timestamp)
}

// AddGroup appends the records of a group, as if each were added. A group that is a
// stored block by itself, and not a small one, is appended as it is stored: it is not compressed
// again.
func (w *Writer) AddGroup(g *Group) {
	newKey := w.props.Records == 0 || !bytes.Equal(g.Key, w.key)
	switch {
	case w.takesFrame(g):
		w.assert(newKey, g.Key, g.FirstSequence, g.FirstTimestamp, 0)
		w.addFrame(newKey, g)
	case w.block.size()+g.decodedBytes()+recordOverhead <= w.opts.BlockBytes:
		w.assert(newKey, g.Key, g.FirstSequence, g.FirstTimestamp, 0)
		w.begin(newKey, g.Key, g.FirstSequence, g.FirstTimestamp)
		w.block.addGroup(newKey, g)
		w.countGroup(g)
	default: // a block ends before one of its records
		for c := (groupCursor{g: g}); c.next(); {
			w.Add(g.Key, c.seq, c.ts, c.data())
		}
	}
}

// smallBlockEvery is how many blocks come for each one that is cut for the sake of a stored block
// while it is still small.
const smallBlockEvery = 4

// takesFrame reports whether a group is appended as the stored block that it is. Blocks
// must not shrink with every rewrite, nor stay as large as another writer made them: only those
// of about the target's size, or of one record, are taken.
func (w *Writer) takesFrame(g *Group) bool {
	f := g.frame
	if f == nil || f.decoded < w.opts.BlockBytes/2 || g.Records > 1 && f.decoded > 2*w.opts.BlockBytes {
		return false
	}
	if w.block.records > 0 && w.block.size() < w.opts.BlockBytes/2 && w.sinceSmall < smallBlockEvery {
		return false
	}
	return w.pack.fast || f.codec == codecZstd || f.codec == codecRaw && !w.pack.shrinks(f.payload)
}

// addFrame appends a group as the stored block that it is.
func (w *Writer) addFrame(newKey bool, g *Group) {
	if w.block.records > 0 {
		if w.block.size() < w.opts.BlockBytes/2 {
			w.sinceSmall = 0
		}
		w.flushBlock()
	}
	w.begin(newKey, g.Key, g.FirstSequence, g.FirstTimestamp)
	w.countGroup(g)
	start := len(w.body)
	w.body = append(w.body, g.frame.payload...)
	w.endBlock(start, g.frame.codec, g.frame.decoded, g.Records)
}

// begin notes the first of the records that are added next.
func (w *Writer) begin(newKey bool, key []byte, seq uint64, timestamp int64) {
	if newKey {
		w.beginKey(key, seq)
	}
	if w.block.records == 0 {
		w.blockIn = append(w.blockIn[:0], key...)
		w.first = [maxFields]uint64{
			fieldSequence: seq, fieldTime: orderTime(timestamp), fieldOffset: uint64(len(w.body)),
			fieldRecords: w.props.Records, fieldBytes: w.props.Bytes,
		}
	}
}

func (w *Writer) assert(newKey bool, key []byte, seq uint64, timestamp int64, value int) {
	switch {
	case w.done:
		panic("sst: Add after Finish")
	case len(key) > MaxKeyBytes || value > MaxValueBytes || seq == base.MaxSequence:
		panic(fmt.Sprintf("sst: add record %d: key of %d bytes, value of %d bytes", seq, len(key), value))
	case w.props.Records == 0:
	case newKey && bytes.Compare(key, w.key) < 0:
		panic(fmt.Sprintf("sst: add record %d: key %q after %q", seq, key, w.key))
	case !newKey && (seq <= w.lastSeq || timestamp < w.lastTS):
		panic(fmt.Sprintf("sst: add record %d at %d: key %q is at %d, %d", seq, timestamp, key, w.lastSeq, w.lastTS))
	}
}

// countGroup counts the records of a group.
func (w *Writer) countGroup(g *Group) {
	w.count(g.Records, int(g.Bytes()), g.FirstSequence, g.LastSequence, g.FirstTimestamp, g.LastTimestamp)
}

// count brings key and properties up to date with n records of the current key that
// have size bytes.
func (w *Writer) count(n, size int, first, last uint64, from, to int64) {
	p := &w.props
	if p.Records == 0 {
		p.FirstSequence, p.FirstTimestamp, p.LastTimestamp = first, from, to
	}
	p.Records += uint64(n)
	p.Bytes += uint64(size)
	p.FirstSequence, p.LastSequence = min(p.FirstSequence, first), max(p.LastSequence, last)
	p.FirstTimestamp, p.LastTimestamp = min(p.FirstTimestamp, from), max(p.LastTimestamp, to)
	w.entry[dirLast] = last
	w.entry[dirCount] += uint64(n)
	w.lastSeq, w.lastTS = last, to
}

// beginKey ends the key before and notes key in directory and filter.
func (w *Writer) beginKey(key []byte, seq uint64) {
	p := &w.props
	if p.Records == 0 {
		p.FirstKey = bytes.Clone(key)
	} else {
		w.endKey()
		w.prevKey, w.key = w.key, w.prevKey
	}
	w.key = append(w.key[:0], key...)
	w.entry = [maxFields]uint64{dirFirst: seq, dirBlock: p.Blocks, dirOrdinal: p.Records}
	if len(w.hashes) == 0 {
		w.filter.open(w.prevKey, key, [maxFields]uint64{fieldKeys: p.Keys})
	}
	w.hashes = append(w.hashes, hashKey(key))
	p.Keys++
	if len(w.hashes)*filterBitsPerKey >= w.opts.PartitionBytes*8 {
		w.flushFilter()
	}
}

// endKey writes the directory entry of the current key.
func (w *Writer) endKey() {
	if w.dirs.n == 0 {
		w.dir.open(w.prevKey, w.key, [maxFields]uint64{fieldKeys: w.props.Keys - 1})
	}
	w.dirs.add(w.key, w.entry)
	if w.dirs.size() >= w.opts.PartitionBytes {
		w.scratch = w.dir.closeList(&w.dirs, w.scratch, &w.pack)
	}
}

func (w *Writer) flushFilter() {
	payload := appendFilter(nil, w.hashes)
	w.filter.close(payload, codecRaw, len(payload))
	w.hashes = w.hashes[:0]
}

// flushBlock stores the current data block.
func (w *Writer) flushBlock() {
	records, start := w.block.records, len(w.body)
	data := w.block.finish()
	var c codec
	w.body, c = w.pack.appendData(w.body, data)
	w.endBlock(start, c, len(data), records)
}

// endBlock completes the data block whose payload is body[start:] and adds its
// index entry.
func (w *Writer) endBlock(start int, c codec, decoded, records int) {
	if w.blocks.n == 0 {
		fields := w.first
		fields[fieldBlocks] = w.props.Blocks
		w.index.open(w.before, w.blockIn, fields)
	}
	w.body = appendTrailer(w.body, start, c, decoded, w.opts.ID, int64(start))
	w.first[fieldCount], w.first[fieldSize] = uint64(records), uint64(len(w.body)-start)
	w.blocks.add(w.blockIn, w.first)
	w.before = append(w.before[:0], w.key...)
	w.props.Blocks++
	w.sinceSmall++
	if w.blocks.size() >= w.opts.PartitionBytes {
		w.scratch = w.index.closeList(&w.blocks, w.scratch, &w.pack)
	}
}

// Finish returns the complete table. The Writer is done; body belongs to the
// caller. Finish panics if no record was added.
func (w *Writer) Finish() (body []byte, info Info) {
	if w.props.Records == 0 || w.done {
		panic("sst: Finish of an empty or finished table")
	}
	w.done = true
	if w.block.records > 0 {
		w.flushBlock()
	}
	w.endKey()
	if w.blocks.n > 0 {
		w.index.closeList(&w.blocks, w.scratch, &w.pack)
	}
	if w.dirs.n > 0 {
		w.dir.closeList(&w.dirs, w.scratch, &w.pack)
	}
	if len(w.hashes) > 0 {
		w.flushFilter()
	}
	w.props.LastKey = bytes.Clone(w.key)

	id := w.opts.ID
	f := footer{metaOffset: uint64(len(w.body))}
	root := w.props.append(nil)
	for _, t := range []struct {
		parts *partitioner
		kind  listKind
	}{{&w.dir, plainTopKind}, {&w.index, indexTopKind}, {&w.filter, plainTopKind}} {
		var top *listBuilder
		w.body, top = t.parts.appendTo(w.body, t.kind, id)
		root = appendBytes(root, top.appendTo(nil))
	}
	start := len(w.body)
	b, c := w.pack.append(w.body, root)
	b = appendTrailer(b, start, c, len(root), id, int64(start))
	f.rootOffset, f.rootSize = uint64(start), uint64(len(b)-start)
	b = f.append(b, id, int64(len(b)))
	w.body = nil
	return b, Info{Size: int64(len(b)), MetaOffset: int64(f.metaOffset), Properties: w.props}
}
