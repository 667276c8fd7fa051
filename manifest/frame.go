package manifest

import (
	"encoding/binary"
	"fmt"

	"github.com/klauspost/compress/zstd"

	"github.com/annalsdb/annals/internal/base"
)

// The frame around LOG and MANIFEST. All integers are little-endian.
//
//	0   8  magic
//	8   4  format version
//	12  1  codec
//	13  3  reserved, zero
//	16  4  decoded length
//	20  n  payload
//	    8  xxhash64 of everything before, seeded with what the object should be
const (
	offVersion  = 8
	offCodec    = 12
	offReserved = 13
	offLength   = 16
	headerBytes = 20
	sumBytes    = 8
	frameBytes  = headerBytes + sumBytes

	// maxRatio bounds what a compressed object may ask a reader to allocate, as a
	// multiple of its size. Ids are random, so real states stay far below.
	maxRatio = 64

	// maxObjectBytes is the largest object that a frame can be.
	maxObjectBytes = MaxManifestBytes + frameBytes
)

// Codecs. Persisted: do not renumber.
const (
	codecRaw  = 0
	codecZstd = 1
)

// frameKind is one of the two kinds of framed object.
type frameKind struct {
	magic string // 8 bytes
	seed  string
}

var (
	logFrame   = frameKind{magic: "ANLS-LOG", seed: "LOG"}
	stateFrame = frameKind{magic: "ANLS-MAN", seed: "MANIFEST"}
)

// One encoder and one decoder serve every call; neither keeps state between
// calls. They are warmed up here because they make their internal channels at first
// use, which must not happen inside a simulated goroutine group.
var (
	zstdEncoder = newEncoder()
	zstdDecoder = newDecoder()
)

func newEncoder() *zstd.Encoder {
	e, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithZeroFrames(true))
	if err != nil {
		panic("manifest: " + err.Error()) // options are constant
	}
	_ = e.EncodeAll(nil, nil)
	return e
}

func newDecoder() *zstd.Decoder {
	d, err := zstd.NewReader(nil,
		zstd.WithDecoderConcurrency(1),
		zstd.WithDecoderMaxMemory(MaxManifestBytes),
		zstd.WithDecoderMaxWindow(MaxManifestBytes),
		zstd.WithDecodeAllCapLimit(true))
	if err != nil {
		panic("manifest: " + err.Error()) // options are constant
	}
	return d
}

// seal puts message into a frame. The message must not exceed MaxManifestBytes.
func (k frameKind) seal(tree uint32, message []byte) []byte {
	out, codec := pack(make([]byte, headerBytes, headerBytes+len(message)/2+sumBytes), message)
	copy(out, k.magic)
	binary.LittleEndian.PutUint32(out[offVersion:], FormatVersion)
	out[offCodec] = codec
	binary.LittleEndian.PutUint32(out[offLength:], uint32(len(message)))
	return binary.LittleEndian.AppendUint64(out, k.checksum(tree, out))
}

// open checks a frame and returns the message in it (invariant I8). The result may
// share memory with body. It allocates at most maxRatio times the size of body, and
// never more than MaxManifestBytes.
func (k frameKind) open(name string, tree uint32, body []byte) ([]byte, error) {
	if len(body) < frameBytes {
		return nil, base.Corruptf(name, 0, "%d bytes, a frame has at least %d", len(body), frameBytes)
	}
	if string(body[:offVersion]) != k.magic {
		return nil, base.Corruptf(name, 0, "magic %q, want %q", body[:offVersion], k.magic)
	}
	checked, trailer := body[:len(body)-sumBytes], body[len(body)-sumBytes:]
	if got, want := k.checksum(tree, checked), binary.LittleEndian.Uint64(trailer); got != want {
		return nil, base.Corruptf(name, int64(len(checked)), "checksum is %016x, content has %016x", want, got)
	}
	// Magic, version and checksum keep their places in every version, so that an intact
	// newer object can be told from a damaged one.
	if v := binary.LittleEndian.Uint32(body[offVersion:]); v != FormatVersion {
		return nil, fmt.Errorf("read %s: log has format version %d, this binary knows %d: %w", name, v, FormatVersion, ErrVersion)
	}
	if r := body[offReserved:offLength]; r[0]|r[1]|r[2] != 0 {
		return nil, base.Corruptf(name, offReserved, "reserved bytes are not zero")
	}
	message, err := unpack(body[offCodec], binary.LittleEndian.Uint32(body[offLength:]), checked[headerBytes:])
	if err != nil {
		return nil, base.Corruptf(name, offCodec, "%v", err)
	}
	return message, nil
}

func (k frameKind) checksum(tree uint32, checked []byte) uint64 {
	return base.Checksum(base.Seed([]byte(k.seed), uint64(tree)), checked)
}

// pack appends a payload that decodes to message, and tells its codec. A message that does not get smaller,
// or so much smaller that unpack would refuse it, is stored as it is. It must not exceed MaxManifestBytes.
func pack(out, message []byte) ([]byte, byte) {
	if len(message) > MaxManifestBytes {
		panic(fmt.Sprintf("manifest: message of %d bytes", len(message)))
	}
	start := len(out)
	out = zstdEncoder.EncodeAll(message, out)
	if n := len(out) - start; n >= len(message) || n < (len(message)+maxRatio-1)/maxRatio {
		return append(out[:start], message...), codecRaw
	}
	return out, codecZstd
}

// unpack decodes a payload. The result may share memory with it. It allocates at most maxRatio times
// the size of the payload, and never more than MaxManifestBytes.
func unpack(codec byte, length uint32, payload []byte) ([]byte, error) {
	if length > MaxManifestBytes {
		return nil, fmt.Errorf("decoded length %d is above %d", length, MaxManifestBytes)
	}
	switch codec {
	case codecRaw:
		if int64(length) != int64(len(payload)) {
			return nil, fmt.Errorf("decoded length %d, payload has %d bytes", length, len(payload))
		}
		return payload, nil
	case codecZstd:
		if int64(length) > maxRatio*int64(len(payload)) {
			return nil, fmt.Errorf("decoded length %d is above %d times the payload's %d bytes", length, maxRatio, len(payload))
		}
		message, err := zstdDecoder.DecodeAll(payload, make([]byte, 0, length))
		if err != nil {
			return nil, fmt.Errorf("decompress: %w", err)
		}
		if len(message) != int(length) {
			return nil, fmt.Errorf("decoded length %d, payload decodes to %d bytes", length, len(message))
		}
		return message, nil
	}
	return nil, fmt.Errorf("unknown codec %d", codec)
}
