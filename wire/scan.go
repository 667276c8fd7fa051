package wire

import (
	"encoding/base64"
	"strconv"

	"google.golang.org/protobuf/encoding/protowire"
)

// Field numbers of wire.proto.
const (
	fieldScanStatus        protowire.Number = 1
	fieldScanKey           protowire.Number = 2
	fieldScanValues        protowire.Number = 3
	fieldScanNextSequence  protowire.Number = 4
	fieldScanFirstSequence protowire.Number = 100

	fieldValueSequence  protowire.Number = 1
	fieldValueValue     protowire.Number = 2
	fieldValueTimestamp protowire.Number = 100
)

// ScanEncoder writes a ScanResponse record by record into one buffer: Begin, Add
// for each record, End. Not safe for use by several goroutines.
type ScanEncoder struct {
	buf    []byte
	format Format
	values int
}

// Begin starts a response, in the given format, at the end of dst.
func (e *ScanEncoder) Begin(dst []byte, f Format, key []byte) {
	e.format, e.values = f, 0
	if f == Protobuf {
		dst = protowire.AppendTag(dst, fieldScanStatus, protowire.BytesType)
		dst = protowire.AppendString(dst, StatusSuccess)
		dst = protowire.AppendTag(dst, fieldScanKey, protowire.BytesType)
		e.buf = protowire.AppendBytes(dst, key)
		return
	}
	dst = appendStatus(dst, StatusSuccess)
	dst = append(dst, `,"key":`...)
	dst = appendBytes(dst, key)
	e.buf = append(dst, `,"values":[`...)
}

// SizeOf is an upper bound of what Add appends for a value of n bytes.
func (e *ScanEncoder) SizeOf(n int) int {
	if e.format == Protobuf {
		return n + 48 // tags, lengths and two integers
	}
	return base64.StdEncoding.EncodedLen(n) + 96 // names and two integers
}

// Add appends one record.
func (e *ScanEncoder) Add(sequence uint64, timestampMs int64, value []byte) {
	e.values++
	if e.format == Protobuf {
		e.addProtobuf(sequence, timestampMs, value)
		return
	}
	dst := e.buf
	if e.values > 1 {
		dst = append(dst, ',')
	}
	dst = append(dst, `{"sequence":`...)
	dst = strconv.AppendUint(dst, sequence, 10)
	dst = append(dst, `,"value":`...)
	dst = appendBytes(dst, value)
	dst = append(dst, `,"timestampMs":`...)
	dst = strconv.AppendInt(dst, timestampMs, 10)
	e.buf = append(dst, '}')
}

func (e *ScanEncoder) addProtobuf(sequence uint64, timestampMs int64, value []byte) {
	size := 0
	if sequence != 0 {
		size += protowire.SizeTag(fieldValueSequence) + protowire.SizeVarint(sequence)
	}
	if len(value) > 0 {
		size += protowire.SizeTag(fieldValueValue) + protowire.SizeBytes(len(value))
	}
	if timestampMs != 0 {
		size += protowire.SizeTag(fieldValueTimestamp) + protowire.SizeVarint(uint64(timestampMs))
	}
	dst := protowire.AppendTag(e.buf, fieldScanValues, protowire.BytesType)
	dst = protowire.AppendVarint(dst, uint64(size))
	if sequence != 0 {
		dst = protowire.AppendTag(dst, fieldValueSequence, protowire.VarintType)
		dst = protowire.AppendVarint(dst, sequence)
	}
	if len(value) > 0 {
		dst = protowire.AppendTag(dst, fieldValueValue, protowire.BytesType)
		dst = protowire.AppendBytes(dst, value)
	}
	if timestampMs != 0 {
		dst = protowire.AppendTag(dst, fieldValueTimestamp, protowire.VarintType)
		dst = protowire.AppendVarint(dst, uint64(timestampMs))
	}
	e.buf = dst
}

// End completes the response and returns the buffer.
func (e *ScanEncoder) End(nextSequence, firstSequence uint64) []byte {
	dst := e.buf
	e.buf = nil
	if e.format == Protobuf {
		if nextSequence != 0 {
			dst = protowire.AppendTag(dst, fieldScanNextSequence, protowire.VarintType)
			dst = protowire.AppendVarint(dst, nextSequence)
		}
		dst = protowire.AppendTag(dst, fieldScanFirstSequence, protowire.VarintType)
		return protowire.AppendVarint(dst, firstSequence)
	}
	dst = append(dst, `],"nextSequence":`...)
	dst = strconv.AppendUint(dst, nextSequence, 10)
	dst = append(dst, `,"firstSequence":`...)
	dst = strconv.AppendUint(dst, firstSequence, 10)
	return append(dst, '}')
}
