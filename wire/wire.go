// Package wire holds the messages of the HTTP API (docs/HTTP.md) and their two
// encodings: binary protobuf, as generated from wire.proto, and JSON with
// integers as numbers and bytes as base64.
//
// The hot messages have decoders and encoders of their own, which do without
// the generated types: AppendBody for append requests and ScanEncoder for scan
// responses. Tests hold both against the generated code.
package wire

import "strings"

// StatusSuccess and StatusError are the values of the status field.
const (
	StatusSuccess = "success"
	StatusError   = "error"
)

// Media types of the two formats.
const (
	TypeJSON     = "application/json"
	TypeProtobuf = "application/protobuf"
)

// Format is the encoding of a body.
type Format int

const (
	JSON Format = iota
	Protobuf
)

// FormatOf returns the format that a Content-Type or Accept header chooses:
// protobuf when a value names application/protobuf and none says
// application/protobuf+json; everything else, and no header at all, is JSON.
func FormatOf(header []string) Format {
	found := false
	for _, v := range header {
		v = strings.ToLower(v)
		if strings.Contains(v, TypeProtobuf+"+json") {
			return JSON
		}
		found = found || strings.Contains(v, TypeProtobuf)
	}
	if found {
		return Protobuf
	}
	return JSON
}

// ContentType returns the media type of the format.
func (f Format) ContentType() string {
	if f == Protobuf {
		return TypeProtobuf
	}
	return TypeJSON
}
