package sst

import (
	"bytes"
	"context"
	"fmt"
	"math"

	"github.com/annalsdb/annals/internal/base"
)

// RangeReader reads one immutable object. ReadRange returns exactly the n bytes
// at off, or an error; it may be called from any goroutine. The caller owns
// what it returns.
type RangeReader interface {
	ReadRange(ctx context.Context, off, n int64) ([]byte, error)
}

// BlockKey names a decoded block in a Cache: the block at Offset of the table
// ID. Each table has one more entry, at the offset that equals its size.
type BlockKey struct {
	ID     base.ULID
	Offset uint64
}

// Block is a decoded block. It is immutable and may be used for ever.
type Block interface {
	// MemoryBytes is about what the block occupies.
	MemoryBytes() int
}

// Cache keeps decoded blocks. It may lose any of them at any time, and be used
// from any goroutine. Metadata blocks are worth keeping longer than data
// blocks: each serves many keys.
type Cache interface {
	Get(k BlockKey) (Block, bool)
	Put(k BlockKey, b Block, metadata bool)
}

// ReaderOptions say which table to open and how to read it.
type ReaderOptions struct {
	// Name is the name of the object, for errors.
	Name string
	// ID is the id under which the table was written.
	ID base.ULID
	// Size and MetaOffset are those of the writer's Info.
	Size, MetaOffset int64
	// Source reads the object.
	Source RangeReader
	// Cache keeps decoded blocks; nil means none.
	Cache Cache
	// ReadAhead is the most stored bytes that one read of adjacent data blocks
	// fetches, apart from the first and the last of them; 0 means
	// DefaultReadAhead. A scan holds as much, and with Background what that grants.
	ReadAhead int64
	// SkipFilter says that the caller knows already that the table holds the keys
	// it asks for: the filter is not read. If it is wrong, reads cost more and
	// return the same.
	SkipFilter bool
	// Background, when not nil, is used by scans that go on to read ahead of what
	// they return.
	Background Background
}

// Reader reads one table. It is safe for concurrent use; the iterators that it
// makes belong to one goroutine each. It keeps the table's root and at most
// 256 KiB of metadata in memory and needs no closing.
//
// Errors: base.ErrCorrupt (as a base.CorruptError with object and offset) for
// wrong bytes, and whatever the RangeReader returned, wrapped.
type Reader struct {
	opts ReaderOptions
	root *rootBlock
}

// Open reads the root of a table, from the cache or with one read of the
// table's end (two if the root has more than 64 KiB). A table of an unknown
// format version gives ErrVersion.
func Open(ctx context.Context, opts ReaderOptions) (*Reader, error) {
	if opts.ReadAhead <= 0 {
		opts.ReadAhead = DefaultReadAhead
	}
	r := &Reader{opts: opts}
	if opts.MetaOffset <= 0 || opts.Size < footerSize || opts.MetaOffset >= opts.Size-footerSize {
		return nil, base.Corruptf(opts.Name, opts.Size, "a table of %d bytes cannot have metadata at %d", opts.Size, opts.MetaOffset)
	}
	if root, ok := r.cached(opts.Size).(*rootBlock); ok {
		r.root = root
		return r, nil
	}
	root, err := r.readRoot(ctx)
	if err != nil {
		return nil, err
	}
	r.root = root
	r.keep(opts.Size, root, true)
	return r, nil
}

func (r *Reader) readRoot(ctx context.Context) (*rootBlock, error) {
	o := &r.opts
	n := o.Size - o.MetaOffset
	if n > wholeMetadata {
		n = tailBytes
	}
	tailOffset := o.Size - n
	tail, err := r.read(ctx, tailOffset, n)
	if err != nil {
		return nil, err
	}
	f, err := parseFooter(tail[n-footerSize:], o.Name, o.ID, o.Size, o.MetaOffset)
	if err != nil {
		return nil, err
	}
	offset := int64(f.rootOffset)
	var stored []byte
	if offset >= tailOffset {
		stored = tail[offset-tailOffset : n-footerSize]
	} else if stored, err = r.read(ctx, offset, int64(f.rootSize)); err != nil {
		return nil, err
	}
	data, _, err := decodeFrame(stored, o.Name, o.ID, offset)
	if err != nil {
		return nil, err
	}
	root, reason := parseRoot(data, o.MetaOffset, offset)
	if reason != "" {
		return nil, base.Corruptf(o.Name, offset, "%s", reason)
	}
	root.tail, root.tailOffset = tail, tailOffset
	return root, nil
}

// Properties describes the table. The keys in it must not be changed.
func (r *Reader) Properties() Properties { return r.root.props }

// MemoryBytes is about what the Reader occupies, besides what the cache holds.
func (r *Reader) MemoryBytes() int { return r.root.MemoryBytes() }

// MayContain reports whether the table may hold records of key. False is
// certain; true is wrong for about 1 % of absent keys, and says little with
// SkipFilter. It reads one filter partition at most.
func (r *Reader) MayContain(ctx context.Context, key []byte) (bool, error) {
	p := &r.root.props
	if bytes.Compare(key, p.FirstKey) < 0 || bytes.Compare(key, p.LastKey) > 0 {
		return false, nil
	}
	if p.Keys == 1 || r.opts.SkipFilter {
		return true, nil
	}
	var c entryCursor
	c.reset(r.root.filter)
	c.seek(key, fieldSequence, 0)
	f, err := r.filterPart(ctx, &c)
	if err != nil {
		return false, err
	}
	return f.mayContain(hashKey(key)), nil
}

// filterPart returns the filter partition of the top entry on which c stands.
func (r *Reader) filterPart(ctx context.Context, c *entryCursor) (*filterBlock, error) {
	offset := int64(c.f[fieldOffset])
	if f, ok := r.cached(offset).(*filterBlock); ok {
		return f, nil
	}
	data, err := r.readMeta(ctx, offset, int64(c.f[fieldSize]))
	if err != nil {
		return nil, err
	}
	f, reason := parseFilter(data)
	if reason != "" {
		return nil, base.Corruptf(r.opts.Name, offset, "the filter %s", reason)
	}
	r.keep(offset, f, true)
	return f, nil
}

// listPart returns the index or directory partition of the top entry on which
// c stands.
func (r *Reader) listPart(ctx context.Context, kind listKind, c *entryCursor) (*entryList, error) {
	offset := int64(c.f[fieldOffset])
	if b, ok := r.cached(offset).(entryBlock); ok && b.kind == kind {
		return b.entryList, nil
	}
	data, err := r.readMeta(ctx, offset, int64(c.f[fieldSize]))
	if err != nil {
		return nil, err
	}
	return r.parseListPart(data, offset, kind)
}

// parseListPart validates the decoded partition that lies at offset and caches it.
func (r *Reader) parseListPart(data []byte, offset int64, kind listKind) (*entryList, error) {
	list, reason := parseEntries(data, kind)
	if reason == "" && kind == indexKind {
		reason = checkIndex(list, r.opts.MetaOffset)
	}
	if reason != "" {
		return nil, base.Corruptf(r.opts.Name, offset, "the %s %s", kind.what, reason)
	}
	r.keep(offset, entryBlock{list}, true)
	return list, nil
}

// checkIndex reports what is wrong with the numbers of an index partition, or
// "": blocks must follow one another inside [0, metaOffset) and counts ascend.
func checkIndex(l *entryList, metaOffset int64) string {
	var c entryCursor
	var next, records, bytes uint64
	for c.reset(l); c.forward(); {
		off, n := c.f[fieldOffset], c.f[fieldSize]
		if off > uint64(metaOffset) || n < trailerSize || n > uint64(metaOffset)-off {
			return "has a block outside the data"
		}
		if c.i > 0 && (off != next || c.f[fieldRecords] != records || c.f[fieldBytes] < bytes) {
			return "has blocks that do not follow one another"
		}
		if c.f[fieldCount] == 0 || c.f[fieldCount] > math.MaxUint64-c.f[fieldRecords] {
			return "has a block without records"
		}
		next, records, bytes = off+n, c.f[fieldRecords]+c.f[fieldCount], c.f[fieldBytes]
	}
	return ""
}

// readMeta returns the decoded metadata block at offset, without I/O if it came
// with the root.
func (r *Reader) readMeta(ctx context.Context, offset, size int64) ([]byte, error) {
	if root := r.root; offset >= root.tailOffset {
		at := offset - root.tailOffset
		data, _, err := decodeFrame(root.tail[at:at+size], r.opts.Name, r.opts.ID, offset)
		if err == nil {
			return data, nil
		}
		// The tail is kept, but was not checked beyond the root when it was read:
		// wrong bytes of one bad read must not stay (F35). Look at the object again.
	}
	stored, err := r.read(ctx, offset, size)
	if err != nil {
		return nil, err
	}
	data, _, err := decodeFrame(stored, r.opts.Name, r.opts.ID, offset)
	return data, err
}

// read fetches n bytes at off. Callers have checked that they lie in the table.
func (r *Reader) read(ctx context.Context, off, n int64) ([]byte, error) {
	b, err := r.opts.Source.ReadRange(ctx, off, n)
	if err != nil {
		return nil, fmt.Errorf("read %s at offset %d: %w", r.opts.Name, off, err)
	}
	if int64(len(b)) != n {
		return nil, base.Corruptf(r.opts.Name, off, "a read of %d bytes gave %d", n, len(b))
	}
	return b, nil
}

// cached returns a block from the cache, or nil.
func (r *Reader) cached(offset int64) Block {
	if r.opts.Cache == nil {
		return nil
	}
	b, _ := r.opts.Cache.Get(BlockKey{r.opts.ID, uint64(offset)})
	return b
}

func (r *Reader) keep(offset int64, b Block, metadata bool) {
	if r.opts.Cache != nil {
		r.opts.Cache.Put(BlockKey{r.opts.ID, uint64(offset)}, b, metadata)
	}
}
