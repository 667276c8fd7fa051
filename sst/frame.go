package sst

import (
	"encoding/binary"
	"fmt"

	"github.com/klauspost/compress/s2"
	"github.com/klauspost/compress/zstd"

	"github.com/annalsdb/annals/internal/base"
)

// codec says how a block's payload is stored. Values are persisted: do not
// renumber.
type codec uint8

const (
	codecRaw  codec = 0
	codecZstd codec = 1
	codecS2   codec = 2
)

// trailerSize is what a frame adds to its payload: codec, decoded length,
// checksum.
const trailerSize = 1 + 4 + 8

// maxDecoded is the largest decoded length that a compressed payload of n bytes may
// claim, and so what a reader allocates for it at most (I9).
func maxDecoded(n int) int { return 1<<20 + 256*n }

// decoder serves all Readers: it is a pool of GOMAXPROCS block decoders without
// goroutines of its own. It is made when the program starts, not at first use,
// because the channel inside must not belong to one test's synctest bubble.
var decoder = newDecoder()

func newDecoder() *zstd.Decoder {
	// DecodeAll never passes the capacity of its destination, which decodeFrame
	// sizes by the checked decoded length.
	dec, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(0), zstd.WithDecodeAllCapLimit(true))
	if err != nil {
		panic("sst: make a zstd decoder: " + err.Error()) // only bad options fail
	}
	return dec
}

// appendTrailer completes the frame whose payload is b[start:] and which lies
// at offset in the table.
func appendTrailer(b []byte, start int, c codec, decoded int, id base.ULID, offset int64) []byte {
	b = append(b, byte(c))
	b = binary.LittleEndian.AppendUint32(b, uint32(decoded))
	return binary.LittleEndian.AppendUint64(b, base.Checksum(base.Seed(id[:], uint64(offset)), b[start:]))
}

// claimedSize is the decoded length that a stored block claims to have, unverified; 0 if it is too short.
func claimedSize(b []byte) int64 {
	if len(b) < trailerSize {
		return 0
	}
	return int64(binary.LittleEndian.Uint32(b[len(b)-trailerSize+1:]))
}

// decodeFrame verifies the stored block b, which lies at offset, and returns
// its decoded form: for a raw block a part of b itself.
func decodeFrame(b []byte, name string, id base.ULID, offset int64) ([]byte, codec, error) {
	return decodeFrameTo(nil, b, name, id, offset)
}

// decodeFrameTo is decodeFrame that decompresses into the memory of buf if that is large enough.
func decodeFrameTo(buf, b []byte, name string, id base.ULID, offset int64) ([]byte, codec, error) {
	n := len(b) - trailerSize
	if n < 0 {
		return nil, 0, base.Corruptf(name, offset, "a block of %d bytes is shorter than its trailer", len(b))
	}
	sum := binary.LittleEndian.Uint64(b[n+5:])
	if sum != base.Checksum(base.Seed(id[:], uint64(offset)), b[:n+5]) {
		return nil, 0, base.Corruptf(name, offset, "block checksum does not match")
	}
	c, decoded := codec(b[n]), uint64(binary.LittleEndian.Uint32(b[n+1:]))
	if c == codecRaw {
		if decoded != uint64(n) {
			return nil, 0, base.Corruptf(name, offset, "a raw block of %d bytes claims a length of %d", n, decoded)
		}
		return b[:n:n], c, nil
	}
	if decoded > uint64(maxDecoded(n)) {
		return nil, 0, base.Corruptf(name, offset, "a block of %d bytes claims a decoded length of %d", n, decoded)
	}
	out, err := decompress(buf, b[:n], c, int(decoded))
	if err != nil {
		return nil, 0, base.Corruptf(name, offset, "decompress block: %v", err)
	}
	return out, c, nil
}

// decompress returns the decoded bytes of a payload, which must be as many as it claims, in the memory of
// buf if that is large enough. It allocates no more than the claim, which the caller has checked.
func decompress(buf, payload []byte, c codec, decoded int) (out []byte, err error) {
	const slack = 16 // lets the decoder use its fast copies to the end
	if cap(buf) < decoded+slack {
		buf = make([]byte, 0, decoded+slack)
	}
	switch c {
	case codecZstd:
		out, err = decoder.DecodeAll(payload, buf[:0])
	case codecS2:
		// Decode allocates what the payload claims, if buf has less.
		var n int
		if n, err = s2.DecodedLen(payload); err == nil && n != decoded {
			err = fmt.Errorf("its own length is %d, not %d", n, decoded)
		}
		if err == nil {
			out, err = s2.Decode(buf[:0], payload)
		}
	default:
		err = fmt.Errorf("unknown codec %d", c)
	}
	if err == nil && len(out) != decoded {
		err = fmt.Errorf("it has %d bytes, not %d", len(out), decoded)
	}
	return out, err
}
