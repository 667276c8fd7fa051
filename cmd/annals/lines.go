package main

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

// maxLineBytes is the longest line that append reads.
const maxLineBytes = 32 << 20

// readBufferBytes is the unit in which the input is read.
const readBufferBytes = 256 << 10

// entry is one line of the input: the record on it.
type entry struct {
	line  uint64 // from 1; blank lines count
	key   []byte
	value []byte
}

// lineReader reads newline-delimited JSON, gzipped or not.
type lineReader struct {
	in   *bufio.Reader
	line uint64 // lines read so far
}

// newLineReader reads from in, through gzip when that is what the input begins
// with. name is for errors, and for input that is named .gz and is not.
func newLineReader(in io.Reader, name string) (*lineReader, error) {
	buffered := bufio.NewReaderSize(in, readBufferBytes)
	magic, err := buffered.Peek(2)
	if err != nil && err != io.EOF {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	if !bytes.Equal(magic, []byte{0x1f, 0x8b}) {
		if strings.HasSuffix(name, ".gz") {
			return nil, fmt.Errorf("read %s: it is not gzipped", name)
		}
		return &lineReader{in: buffered}, nil
	}
	unzipped, err := gzip.NewReader(buffered)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	return &lineReader{in: bufio.NewReaderSize(unzipped, readBufferBytes)}, nil
}

// skip passes over n lines without looking into them.
func (r *lineReader) skip(n uint64) error {
	for r.line < n {
		_, err := r.readLine()
		if err == io.EOF {
			return fmt.Errorf("--skip %d: the input has only %d lines", n, r.line)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// next returns the record on the next line that is not blank, or io.EOF. An
// error names the line.
func (r *lineReader) next() (entry, error) {
	for {
		text, err := r.readLine()
		if err != nil {
			return entry{}, err
		}
		text = bytes.TrimRight(text, " \t\r\n")
		if len(text) == 0 {
			continue
		}
		key, value, err := parseLine(text)
		if err != nil {
			return entry{}, fmt.Errorf("line %d: %w", r.line, err)
		}
		return entry{r.line, key, value}, nil
	}
}

// readLine returns the next line, which is valid until the next call, or
// io.EOF.
func (r *lineReader) readLine() ([]byte, error) {
	part, err := r.in.ReadSlice('\n')
	line := part
	if err == bufio.ErrBufferFull {
		line = bytes.Clone(part)
		for err == bufio.ErrBufferFull && len(line) <= maxLineBytes {
			part, err = r.in.ReadSlice('\n')
			line = append(line, part...)
		}
	}
	if len(bytes.TrimSuffix(line, []byte("\n"))) > maxLineBytes {
		return nil, fmt.Errorf("line %d: it is longer than %s", r.line+1, formatSize(maxLineBytes))
	}
	switch {
	case err == io.EOF && len(line) == 0:
		return nil, io.EOF
	case err != nil && err != io.EOF:
		return nil, fmt.Errorf("line %d: read: %w", r.line+1, err)
	}
	r.line++
	return line, nil
}

// parseLine reads {"key":...,"value":...}, or with "keyB64" or "valueB64" in base64. Other members are ignored: a line of
// annals scan --json will do. A value
// that is a string is stored as that string, any other as its JSON text without
// white space: numbers keep their digits and objects the order of their
// members. The results do not alias text.
func parseLine(text []byte) (key, value []byte, err error) {
	d := jsontext.NewDecoder(bytes.NewBuffer(text), jsontext.AllowDuplicateNames(true))
	if d.PeekKind() != '{' {
		if _, err := d.ReadValue(); err != nil {
			return nil, nil, err
		}
		return nil, nil, errors.New(`want {"key":...,"value":...}`)
	}
	if _, err := d.ReadToken(); err != nil {
		return nil, nil, err
	}
	for d.PeekKind() == '"' {
		name, err := d.ReadToken()
		if err != nil {
			return nil, nil, err
		}
		switch name.String() {
		case "key":
			key, err = readMember(d, "key", key, stringBytes)
		case "value":
			value, err = readMember(d, "value", value, valueBytes)
		case "keyB64": // as scan prints what is no text
			key, err = readMember(d, "keyB64", key, base64Bytes)
		case "valueB64":
			value, err = readMember(d, "valueB64", value, base64Bytes)
		default:
			err = d.SkipValue()
		}
		if err != nil {
			return nil, nil, err
		}
	}
	if _, err := d.ReadToken(); err != nil { // the closing brace, or what is wrong
		return nil, nil, err
	}
	if _, err := d.ReadToken(); err != io.EOF {
		return nil, nil, errors.New("something follows the JSON object")
	}
	switch {
	case key == nil:
		return nil, nil, errors.New("key is missing")
	case value == nil:
		return nil, nil, errors.New("value is missing")
	}
	return key, value, nil
}

// readMember reads a value that must not have been there before.
func readMember(d *jsontext.Decoder, name string, before []byte,
	convert func(jsontext.Value) ([]byte, error)) ([]byte, error) {
	if before != nil {
		return nil, fmt.Errorf("%s is there twice", name)
	}
	v, err := d.ReadValue()
	if err != nil {
		return nil, err
	}
	b, err := convert(v)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return b, nil
}

// stringBytes returns the bytes of a JSON string, never nil.
func stringBytes(v jsontext.Value) ([]byte, error) {
	if v.Kind() != '"' {
		return nil, errors.New("it must be a string")
	}
	return jsontext.AppendUnquote([]byte{}, v)
}

// base64Bytes returns the bytes that a JSON string gives in base64, never nil.
func base64Bytes(v jsontext.Value) ([]byte, error) {
	text, err := stringBytes(v)
	if err != nil {
		return nil, err
	}
	return base64.StdEncoding.AppendDecode([]byte{}, text)
}

// valueBytes returns the bytes that are stored for a JSON value, never nil.
func valueBytes(v jsontext.Value) ([]byte, error) {
	if v.Kind() == '"' {
		return stringBytes(v)
	}
	v = v.Clone()
	if err := v.Compact(); err != nil {
		return nil, err
	}
	return v, nil
}
