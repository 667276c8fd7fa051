package wire

import (
	"bytes"
	"encoding/base64"
	"errors"
)

var (
	strictPadded = base64.StdEncoding.Strict()
	strictRaw    = base64.RawStdEncoding.Strict()
)

var (
	errBase64      = errors.New("not base64")
	errBase64Lines = errors.New("base64 with line breaks")
)

// AppendBase64 appends the bytes that src stands for: standard base64 with full
// padding or none. Line breaks and stray bits in the last character are errors,
// so that every byte string has exactly these two texts.
func AppendBase64(dst, src []byte) ([]byte, error) {
	// The library skips line breaks even when it is strict.
	if bytes.IndexByte(src, '\n') >= 0 || bytes.IndexByte(src, '\r') >= 0 {
		return dst, errBase64Lines
	}
	enc := strictRaw
	if len(src)%4 == 0 {
		enc = strictPadded
	}
	out, err := enc.AppendDecode(dst, src)
	if err != nil {
		return dst, errBase64
	}
	return out, nil
}

// DecodeQueryBase64 returns the bytes that a query parameter's value stands
// for: base64 with the standard or the URL-safe alphabet, with or without
// padding. A space counts as the plus sign that became one on the way.
func DecodeQueryBase64(s string) ([]byte, error) {
	src := []byte(s)
	for i, c := range src {
		switch c {
		case '-', ' ':
			src[i] = '+'
		case '_':
			src[i] = '/'
		}
	}
	return AppendBase64([]byte{}, src)
}
