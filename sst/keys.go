package sst

import (
	"bytes"
	"context"
	"math"

	"github.com/annalsdb/annals/internal/base"
)

// KeyIter lists the distinct keys of a table. It belongs to one goroutine.
type KeyIter struct {
	r       *Reader
	start   []byte
	top     entryCursor
	cur     entryCursor
	started bool
	done    bool
	err     error

	// Stored partitions that were read ahead, from offset on.
	ahead  []byte
	offset int64
	want   int64 // bytes to read next time

	arena []byte // memory of the keys that were returned
}

// firstKeysRead is what a listing reads at first; each further read doubles, up
// to ReadAhead: a short listing stays cheap and a long one needs few requests.
const firstKeysRead = 64 << 10

// Keys returns the distinct keys from start on, in bytewise order. It reads the
// directory only. Start must not change meanwhile.
func (r *Reader) Keys(start []byte) *KeyIter {
	return &KeyIter{r: r, start: start, want: firstKeysRead, done: bytes.Compare(start, r.root.props.LastKey) > 0}
}

// Next returns the next key, or false after the last one. What it returned stays
// valid. After an error Next returns the same error again.
func (it *KeyIter) Next(ctx context.Context) (KeyInfo, bool, error) {
	if it.err != nil || it.done {
		return KeyInfo{}, false, it.err
	}
	if !it.started {
		it.started = true
		it.err = it.seek(ctx)
	} else if !it.cur.forward() {
		if !it.top.forward() {
			it.done = true
			return KeyInfo{}, false, nil
		}
		if it.err = it.open(ctx); it.err == nil {
			it.cur.forward()
		}
	}
	if it.err != nil {
		return KeyInfo{}, false, it.err
	}
	f := &it.cur.f
	return KeyInfo{Key: it.keep(it.cur.key), FirstSequence: f[dirFirst], LastSequence: f[dirLast], Count: f[dirCount]}, true, nil
}

// seek moves to the first key that is not below start. There is one, because
// the last key is not.
func (it *KeyIter) seek(ctx context.Context) error {
	it.top.reset(it.r.root.directory)
	it.top.seek(it.start, fieldSequence, 0)
	if err := it.open(ctx); err != nil {
		return err
	}
	if !it.cur.seek(it.start, dirFirst, math.MaxUint64) {
		it.cur.forward()
		return nil
	}
	if bytes.Equal(it.cur.key, it.start) || it.cur.forward() {
		return nil
	}
	if !it.top.forward() {
		return base.Corruptf(it.r.opts.Name, int64(it.top.f[fieldOffset]), "the directory lacks the last key")
	}
	if err := it.open(ctx); err != nil {
		return err
	}
	it.cur.forward()
	return nil
}

// open loads the partition on which top stands: from the cache, from what was
// read ahead or with the root, or with a read that takes more partitions with it.
func (it *KeyIter) open(ctx context.Context) error {
	r := it.r
	offset, size := int64(it.top.f[fieldOffset]), int64(it.top.f[fieldSize])
	if b, ok := r.cached(offset).(entryBlock); ok && b.kind == directoryKind {
		it.cur.reset(b.entryList)
		return nil
	}
	var data []byte
	var err error
	if offset >= r.root.tailOffset {
		data, err = r.readMeta(ctx, offset, size)
	} else {
		data, err = it.readAhead(ctx, offset, size)
	}
	if err != nil {
		return err
	}
	list, err := r.parseListPart(data, offset, directoryKind)
	if err != nil {
		return err
	}
	it.cur.reset(list)
	return nil
}

// readAhead returns the decoded partition at offset, reading it and some of
// those after it if need be.
func (it *KeyIter) readAhead(ctx context.Context, offset, size int64) ([]byte, error) {
	r := it.r
	if offset < it.offset || offset+size > it.offset+int64(len(it.ahead)) {
		end := offset + size
		next := it.top
		next.key = bytes.Clone(it.top.key)
		for next.forward() && int64(next.f[fieldOffset]) < r.root.tailOffset {
			e := int64(next.f[fieldOffset] + next.f[fieldSize])
			if e-offset > it.want {
				break
			}
			end = e
		}
		it.want = min(2*it.want, r.opts.ReadAhead)
		b, err := r.read(ctx, offset, end-offset)
		if err != nil {
			return nil, err
		}
		it.ahead, it.offset = b, offset
	}
	at := offset - it.offset
	data, c, err := decodeFrame(it.ahead[at:at+size], r.opts.Name, r.opts.ID, offset)
	if c == codecRaw {
		data = bytes.Clone(data) // a cached partition must not keep all of ahead
	}
	return data, err
}

// keep copies key to memory that is never reused.
func (it *KeyIter) keep(key []byte) []byte {
	const chunk = 4 << 10
	if cap(it.arena)-len(it.arena) < len(key) {
		it.arena = make([]byte, 0, max(chunk, len(key)))
	}
	n := len(it.arena)
	it.arena = append(it.arena, key...)
	return it.arena[n:len(it.arena):len(it.arena)]
}
