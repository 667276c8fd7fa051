package base

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/oklog/ulid/v2"
)

// ULID identifies an object that is written once. Its first six bytes are a
// time in milliseconds (for people; no rule depends on it), the rest is random.
type ULID = ulid.ULID

// Kind is the kind of an object. Values are persisted in manifests: do not
// renumber.
type Kind uint8

const (
	KindSST   Kind = 1 // sorted table: sst/<segment>/<role><epoch>-<ulid>.sst
	KindIndex Kind = 2 // SST lists of consolidated segments: seg/<role><epoch>-<ulid>.idx
	KindState Kind = 3 // the tree's small state: state/w<epoch>-<ulid>
	KindPin   Kind = 4 // the bytes of a pinned manifest: pin/<role><epoch>-<ulid>
)

// Role says which of a tree's two epochs an object's name carries. Values are
// persisted: do not renumber.
type Role uint8

const (
	RoleWriter    Role = 1 // 'w'
	RoleCompactor Role = 2 // 'c'
)

// LogName is the name of the object that describes the whole log.
const LogName = "LOG"

const treesPrefix = "trees/"

// Widths of the decimal numbers in names. Fixed, so that a listing sorts.
const (
	treeWidth    = 8
	segmentWidth = 10
	numberWidth  = 20 // sequences, epochs and WAL ids
	ulidWidth    = 26
)

// MaxTree is the largest tree id that a name can carry.
const MaxTree = 99_999_999

// ObjectID names a written-once object by its binary parts. Names are derived
// from it; manifests store it, so that a tree can refer to another tree's
// objects.
type ObjectID struct {
	Tree    uint32
	Kind    Kind
	Role    Role
	Epoch   uint64
	Segment uint32 // KindSST only: the segment it was written for
	ULID    ULID
}

// ManifestName returns the name of a tree's MANIFEST.
func ManifestName(tree uint32) string { return TreePrefix(tree) + "MANIFEST" }

// TreeOfManifest returns the tree of a MANIFEST name, or false if it is not one.
func TreeOfManifest(name string) (uint32, bool) {
	tree, rest, ok := cutTree(name)
	return tree, ok && rest == "MANIFEST"
}

// WALName returns the name of one WAL object or fence. Ids start at 1.
func WALName(tree uint32, epoch, id uint64) string {
	return WALEpochPrefix(tree, epoch) + pad(id, numberWidth)
}

// WALPrefix is the prefix of every WAL object of a tree.
func WALPrefix(tree uint32) string { return TreePrefix(tree) + "wal/" }

// WALEpochPrefix is the prefix of the WAL objects of one epoch.
func WALEpochPrefix(tree uint32, epoch uint64) string {
	return WALPrefix(tree) + pad(epoch, numberWidth) + "/"
}

// ObjectPrefix is the prefix of all of a tree's objects of one kind.
func ObjectPrefix(tree uint32, kind Kind) string {
	return TreePrefix(tree) + kindDir(kind) + "/"
}

// ProbeName is the name of the short-lived object with which a writer tests
// that the store honours conditional writes.
func ProbeName(tree uint32, id ULID) string { return TreePrefix(tree) + "probe/" + id.String() }

// Name formats the name of the object.
func (o ObjectID) Name() string {
	var b strings.Builder
	b.WriteString(ObjectPrefix(o.Tree, o.Kind))
	if o.Kind == KindSST {
		b.WriteString(pad(uint64(o.Segment), segmentWidth))
		b.WriteByte('/')
	}
	b.WriteByte(roleByte(o.Role))
	b.WriteString(pad(o.Epoch, numberWidth))
	b.WriteByte('-')
	b.WriteString(o.ULID.String())
	b.WriteString(kindSuffix(o.Kind))
	return b.String()
}

// KindOf says for people what kind of object has a name: LOG, MANIFEST, wal, probe, sst, seg, state, pin, or
// "other". Only the start of the name is looked at, so that the prefix of a listing has a kind too.
func KindOf(name string) string {
	_, rest, ok := cutTree(name)
	if !ok {
		rest = name
	}
	dir, _, _ := strings.Cut(rest, "/")
	switch dir {
	case LogName, "MANIFEST", "wal", "probe", "sst", "seg", "state", "pin":
		return dir
	}
	return "other"
}

// ParseWALName returns the parts of a WAL object's name, or false if name is
// not one. It accepts exactly the names that WALName makes.
func ParseWALName(name string) (tree uint32, epoch, id uint64, ok bool) {
	tree, rest, ok := cutTree(name)
	if !ok {
		return 0, 0, 0, false
	}
	rest, ok = strings.CutPrefix(rest, "wal/")
	if !ok {
		return 0, 0, 0, false
	}
	e, i, ok := strings.Cut(rest, "/")
	if !ok {
		return 0, 0, 0, false
	}
	epoch, ok1 := unpad(e, numberWidth)
	id, ok2 := unpad(i, numberWidth)
	if !ok1 || !ok2 {
		return 0, 0, 0, false
	}
	return tree, epoch, id, true
}

// ParseObjectName returns the id of a written-once object's name, or false if
// name is not one. It accepts exactly the names that ObjectID.Name makes.
func ParseObjectName(name string) (ObjectID, bool) {
	tree, rest, ok := cutTree(name)
	if !ok {
		return ObjectID{}, false
	}
	dir, rest, ok := strings.Cut(rest, "/")
	if !ok {
		return ObjectID{}, false
	}
	o := ObjectID{Tree: tree}
	switch dir {
	case "sst":
		o.Kind = KindSST
		seg, file, ok := strings.Cut(rest, "/")
		n, ok2 := unpad(seg, segmentWidth)
		if !ok || !ok2 || n > 1<<32-1 {
			return ObjectID{}, false
		}
		o.Segment, rest = uint32(n), file
	case "seg":
		o.Kind = KindIndex
	case "state":
		o.Kind = KindState
	case "pin":
		o.Kind = KindPin
	default:
		return ObjectID{}, false
	}
	rest, ok = strings.CutSuffix(rest, kindSuffix(o.Kind))
	if !ok || len(rest) != 1+numberWidth+1+ulidWidth || rest[1+numberWidth] != '-' {
		return ObjectID{}, false
	}
	switch rest[0] {
	case 'w':
		o.Role = RoleWriter
	case 'c':
		o.Role = RoleCompactor
	default:
		return ObjectID{}, false
	}
	if o.Epoch, ok = unpad(rest[1:1+numberWidth], numberWidth); !ok {
		return ObjectID{}, false
	}
	id, err := ulid.ParseStrict(rest[2+numberWidth:])
	if err != nil {
		return ObjectID{}, false
	}
	o.ULID = id
	// ULID text has more than one spelling (case, confusable letters).
	return o, o.Name() == name
}

// Valid reports whether the id has a known kind and role and parts that fit a
// name: what came from a manifest is not trusted.
func (o ObjectID) Valid() error {
	switch {
	case o.Kind < KindSST || o.Kind > KindPin:
		return fmt.Errorf("unknown object kind %d", o.Kind)
	case o.Role != RoleWriter && o.Role != RoleCompactor:
		return fmt.Errorf("unknown object role %d", o.Role)
	case o.Tree > MaxTree:
		return fmt.Errorf("tree %d is above %d", o.Tree, MaxTree)
	case o.Kind != KindSST && o.Segment != 0:
		return fmt.Errorf("object of kind %d with a segment", o.Kind)
	}
	return nil
}

// TreePrefix is how the names of all objects of a tree begin.
func TreePrefix(tree uint32) string {
	return treesPrefix + pad(uint64(tree), treeWidth) + "/"
}

func cutTree(name string) (tree uint32, rest string, ok bool) {
	rest, ok = strings.CutPrefix(name, treesPrefix)
	if !ok {
		return 0, "", false
	}
	t, rest, ok := strings.Cut(rest, "/")
	if !ok {
		return 0, "", false
	}
	n, ok := unpad(t, treeWidth)
	return uint32(n), rest, ok
}

func kindDir(k Kind) string {
	switch k {
	case KindSST:
		return "sst"
	case KindIndex:
		return "seg"
	case KindState:
		return "state"
	case KindPin:
		return "pin"
	}
	panic(fmt.Sprintf("base: object kind %d has no folder", k))
}

func kindSuffix(k Kind) string {
	switch k {
	case KindSST:
		return ".sst"
	case KindIndex:
		return ".idx"
	default:
		return ""
	}
}

func roleByte(r Role) byte {
	switch r {
	case RoleWriter:
		return 'w'
	case RoleCompactor:
		return 'c'
	}
	panic(fmt.Sprintf("base: object role %d has no letter", r))
}

func pad(n uint64, width int) string {
	s := strconv.FormatUint(n, 10)
	if len(s) >= width {
		return s
	}
	return strings.Repeat("0", width-len(s)) + s
}

func unpad(s string, width int) (uint64, bool) {
	if len(s) != width {
		return 0, false
	}
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return 0, false
		}
	}
	n, err := strconv.ParseUint(s, 10, 64)
	return n, err == nil
}
