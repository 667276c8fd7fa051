package manifest

import (
	"fmt"

	"google.golang.org/protobuf/proto"

	"github.com/annalsdb/annals/internal/base"
)

// knownFeatures are the features that a log may require of this binary. Version 1
// has none.
var knownFeatures = map[string]bool{}

// EncodeState returns the bytes of a MANIFEST. The state must be valid and its
// message at most MaxManifestBytes; anything else is a programmer's error and
// panics (the committer refuses such states with an error).
func EncodeState(s *State) []byte {
	body, err := encodeState(s)
	if err != nil {
		panic("manifest: " + err.Error())
	}
	return body
}

func encodeState(s *State) ([]byte, error) {
	if n := proto.Size(s); n > MaxManifestBytes {
		return nil, fmt.Errorf("encode MANIFEST: %d bytes are above the limit of %d", n, MaxManifestBytes)
	}
	message, err := proto.MarshalOptions{Deterministic: true}.Marshal(s)
	if err != nil {
		return nil, fmt.Errorf("encode MANIFEST: %w", err)
	}
	return stateFrame.seal(s.Tree, message), nil
}

// DecodeState reads the bytes of the MANIFEST of a tree. The name goes into errors
// only. The result is valid (Validate). Errors: base.ErrCorrupt, ErrVersion,
// ErrFeature. It keeps nothing of body.
func DecodeState(name string, tree uint32, body []byte) (*State, error) {
	message, err := stateFrame.open(name, tree, body)
	if err != nil {
		return nil, err
	}
	s := &State{}
	if err := proto.Unmarshal(message, s); err != nil {
		return nil, base.Corruptf(name, headerBytes, "%v", err)
	}
	if err := checkFeatures(name, s.RequiredFeatures); err != nil {
		return nil, err
	}
	if s.Tree != tree {
		return nil, base.Corruptf(name, headerBytes, "state of tree %d, want tree %d", s.Tree, tree)
	}
	if err := Validate(s); err != nil {
		return nil, base.Corruptf(name, headerBytes, "%v", err)
	}
	return s, nil
}

// EncodeLog returns the bytes of LOG. The log must be valid (ValidateLog); it
// panics on one that cannot be encoded.
func EncodeLog(l *Log) []byte {
	message, err := proto.MarshalOptions{Deterministic: true}.Marshal(l)
	if err != nil {
		panic("manifest: encode LOG: " + err.Error())
	}
	return logFrame.seal(0, message)
}

// DecodeLog reads the bytes of LOG. The result is valid (ValidateLog). Errors:
// base.ErrCorrupt, ErrVersion, ErrFeature. It keeps nothing of body.
func DecodeLog(name string, body []byte) (*Log, error) {
	message, err := logFrame.open(name, 0, body)
	if err != nil {
		return nil, err
	}
	l := &Log{}
	if err := proto.Unmarshal(message, l); err != nil {
		return nil, base.Corruptf(name, headerBytes, "%v", err)
	}
	if err := checkFeatures(name, l.RequiredFeatures); err != nil {
		return nil, err
	}
	if err := ValidateLog(l); err != nil {
		return nil, base.Corruptf(name, headerBytes, "%v", err)
	}
	return l, nil
}

func checkFeatures(name string, required []string) error {
	for _, f := range required {
		if !knownFeatures[f] {
			return fmt.Errorf("read %s: log needs feature %q, which this binary lacks: %w", name, f, ErrFeature)
		}
	}
	return nil
}

// clone returns a deep copy of a state, unknown fields included.
func clone(s *State) *State { return proto.CloneOf(s) }
