package wal

import (
	"encoding/binary"
	"fmt"

	"github.com/annalsdb/annals/internal/base"
)

// Magic numbers: the first eight bytes of an object.
const (
	recordMagic = "ANNALWAL"
	fenceMagic  = "ANNALFNC"
)

// Offsets that both kinds of object share.
const (
	offMagic   = 0
	offVersion = 8
	offTree    = 12
	offLogID   = 16
)

// Offsets of a record object's header.
const (
	offWriter   = 32
	offEpoch    = 48
	offID       = 56
	offLength   = 64
	offFirst    = 72
	offEnd      = 80
	offPrevEnd  = 88
	offSegment  = 96
	offEntries  = 100
	offCodec    = 104
	offReserved = 105
	offDurable  = 112

	headerSize   = 120
	checksumSize = 8
	// minRecordSize is the size of a record object without entries.
	minRecordSize = headerSize + checksumSize
)

// Offsets of a fence.
const (
	offFenceEpoch    = 32
	offFenceID       = 40
	offFencer        = 48
	offFenceChecksum = 56
)

// Codecs of a record object's entries. Persisted: do not renumber.
const codecNone = 0

// FenceSize tells fences from record objects, so nothing else may have it.
var _ = [minRecordSize - FenceSize - 1]struct{}{}
var _ = [FenceSize - offFenceChecksum - checksumSize]struct{}{}

var le = binary.LittleEndian

// rawHeader is a record object's header as it is stored: Header and what only
// the codec needs.
type rawHeader struct {
	Header
	length  uint64
	entries uint32
}

// marshal writes the header over the first headerSize bytes of b.
func (h *rawHeader) marshal(b []byte) {
	b = b[:headerSize]
	clear(b)
	copy(b[offMagic:], recordMagic)
	le.PutUint32(b[offVersion:], Version)
	le.PutUint32(b[offTree:], h.Tree)
	copy(b[offLogID:], h.LogID[:])
	copy(b[offWriter:], h.Writer[:])
	le.PutUint64(b[offEpoch:], h.Epoch)
	le.PutUint64(b[offID:], h.ID)
	le.PutUint64(b[offLength:], h.length)
	le.PutUint64(b[offFirst:], h.First)
	le.PutUint64(b[offEnd:], h.End)
	le.PutUint64(b[offPrevEnd:], h.PrevEnd)
	le.PutUint32(b[offSegment:], h.Segment)
	le.PutUint32(b[offEntries:], h.entries)
	b[offCodec] = codecNone
	le.PutUint64(b[offDurable:], h.Durable)
}

// unmarshal reads the header from b, which holds at least headerSize bytes.
func (h *rawHeader) unmarshal(b []byte) {
	b = b[:headerSize]
	h.Tree = le.Uint32(b[offTree:])
	h.LogID = [16]byte(b[offLogID:])
	h.Writer = [16]byte(b[offWriter:])
	h.Epoch = le.Uint64(b[offEpoch:])
	h.ID = le.Uint64(b[offID:])
	h.length = le.Uint64(b[offLength:])
	h.First = le.Uint64(b[offFirst:])
	h.End = le.Uint64(b[offEnd:])
	h.PrevEnd = le.Uint64(b[offPrevEnd:])
	h.Segment = le.Uint32(b[offSegment:])
	h.entries = le.Uint32(b[offEntries:])
	h.Durable = le.Uint64(b[offDurable:])
}

// EncodeFence returns the fence that ends epoch at id, put by the writer of epoch
// fencer. It panics unless 1 <= epoch < fencer and id >= 1.
func EncodeFence(ident Identity, epoch, id, fencer uint64) []byte {
	if epoch == 0 || id == 0 || fencer <= epoch {
		panic(fmt.Sprintf("wal: fence of epoch %d at id %d by epoch %d", epoch, id, fencer))
	}
	b := make([]byte, FenceSize)
	copy(b[offMagic:], fenceMagic)
	le.PutUint32(b[offVersion:], Version)
	le.PutUint32(b[offTree:], ident.Tree)
	copy(b[offLogID:], ident.LogID[:])
	le.PutUint64(b[offFenceEpoch:], epoch)
	le.PutUint64(b[offFenceID:], id)
	le.PutUint64(b[offFencer:], fencer)
	le.PutUint64(b[offFenceChecksum:], base.Checksum(ident.seed(epoch, id), b[:offFenceChecksum]))
	return b
}
