package sst

import (
	"github.com/klauspost/compress/s2"
	"github.com/klauspost/compress/zstd"
)

// zstdWindow is enough for blocks of ordinary size and keeps the encoder of a
// Writer small.
const zstdWindow = 1 << 20

// What zstd finds no match for it codes by how often each byte occurs. That is a quarter of
// the work, and of no use for random ids, floats, or what is compressed already. So every
// probeEvery-th data block is encoded without it too, and if that costs less than 1/probeGain of
// the stored bytes, so are the blocks up to the next probe.
const (
	probeEvery = 64
	probeGain  = 64
)

// packer compresses what a Writer stores. The zero value is ready. What it makes
// depends on nothing but what it was given before.
type packer struct {
	fast bool // data blocks are S2

	enc   *zstd.Encoder
	plain *zstd.Encoder // without entropy coding of literals
	probe []byte        // memory of the second form of a block

	blocks  int  // data blocks so far
	useless bool // the last probe found no use in entropy coding

	raws int  // blocks so far that another writer could not make smaller
	raw  bool // the last probe of them could
}

// append compresses a block of metadata behind b, or copies it if that does not help.
func (p *packer) append(b, data []byte) ([]byte, codec) {
	return smaller(p.encode(b, data), len(b), data, codecZstd)
}

// appendData compresses a data block behind b, or copies it if that does not help.
func (p *packer) appendData(b, data []byte) ([]byte, codec) {
	start := len(b)
	if p.fast {
		return smaller(appendS2(b, data), start, data, codecS2)
	}
	p.blocks++
	switch {
	case p.blocks%probeEvery == 0:
		b = p.encode(b, data)
		p.compare(data, len(b)-start)
	case p.useless:
		b = p.plain.EncodeAll(data, b)
	default:
		b = p.encode(b, data)
	}
	return smaller(b, start, data, codecZstd)
}

// encode appends data as a zstd frame.
func (p *packer) encode(b, data []byte) []byte {
	if p.enc == nil {
		p.enc = newEncoder()
	}
	return p.enc.EncodeAll(data, b)
}

// appendS2 appends data as an S2 block.
func appendS2(b, data []byte) []byte {
	free := b[len(b):cap(b)]
	if len(free) < s2.MaxEncodedLen(len(data)) {
		return append(b, s2.Encode(nil, data)...)
	}
	return b[:len(b)+len(s2.Encode(free, data))]
}

// compare decides whether entropy coding, which makes n bytes of data, is useless.
func (p *packer) compare(data []byte, n int) {
	if p.plain == nil {
		p.plain = newEncoder(zstd.WithNoEntropyCompression(true))
	}
	p.probe = p.plain.EncodeAll(data, p.probe[:0])
	without := len(p.probe)
	p.useless = without-n < without/probeGain
	p.dropProbe()
}

// shrinks reports whether zstd is likely to make a stored block smaller that another writer left raw. If that
// one was in a hurry it may: S2 finds repetitions alone, and has no use of letters that are rarer than others, as
// in text of hexadecimal digits. Every probeEvery-th block is tried.
func (p *packer) shrinks(payload []byte) bool {
	if p.raws%probeEvery == 0 {
		p.probe = p.encode(p.probe[:0], payload)
		_, c := smaller(p.probe, 0, payload, codecZstd)
		p.raw = c == codecZstd
		p.dropProbe()
	}
	p.raws++
	return p.raw
}

// dropProbe frees the memory of a probe of a large value.
func (p *packer) dropProbe() {
	if cap(p.probe) > keepDecoded {
		p.probe = nil
	}
}

// smaller returns b, which ends with the compressed form of data at start, or with data itself
// if that form is hardly smaller, or so small that a reader would refuse it.
func smaller(b []byte, start int, data []byte, c codec) ([]byte, codec) {
	if n := len(b) - start; n <= len(data)-len(data)/16-1 && len(data) <= maxDecoded(n) {
		return b, c
	}
	return append(b[:start], data...), codecRaw
}

func newEncoder(opts ...zstd.EOption) *zstd.Encoder {
	enc, err := zstd.NewWriter(nil, append(opts, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1),
		zstd.WithEncoderCRC(false), zstd.WithWindowSize(zstdWindow), zstd.WithLowerEncoderMem(true))...)
	if err != nil {
		panic("sst: make a zstd encoder: " + err.Error()) // only bad options fail
	}
	return enc
}
