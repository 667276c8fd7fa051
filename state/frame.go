package state

import (
	"encoding/binary"
	"fmt"

	"github.com/klauspost/compress/zstd"

	"github.com/annalsdb/annals/internal/base"
)

// FormatVersion is the version of state objects that this binary reads and writes.
const FormatVersion = 1

// Layout of a state object; docs/format/state.md has the tables.
const (
	magic       = "ANLS-STA"
	offVersion  = 8
	offKind     = 12
	offReserved = 13
	offBase     = 16
	headerBytes = 40 // checksum included

	offDecoded       = 4
	offCodec         = 8
	offFrameReserved = 9
	frameHeaderBytes = 12

	footerBytes = 56 // checksum included
	sumBytes    = 8

	// frameTarget is the decoded size at which a frame ends. One entry may be larger.
	frameTarget = 64 << 10
	// maxFrameBytes is the largest decoded frame.
	maxFrameBytes = 64 << 20
	// maxRatio bounds what a compressed frame may ask a reader to allocate, as a multiple of its size.
	maxRatio = 64
)

// Codecs of a frame. Persisted: do not renumber.
const (
	codecRaw  = 0
	codecZstd = 1
)

// Kinds of state objects. Persisted: do not renumber.
const (
	kindBase    = 1
	kindChanges = 2
)

// Tags of entries. Persisted: do not renumber.
const (
	tagConsumer     = 1 // the cursors that follow are its own
	tagConsumerAnew = 2 // the same, and those of the base are gone
	tagCursor       = 3
	tagCursorGone   = 4
	tagProducer     = 5
	tagProducerGone = 6
)

var le = binary.LittleEndian

// One encoder and one decoder serve every call; neither keeps state between calls. They are warmed up here because they
// make their internal channels at first use, which must not happen inside a simulated goroutine group.
var (
	zstdEncoder = newEncoder()
	zstdDecoder = newDecoder()
)

func newEncoder() *zstd.Encoder {
	e, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithWindowSize(frameTarget))
	if err != nil {
		panic("state: " + err.Error()) // options are constant
	}
	_ = e.EncodeAll(nil, nil)
	return e
}

func newDecoder() *zstd.Decoder {
	d, err := zstd.NewReader(nil,
		zstd.WithDecoderConcurrency(1),
		zstd.WithDecoderMaxMemory(maxFrameBytes),
		zstd.WithDecoderMaxWindow(maxFrameBytes),
		zstd.WithDecodeAllCapLimit(true))
	if err != nil {
		panic("state: " + err.Error()) // options are constant
	}
	return d
}

// appendSum appends the checksum of the part of an object that begins at an offset.
func appendSum(out []byte, id base.ULID, at int) []byte {
	return le.AppendUint64(out, base.Checksum(base.Seed(id[:], uint64(at)), out[at:]))
}

// appendFrame appends a frame with a payload.
func appendFrame(out []byte, id base.ULID, payload []byte) []byte {
	if len(payload) > maxFrameBytes {
		panic(fmt.Sprintf("state: frame of %d bytes", len(payload)))
	}
	at := len(out)
	out = append(out, make([]byte, frameHeaderBytes)...)
	out = zstdEncoder.EncodeAll(payload, out)
	stored := len(out) - at - frameHeaderBytes
	codec := byte(codecZstd)
	if stored >= len(payload) || stored*maxRatio < len(payload) {
		out = append(out[:at+frameHeaderBytes], payload...)
		stored, codec = len(payload), codecRaw
	}
	le.PutUint32(out[at:], uint32(stored))
	le.PutUint32(out[at+offDecoded:], uint32(len(payload)))
	out[at+offCodec] = codec
	return appendSum(out, id, at)
}
