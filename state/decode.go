package state

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"github.com/annalsdb/annals/internal/base"
)

// ErrVersion: a state object has a format version that this binary does not know. Use a newer binary.
var ErrVersion = errors.New("unknown format version")

// Info describes a state object.
type Info struct {
	Changes bool      // of changes; else a base
	Base    base.ULID // the base that the changes are of
	// AppendsEnd, of Verify, is the log sequence after the last append of any producer.
	AppendsEnd uint64
	Counts
}

// Counts is what is in a state object.
type Counts struct {
	Frames        uint64
	Consumers     uint64 // that are named
	Cursors       uint64
	CursorsGone   uint64 // one by one; those of consumers that went as a whole are not counted
	Producers     uint64
	ProducersGone uint64
}

// list returns the counts in the order of the footer.
func (c *Counts) list() [6]*uint64 {
	return [...]*uint64{&c.Frames, &c.Consumers, &c.Cursors, &c.CursorsGone, &c.Producers, &c.ProducersGone}
}

// DecodeBase returns the tables of a base object. Name is for errors, which match base.ErrCorrupt or ErrVersion; id is that of the
// object that this should be. Of more producers than the limits allow, those that appended longest ago are forgotten, which is a
// change since that base.
func DecodeBase(name string, id base.ULID, body []byte, l Limits) (*Tables, error) {
	t := New(l)
	info, err := walk(name, id, body, t.load)
	if err != nil {
		return nil, err
	}
	if info.Changes {
		return nil, base.Corruptf(name, offKind, "changes, not a base")
	}
	t.base = t.version
	t.trim(0)
	return t, nil
}

// DecodeChanges applies an object of changes to tables that hold the base with the id of, and nothing else. Errors are those of
// DecodeBase; after one the tables are not to be used.
func (t *Tables) DecodeChanges(name string, id, of base.ULID, body []byte) error {
	info, err := walk(name, id, body, t.load)
	if err != nil {
		return err
	}
	if !info.Changes || info.Base != of {
		return base.Corruptf(name, offBase, "not changes of base %s, but of %s", of, info.Base)
	}
	t.trim(0)
	return nil
}

// Verify reads a state object and checks everything that can be checked without another one. Errors are those of DecodeBase.
func Verify(name string, id base.ULID, body []byte) (Info, error) {
	var end uint64
	info, err := walk(name, id, body, func(e *entry) {
		for _, m := range e.marks {
			if e.tag == tagProducer {
				end = max(end, m.first+uint64(m.count))
			}
		}
	})
	info.AppendsEnd = end
	return info, err
}

// load applies one entry.
func (t *Tables) load(e *entry) {
	switch e.tag {
	case tagConsumerAnew:
		t.DeleteConsumer(e.consumer)
	case tagCursor:
		t.SetCursor(e.consumer, e.name, e.next)
	case tagCursorGone:
		t.DeleteCursor(e.consumer, e.name)
	case tagProducer:
		t.setProducer(string(e.name), e.next, e.marks)
	case tagProducerGone:
		t.deleteProducer(string(e.name))
	}
}

// entry is one entry of an object.
type entry struct {
	tag      byte
	consumer string     // whose cursor it is
	name     []byte     // the key, or the name of the consumer or producer
	next     uint64     // of a cursor; of a producer its last sequence
	marks    []appended // of a producer
}

// walker reads a state object from its start to its end.
type walker struct {
	object string
	id     base.ULID
	body   []byte
	at     int    // offset of the frame at hand
	buf    []byte // of decompressed payloads
	info   Info
	yield  func(*entry)

	entry    entry  // the last one
	opened   bool   // its consumer was named in the frame at hand
	consumer string // the last one
	key      []byte // of the consumer's last cursor; nil: none yet
	producer []byte // the last one; nil: none yet
}

// walk checks an object and calls yield for its entries in order. What yield gets is valid until it returns.
func walk(object string, id base.ULID, body []byte, yield func(*entry)) (Info, error) {
	w := &walker{object: object, id: id, body: body, yield: yield}
	if err := w.header(); err != nil {
		return Info{}, err
	}
	end := len(body) - footerBytes
	for w.at = headerBytes; w.at < end; {
		payload, size, err := w.frame(end)
		if err != nil {
			return Info{}, err
		}
		if err := w.entries(payload); err != nil {
			return Info{}, err
		}
		w.at += size
	}
	return w.info, w.footer(end)
}

func (w *walker) corrupt(at int, format string, args ...any) error {
	return base.Corruptf(w.object, int64(at), format, args...)
}

// header checks the header, and that what is there can be an object.
func (w *walker) header() error {
	b := w.body
	switch {
	case len(b) < headerBytes+footerBytes:
		return w.corrupt(0, "%d bytes, a state object has at least %d", len(b), headerBytes+footerBytes)
	case string(b[:offVersion]) != magic:
		return w.corrupt(0, "magic %q, want %q", b[:offVersion], magic)
	}
	if err := w.sum(0, headerBytes); err != nil {
		return err
	}
	// Magic, version and this checksum keep their places in every version, so that an intact newer object can be told
	// from a damaged one.
	if v := le.Uint32(b[offVersion:]); v != FormatVersion {
		return fmt.Errorf("read %s: state object has format version %d, this binary knows %d: %w", w.object, v, FormatVersion, ErrVersion)
	}
	w.info.Base = base.ULID(b[offBase:])
	w.info.Changes = b[offKind] == kindChanges
	switch {
	case b[offKind] != kindBase && b[offKind] != kindChanges:
		return w.corrupt(offKind, "unknown kind %d", b[offKind])
	case b[offReserved]|b[offReserved+1]|b[offReserved+2] != 0:
		return w.corrupt(offReserved, "reserved bytes are not zero")
	case !w.info.Changes && w.info.Base != base.ULID{}:
		return w.corrupt(offBase, "a base of another base")
	}
	return nil
}

// sum checks the checksum at the end of a part.
func (w *walker) sum(at, size int) error {
	part := w.body[at : at+size]
	checked, trailer := part[:size-sumBytes], part[size-sumBytes:]
	got, want := base.Checksum(base.Seed(w.id[:], uint64(at)), checked), le.Uint64(trailer)
	if got != want {
		return w.corrupt(at, "checksum is %016x, content has %016x", want, got)
	}
	return nil
}

// frame checks the frame at hand, which ends before end, and returns its payload, which is valid until the next one is, and
// its size.
func (w *walker) frame(end int) (payload []byte, size int, err error) {
	b := w.body[w.at:end]
	if len(b) < frameHeaderBytes+sumBytes {
		return nil, 0, w.corrupt(w.at, "frame of %d bytes", len(b))
	}
	stored, length, codec := le.Uint32(b), le.Uint32(b[offDecoded:]), b[offCodec]
	if uint64(stored) > uint64(len(b)-frameHeaderBytes-sumBytes) {
		return nil, 0, w.corrupt(w.at, "frame with %d bytes of payload, %d are left", stored, len(b))
	}
	size = frameHeaderBytes + int(stored) + sumBytes
	if err := w.sum(w.at, size); err != nil {
		return nil, 0, err
	}
	switch r := b[offFrameReserved:frameHeaderBytes]; {
	case r[0]|r[1]|r[2] != 0:
		return nil, 0, w.corrupt(w.at+offFrameReserved, "reserved bytes are not zero")
	case length == 0 || length > maxFrameBytes || uint64(length) > maxRatio*uint64(stored):
		return nil, 0, w.corrupt(w.at+offDecoded, "payload of %d bytes decodes to %d", stored, length)
	}
	payload = b[frameHeaderBytes : frameHeaderBytes+int(stored)]
	switch codec {
	case codecRaw:
	case codecZstd:
		if cap(w.buf) < int(length) {
			w.buf = make([]byte, 0, length)
		}
		if payload, err = zstdDecoder.DecodeAll(payload, w.buf[:0:length]); err != nil {
			return nil, 0, w.corrupt(w.at, "decompress: %v", err)
		}
	default:
		return nil, 0, w.corrupt(w.at+offCodec, "unknown codec %d", codec)
	}
	if len(payload) != int(length) {
		return nil, 0, w.corrupt(w.at+offDecoded, "payload decodes to %d bytes, not %d", len(payload), length)
	}
	w.info.Frames++
	return payload, size, nil
}

func (w *walker) footer(at int) error {
	if err := w.sum(at, footerBytes); err != nil {
		return err
	}
	names := [...]string{"frames", "consumers", "cursors", "cursors that are gone", "producers", "producers that are gone"}
	for i, n := range w.info.list() {
		if want := le.Uint64(w.body[at+8*i:]); *n != want {
			return w.corrupt(at+8*i, "%d %s, there are %d", want, names[i], *n)
		}
	}
	return nil
}

// entries decodes the payload of a frame.
func (w *walker) entries(payload []byte) error {
	w.opened = false
	p := &parser{rest: payload}
	for first := true; len(p.rest) > 0; first = false {
		at := len(payload) - len(p.rest)
		err := w.next(p, first)
		if err == nil {
			err = p.err
		}
		if err != nil {
			return w.corrupt(w.at, "byte %d of the payload: %v", at, err)
		}
		w.yield(&w.entry)
	}
	return nil
}

// next decodes one entry, the first of a frame or not, of which a byte is there at least, and checks that it may follow the one before.
func (w *walker) next(p *parser, first bool) error {
	tag := p.rest[0]
	p.rest = p.rest[1:]
	name := p.name()
	if p.err != nil {
		return p.err
	}
	w.entry = entry{tag: tag, consumer: w.consumer, name: name}
	switch {
	case tag < tagConsumer || tag > tagProducerGone:
		return fmt.Errorf("unknown entry %d", tag)
	case (tag == tagConsumerAnew || tag == tagCursorGone || tag == tagProducerGone) && !w.info.Changes:
		return fmt.Errorf("entry %d in a base", tag)
	case tag <= tagCursorGone && w.producer != nil:
		return errors.New("cursors behind producers")
	case tag <= tagConsumerAnew:
		return w.nextConsumer(string(name), first)
	case tag <= tagCursorGone:
		return w.nextCursor(p)
	}
	return w.nextProducer(p)
}

// nextConsumer checks that consumers ascend. One may begin a frame with the cursors that did not fit into the one before.
func (w *walker) nextConsumer(name string, first bool) error {
	again := w.info.Consumers > 0 && name == w.consumer
	switch {
	case again && (!first || w.entry.tag == tagConsumerAnew):
		return fmt.Errorf("consumer %.40q again", name)
	case !again && w.info.Consumers > 0 && name < w.consumer:
		return fmt.Errorf("consumer %.40q after %.40q", name, w.consumer)
	case !again:
		w.info.Consumers++
		w.key = nil
	}
	w.opened, w.consumer, w.entry.consumer = true, name, name
	return nil
}

// nextCursor checks that the keys of a consumer ascend.
func (w *walker) nextCursor(p *parser) error {
	if w.entry.tag == tagCursor {
		w.entry.next = p.uvarint()
		w.info.Cursors++
	} else {
		w.info.CursorsGone++
	}
	switch key := w.entry.name; {
	case !w.opened:
		return errors.New("a cursor without its consumer")
	case w.key != nil && bytes.Compare(key, w.key) <= 0:
		return fmt.Errorf("key %.40q after %.40q", key, w.key)
	default:
		w.key = append(w.key[:0:cap(w.key)], key...)
		if w.key == nil {
			w.key = []byte{}
		}
	}
	return p.err
}

// nextProducer checks that producers ascend.
func (w *walker) nextProducer(p *parser) error {
	if w.entry.tag == tagProducer {
		w.entry.next, w.entry.marks = p.marks()
		w.info.Producers++
	} else {
		w.info.ProducersGone++
	}
	if w.producer != nil && bytes.Compare(w.entry.name, w.producer) <= 0 {
		return fmt.Errorf("producer %.40q after %.40q", w.entry.name, w.producer)
	}
	w.producer = append(make([]byte, 0, len(w.entry.name)), w.entry.name...)
	return p.err
}

// parser reads the fields of entries. After an error it gives zero values.
type parser struct {
	rest []byte
	err  error
}

func (p *parser) fail(format string, args ...any) {
	if p.err == nil {
		p.err = fmt.Errorf(format, args...)
	}
	p.rest = nil
}

func (p *parser) uvarint() uint64 {
	v, n := binary.Uvarint(p.rest)
	if n <= 0 {
		p.fail("a number ends early or is too large")
		return 0
	}
	p.rest = p.rest[n:]
	return v
}

func (p *parser) varint() int64 {
	u := p.uvarint()
	return int64(u>>1) ^ -int64(u&1) // as package binary has it
}

// name reads a length and so many bytes, which share memory with the payload.
func (p *parser) name() []byte {
	n := p.uvarint()
	if n > uint64(len(p.rest)) {
		p.fail("%d bytes of a name, %d are left", n, len(p.rest))
		return nil
	}
	name := p.rest[:n:n]
	p.rest = p.rest[n:]
	return name
}

// marks reads what is remembered of a producer.
func (p *parser) marks() (last uint64, marks []appended) {
	last = p.uvarint()
	n := p.uvarint()
	if p.err == nil && (n < 1 || n > ProducerWindow || n-1 > last) {
		p.fail("%d appends up to number %d", n, last)
	}
	if p.err != nil {
		return 0, nil
	}
	marks = make([]appended, 0, n)
	var a appended
	for range n {
		a.first += p.uvarint()
		a.timestamp += p.varint()
		count := p.uvarint()
		if p.err == nil && (count < 1 || count > math.MaxUint32) {
			p.fail("an append of %d records", count)
		}
		a.count = uint32(count)
		marks = append(marks, a)
	}
	return last, marks
}
