package base

import (
	"sort"
	"strings"
	"testing"

	"github.com/oklog/ulid/v2"
	"github.com/stretchr/testify/require"
)

var testULID = ulid.MustParse("01HZY8Q6T3M4N5P6Q7R8S9TABC")

func TestNames(t *testing.T) {
	for want, got := range map[string]string{
		"LOG":                     LogName,
		"trees/00000000/MANIFEST": ManifestName(0),
		"trees/99999999/MANIFEST": ManifestName(MaxTree),
		"trees/00000007/wal/":     WALPrefix(7),
		"trees/00000007/wal/00000000000000000002/":                     WALEpochPrefix(7, 2),
		"trees/00000007/probe/" + testULID.String():                    ProbeName(7, testULID),
		"trees/00000007/sst/":                                          ObjectPrefix(7, KindSST),
		"trees/00000007/seg/":                                          ObjectPrefix(7, KindIndex),
		"trees/00000007/state/":                                        ObjectPrefix(7, KindState),
		"trees/00000007/pin/":                                          ObjectPrefix(7, KindPin),
		"trees/00000007/wal/00000000000000000002/18446744073709551615": WALName(7, 2, 1<<64-1),
	} {
		require.Equal(t, want, got)
	}
}

func TestObjectNames(t *testing.T) {
	const id = "01HZY8Q6T3M4N5P6Q7R8S9TABC"
	for want, o := range map[string]ObjectID{
		"trees/00000001/sst/0000000009/w00000000000000000003-" + id + ".sst": {Tree: 1, Kind: KindSST, Role: RoleWriter, Epoch: 3, Segment: 9, ULID: testULID},
		"trees/00000000/sst/4294967295/c18446744073709551615-" + id + ".sst": {Kind: KindSST, Role: RoleCompactor, Epoch: 1<<64 - 1, Segment: 1<<32 - 1, ULID: testULID},
		"trees/00000001/seg/c00000000000000000003-" + id + ".idx":            {Tree: 1, Kind: KindIndex, Role: RoleCompactor, Epoch: 3, ULID: testULID},
		"trees/00000001/state/w00000000000000000003-" + id:                   {Tree: 1, Kind: KindState, Role: RoleWriter, Epoch: 3, ULID: testULID},
		"trees/00000001/pin/c00000000000000000000-" + id:                     {Tree: 1, Kind: KindPin, Role: RoleCompactor, ULID: testULID},
	} {
		require.Equal(t, want, o.Name())
		require.NoError(t, o.Valid())
		got, ok := ParseObjectName(want)
		require.True(t, ok, want)
		require.Equal(t, o, got)
		require.True(t, strings.HasPrefix(want, ObjectPrefix(o.Tree, o.Kind)))
		require.LessOrEqual(t, len(want), 82) // docs/format/names.md
		_, _, _, ok = ParseWALName(want)
		require.False(t, ok)
		_, ok = TreeOfManifest(want)
		require.False(t, ok)
	}
}

func TestKindOf(t *testing.T) {
	require.Equal(t, []string{"LOG", "MANIFEST", "wal", "wal", "probe", "other", "other", "other"}, []string{
		KindOf(LogName), KindOf(ManifestName(3)), KindOf(WALName(0, 1, 2)), KindOf(WALPrefix(0)), KindOf(ProbeName(1, testULID)),
		KindOf(""), KindOf("trees/"), KindOf("trees/00000001/secret/x"),
	})
	for kind, want := range map[Kind]string{KindSST: "sst", KindIndex: "seg", KindState: "state", KindPin: "pin"} {
		require.Equal(t, want, KindOf(ObjectID{Kind: kind, Role: RoleWriter, ULID: testULID}.Name()))
	}
}

func TestParseWALName(t *testing.T) {
	const good = "trees/00000007/wal/00000000000000000002/00000000000000000003"
	tree, epoch, id, ok := ParseWALName(good)
	require.True(t, ok)
	require.Equal(t, [3]uint64{7, 2, 3}, [3]uint64{uint64(tree), epoch, id})
	for name, bad := range map[string]string{
		"empty":            "",
		"no tree":          "wal/00000000000000000002/00000000000000000003",
		"short tree":       strings.Replace(good, "00000007", "0000007", 1),
		"long tree":        strings.Replace(good, "00000007", "000000007", 1),
		"other folder":     strings.Replace(good, "wal", "wal2", 1),
		"no id":            good[:39],
		"no slash":         good[:len(good)-21],
		"short id":         good[:len(good)-1],
		"long id":          good + "0",
		"too large":        good[:len(good)-20] + "18446744073709551616",
		"epoch too large":  strings.Replace(good, "00000000000000000002", "99999999999999999999", 1),
		"sign":             good[:len(good)-20] + "+0000000000000000003",
		"letter":           good[:len(good)-1] + "x",
		"one level deeper": good + "/x",
		"below a root":     "root/" + good,
	} {
		_, _, _, ok := ParseWALName(bad)
		require.False(t, ok, name)
	}
}

func TestParseObjectNameRefuses(t *testing.T) {
	const id = "01HZY8Q6T3M4N5P6Q7R8S9TABC"
	const sst = "trees/00000001/sst/0000000009/w00000000000000000003-" + id + ".sst"
	const state = "trees/00000001/state/w00000000000000000003-" + id
	_, ok := ParseObjectName(state)
	require.True(t, ok)
	for name, bad := range map[string]string{
		"empty":             "",
		"tree only":         "trees/00000001",
		"folder only":       "trees/00000001/sst",
		"MANIFEST":          ManifestName(1),
		"WAL":               WALName(1, 2, 3),
		"probe":             ProbeName(1, testULID),
		"no segment":        strings.Replace(sst, "0000000009/", "", 1),
		"short segment":     strings.Replace(sst, "0000000009", "000000009", 1),
		"segment too large": strings.Replace(sst, "0000000009", "4294967296", 1),
		"state with suffix": state + ".sst",
		"sst without":       strings.TrimSuffix(sst, ".sst"),
		"unknown role":      strings.Replace(sst, "/w", "/x", 1),
		"epoch too large":   strings.Replace(sst, "w00000000000000000003", "w99999999999999999999", 1),
		"epoch not digits":  strings.Replace(sst, "w00000000000000000003", "w0000000000000000000a", 1),
		"no dash":           strings.Replace(sst, "-", "_", 1),
		"lower case ULID":   strings.Replace(sst, id, strings.ToLower(id), 1),
		"confusable ULID":   strings.Replace(sst, "01HZ", "OIHZ", 1),
		"ULID overflow":     strings.Replace(sst, "01HZ", "81HZ", 1),
		"short ULID":        strings.Replace(sst, id, id[1:], 1),
		"not base 32":       strings.Replace(sst, "ABC", "AB!", 1),
		"one level deeper":  state + "/x",
		"below a root":      "root/" + sst,
	} {
		_, ok := ParseObjectName(bad)
		require.False(t, ok, name)
	}
}

func TestTreeOfManifest(t *testing.T) {
	tree, ok := TreeOfManifest("trees/00000042/MANIFEST")
	require.True(t, ok)
	require.Equal(t, uint32(42), tree)
	for _, bad := range []string{"", "MANIFEST", "trees/42/MANIFEST", "trees/00000042/manifest", "trees/00000042/MANIFEST/x", "trees/0000004x/MANIFEST"} {
		_, ok := TreeOfManifest(bad)
		require.False(t, ok, bad)
	}
}

// A listing sorts by epoch, then id: replay and collection rely on it.
func TestNamesSortLikeNumbers(t *testing.T) {
	var names []string
	for _, epoch := range []uint64{0, 1, 9, 10, 99, 100, 1 << 40, 1<<64 - 1} {
		for _, id := range []uint64{1, 2, 10, 1<<64 - 1} {
			names = append(names, WALName(3, epoch, id))
		}
	}
	require.True(t, sort.StringsAreSorted(names))
}

func TestObjectIDValid(t *testing.T) {
	good := ObjectID{Tree: MaxTree, Kind: KindSST, Role: RoleWriter, Segment: 5, ULID: testULID}
	require.NoError(t, good.Valid())
	for want, change := range map[string]func(o *ObjectID){
		"unknown object kind 0": func(o *ObjectID) { o.Kind = 0 },
		"unknown object kind 5": func(o *ObjectID) { o.Kind = 5 },
		"unknown object role 0": func(o *ObjectID) { o.Role = 0 },
		"unknown object role 3": func(o *ObjectID) { o.Role = 3 },
		"tree 100000000":        func(o *ObjectID) { o.Tree = MaxTree + 1 },
		"with a segment":        func(o *ObjectID) { o.Kind = KindPin },
	} {
		o := good
		change(&o)
		require.ErrorContains(t, o.Valid(), want)
	}
	require.Panics(t, func() { _ = ObjectID{Role: RoleWriter}.Name() })
	require.Panics(t, func() { _ = ObjectID{Kind: KindPin}.Name() })
}

// What parses, formats to the very same name: there is one spelling per object.
func FuzzParseObjectName(f *testing.F) {
	for _, k := range []Kind{KindSST, KindIndex, KindState, KindPin} {
		o := ObjectID{Tree: 3, Kind: k, Role: RoleCompactor, Epoch: 1 << 50, ULID: testULID}
		if k == KindSST {
			o.Segment = 77
		}
		f.Add(o.Name())
		f.Add(strings.ToLower(o.Name()))
	}
	f.Fuzz(func(t *testing.T, name string) {
		o, ok := ParseObjectName(name)
		if !ok {
			return
		}
		require.NoError(t, o.Valid())
		require.Equal(t, name, o.Name())
	})
}

// FuzzParseWALName is FuzzParseObjectName for WAL names and MANIFEST's.
func FuzzParseWALName(f *testing.F) {
	f.Add(WALName(0, 1, 1))
	f.Add(WALName(MaxTree, 1<<64-1, 1<<64-1))
	f.Add(ManifestName(4))
	f.Fuzz(func(t *testing.T, name string) {
		if tree, epoch, id, ok := ParseWALName(name); ok {
			require.Equal(t, name, WALName(tree, epoch, id))
		}
		if tree, ok := TreeOfManifest(name); ok {
			require.Equal(t, name, ManifestName(tree))
		}
	})
}

// FuzzFormatObjectName goes the other way: every valid id survives its name.
func FuzzFormatObjectName(f *testing.F) {
	f.Add(uint32(1), uint8(1), uint8(1), uint64(1), uint32(1), testULID[:])
	f.Fuzz(func(t *testing.T, tree uint32, kind, role uint8, epoch uint64, segment uint32, id []byte) {
		o := ObjectID{Tree: tree, Kind: Kind(kind), Role: Role(role), Epoch: epoch, Segment: segment}
		copy(o.ULID[:], id)
		if o.Valid() != nil {
			return
		}
		got, ok := ParseObjectName(o.Name())
		require.True(t, ok, o.Name())
		require.Equal(t, o, got)
	})
}

func BenchmarkObjectName(b *testing.B) {
	o := ObjectID{Tree: 1, Kind: KindSST, Role: RoleWriter, Epoch: 3, Segment: 9, ULID: testULID}
	for b.Loop() {
		_ = o.Name()
	}
}

func BenchmarkParseObjectName(b *testing.B) {
	name := ObjectID{Tree: 1, Kind: KindSST, Role: RoleWriter, Epoch: 3, Segment: 9, ULID: testULID}.Name()
	for b.Loop() {
		if _, ok := ParseObjectName(name); !ok {
			b.Fatal(name)
		}
	}
}
