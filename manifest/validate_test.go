package manifest

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/annalsdb/annals/internal/base"
)

func TestRichStateIsValid(t *testing.T) {
	require.NoError(t, Validate(richState()))
	require.NoError(t, Validate(smallState()))
}

// Each change breaks one rule of docs/format/manifest.md.
func TestValidateRefuses(t *testing.T) {
	sealed := func(s *State) *Segment { return s.Segments[0] }
	active := func(s *State) *Segment { return s.Segments[1] }
	tables := func(s *State) []*Table { return s.Segments[0].Runs[0].Tables }
	for want, change := range map[string]func(s *State){
		// Identity.
		"format version 2 inside":      func(s *State) { s.FormatVersion = 2 },
		"log id has 15 bytes":          func(s *State) { s.LogId = s.LogId[1:] },
		"commit id has 0 bytes":        func(s *State) { s.CommitId = nil },
		"tree 100000000 is above":      func(s *State) { s.Tree = 100_000_000 },
		"lacks":                        func(s *State) { s.RequiredFeatures = []string{"f"} },
		"writer: missing":              func(s *State) { s.Writer = nil },
		"writer: epoch 0 has an id":    func(s *State) { s.Writer.Epoch = 0 },
		"compactor: id has 3 bytes":    func(s *State) { s.Compactor.Id = []byte("abc") },
		"position is missing":          func(s *State) { s.Position = nil },
		"position (3, 0) is below":     func(s *State) { s.Position.Id = 0 },
		"position (0, 5) is below":     func(s *State) { s.Position.Epoch = 0 },
		"position (4, 5) is above":     func(s *State) { s.Position.Epoch = 4 },
		"is above seq_limit 399":       func(s *State) { s.SeqLimit = 399 },
		"clean_next 399 is not":        func(s *State) { s.CleanNext = proto.Uint64(399) },
		"clean_next 1001 is not":       func(s *State) { s.CleanNext = proto.Uint64(1001) },
		"group 1: id is not unique":    func(s *State) { s.Groups[1].Id = s.Groups[0].Id },
		"group 0: id is not unique":    func(s *State) { s.Groups[0].Id = nil },
		"object of kind 1, want 2":     func(s *State) { s.Groups[0].Index = ref(base.KindSST, 10) },
		"table of contents at 5001":    func(s *State) { s.Groups[0].TocOffset = 5001 },
		"live range [0, 9]":            func(s *State) { s.Groups[0].FirstSegment = 0 },
		"live range [2, 1]":            func(s *State) { s.Groups[0].LastSegment = 1 },
		"empty window [150, 150)":      func(s *State) { s.Groups[0].FirstSequence = 150 },
		"seal times 4 to 3":            func(s *State) { s.Groups[0].FirstSealTimeMs = 4 },
		"2 tables of 300 bytes with":   func(s *State) { s.Groups[0].Tables = 2 },
		"4 tables of 300 bytes with 3": func(s *State) { s.Groups[0].Records = 3 },
		"4 tables of 3 bytes with":     func(s *State) { s.Groups[0].StoredBytes = 3 },
		"51 records in the window":     func(s *State) { s.Groups[0].Records = 51 },
		"0 live segments":              func(s *State) { s.Groups[0].Segments = 0 },
		"65 live segments":             func(s *State) { g := s.Groups[1]; g.LastSegment, g.Segments, g.Tables, g.Records = 100, 65, 65, 50 },
		"9 live segments [2, 9]":       func(s *State) { s.Groups[0].Segments = 9 },
		"table of contents at 4000 of": func(s *State) { s.Groups[0].IndexSize = 4000 + IndexTailBytes + 1 },
		"at 9223372036854775808 of":    func(s *State) { g := s.Groups[0]; g.TocOffset, g.IndexSize = 1<<63, 1<<63+100 },
		"0 key shards":                 func(s *State) { s.Groups[0].Shards = 0 },
		"3 key shards":                 func(s *State) { s.Groups[0].Shards = 3 },
		"131072 key shards":            func(s *State) { s.Groups[0].Shards = 2 * MaxShards },
		"key shards of 23 bytes":       func(s *State) { s.Groups[0].ShardBytes = 23 },
		"key shards of 65537 bytes":    func(s *State) { s.Groups[0].ShardBytes = MaxShardBytes + 1 },
		"4096 bytes of key shards":     func(s *State) { s.Groups[0].Shards = 4 },
		"0 keys in 2 shards":           func(s *State) { s.Groups[0].Keys = 0 },
		"0 keys in 2 shards of 24":     func(s *State) { s.Groups[0].Keys, s.Groups[0].ShardBytes = 0, minShardBytes },
		"333 keys in 2 shards":         func(s *State) { s.Groups[0].Keys = 333 },
		"segment id 9 does not":        func(s *State) { s.Groups[1].FirstSegment = 9 },
		"window starts at 151":         func(s *State) { s.Groups[1].FirstSequence = 151 },
		"window starts at 200":         func(s *State) { s.Groups[1].EndSequence = 190 },
		"no segment":                   func(s *State) { s.Segments = nil },
		"18: sealed is false":          func(s *State) { sealed(s).Sealed = false },
		"21: sealed is true":           func(s *State) { active(s).Sealed = true },
		"active, with an end":          func(s *State) { active(s).SealTimeMs = 4 },
		"active, with an end,":         func(s *State) { active(s).EndSequence = 400 },
		"active, with an end, a seal":  func(s *State) { active(s).LastId = 22 },
		"empty window [300, 300)":      func(s *State) { sealed(s).FirstSequence = 300 },
		"merged up to segment 18":      func(s *State) { sealed(s).LastId = 18 },
		"segment id 20 does not":       func(s *State) { active(s).Id = 20 },
		"runs end at 300, want 310":    func(s *State) { sealed(s).EndSequence = 310; active(s).FirstSequence = 310 },
		"runs end at 400, want 390":    func(s *State) { s.FlushedEnd = 390 },
		"runs end at 300, want 400":    func(s *State) { active(s).Runs = nil },
		"starts at 260, want 200":      func(s *State) { sealed(s).Runs = sealed(s).Runs[1:] },
		"run 1 (": func(s *State) {
			sealed(s).Runs[0], sealed(s).Runs[1] = sealed(s).Runs[1], sealed(s).Runs[0]
			sealed(s).Runs[0].Start = 200
		},
		"sealed without a record":    func(s *State) { sealed(s).Runs[0].Tables, sealed(s).Runs[1].Tables = nil, nil },
		"run 1 (a0a1a2a3a4a5":        func(s *State) { active(s).Runs[1].Id = active(s).Runs[0].Id },
		"empty interval [350, 350)":  func(s *State) { active(s).Runs[1].End = 350 },
		"more records than the 60":   func(s *State) { tables(s)[0].LastSequence, tables(s)[0].Records = 240, 41 },
		"reference is missing":       func(s *State) { tables(s)[0].Ref = nil },
		"ULID has 15 bytes":          func(s *State) { tables(s)[0].Ref.Ulid = id16(1)[1:] },
		"unknown object kind 257":    func(s *State) { tables(s)[0].Ref.Kind = 257 },
		"unknown object kind 9":      func(s *State) { tables(s)[0].Ref.Kind = 9 },
		"unknown object role 3":      func(s *State) { tables(s)[0].Ref.Role = 3 },
		"is referred to twice":       func(s *State) { tables(s)[0].Ref = tables(s)[1].Ref },
		"metadata at 900 of 0":       func(s *State) { tables(s)[0].Size = 0 },
		"metadata at 1001 of 1000":   func(s *State) { tables(s)[0].MetaOffset = 1001 },
		"0 keys in 21 records":       func(s *State) { tables(s)[0].Keys = 0 },
		"22 keys in 21 records":      func(s *State) { tables(s)[0].Keys = 22 },
		"sequences 199 to 220":       func(s *State) { tables(s)[0].FirstSequence = 199 },
		"sequences 241 to 260":       func(s *State) { tables(s)[2].LastSequence = 260 },
		"sequences 221 to 220":       func(s *State) { tables(s)[1].LastSequence = 220 },
		"22 records with sequences":  func(s *State) { tables(s)[0].Records = 22 },
		"timestamps 21 to 20":        func(s *State) { tables(s)[0].FirstTimestampMs = 21 },
		"the tree's last is 19":      func(s *State) { s.LastTimestampMs = 19 },
		"key bounds of 33 and":       func(s *State) { tables(s)[0].LowerKey = bytesOf(0, 33) },
		"key bounds of 2 and 33":     func(s *State) { tables(s)[0].UpperKey = bytesOf(0xFF, 33) },
		"key bounds 6b36 to 6b35":    func(s *State) { tables(s)[0].LowerKey = []byte("k6") },
		"6b34 to  after":             func(s *State) { tables(s)[0].LowerKey = []byte("k5"); tables(s)[1].LowerKey = []byte("k4") },
		"starts at key 6b34":         func(s *State) { tables(s)[1].LowerKey = []byte("k4") },
		"starts at key 6b7a":         func(s *State) { tables(s)[2].LowerKey = []byte("kz") },
		"after 6b31 to ":             func(s *State) { tables(s)[0].UpperKey = nil; tables(s)[1].UpperKey = []byte("k9") },
		"one without the other":      func(s *State) { s.State, s.StateChanges = nil, nil },
		"one without the other ":     func(s *State) { s.StatePosition = nil },
		"state objects up to (3, 4)": func(s *State) { s.StatePosition.Id = 4 },
		"state objects up to (3, 6)": func(s *State) { s.StatePosition.Id = 6 },
		"changes of the small state without": func(s *State) {
			s.State, s.StatePosition, s.StateSize = nil, nil, 0
		},
		"state objects of 0 and 70":                func(s *State) { s.StateSize = 0 },
		"state objects of 700 and 0":               func(s *State) { s.StateChangesSize = 0 },
		"objects of 700 and 70 bytes":              func(s *State) { s.StateChanges = nil },
		"changes of the small state: reference to": func(s *State) { s.StateChanges = ref(base.KindPin, 1) },
		"changes of the small state: trees/":       func(s *State) { s.StateChanges = s.State },
		"state object: reference to":               func(s *State) { s.State = ref(base.KindPin, 1) },
		"pin 0: reference to":                      func(s *State) { s.Pins[0].Ref = ref(base.KindState, 99) },
		"pin 0: name is not UTF-8":                 func(s *State) { s.Pins[0].Name = "\xFF" },
		"pin 0: name is not UTF-8 or":              func(s *State) { s.Pins[0].Name = strings.Repeat("x", 257) },
		"pin 0: expires at 4":                      func(s *State) { s.Pins[0].ExpiresMs = 4 },
		"entry 0: since -1":                        func(s *State) { s.Obsolete[0].SinceMs = -1 },
		"entry 0: ULID has 0":                      func(s *State) { s.Obsolete[0].Ref.Ulid = nil },
		"entry 0: segments [1, 1]":                 func(s *State) { o := s.Obsolete[0]; o.SegmentsOnly, o.FirstSegment, o.LastSegment = true, 1, 1 },
		"entry 1: segments [1, 0]":                 func(s *State) { s.Obsolete[1].LastSegment = 0 },
		"entry 2: whole object":                    func(s *State) { s.Obsolete[2].LastSegment = 1 },
		"is listed twice":                          func(s *State) { s.Obsolete = append(s.Obsolete, s.Obsolete[0]) },
		"sst is live":                              func(s *State) { s.Obsolete[0].Ref = tables(s)[0].Ref },
		"idx is live":                              func(s *State) { s.Obsolete[2].Ref = s.Groups[0].Index },
		"segments [1, 2] of":                       func(s *State) { s.Obsolete[1].LastSegment = 2 },
		"segments [3, 4] of":                       func(s *State) { o := s.Obsolete[1]; o.FirstSegment, o.LastSegment = 3, 4 },
		"segments [18, 18] of":                     func(s *State) { o := s.Obsolete[1]; o.FirstSegment, o.LastSegment = 18, 18 },
		"segments [1, 1] and [1, 1] of": func(s *State) {
			s.Obsolete = append(s.Obsolete, proto.CloneOf(s.Obsolete[1]))
		},
		"segments [1, 1] and [1, 1] of ": func(s *State) { // of two indexes
			s.Obsolete = append(s.Obsolete, proto.CloneOf(s.Obsolete[1]))
			s.Obsolete[3].Ref = s.Obsolete[2].Ref
		},
		"which is neither live nor obsolete": func(s *State) { s.Obsolete[1].Ref = ref(base.KindIndex, 42) },
	} {
		t.Run(want, func(t *testing.T) {
			s := richState()
			change(s)
			require.ErrorContains(t, Validate(s), strings.TrimRight(want, " "))
			// The same bytes from a store are corrupt, never a panic.
			if message, err := proto.Marshal(s); err == nil {
				_, err := DecodeState("obj", 7, stateFrame.seal(7, message))
				require.Error(t, err)
			}
		})
	}
}

// Whatever two keys in order are the last of one table and the first of the
// next, their rounded bounds are accepted.
func TestNeighboursWithRoundedBounds(t *testing.T) {
	key := rapid.Custom(func(t *rapid.T) []byte {
		// Few letters and lengths near the limit, so that long prefixes are shared.
		n := rapid.SampledFrom([]int{0, 1, 31, 32, 33, 34, 40}).Draw(t, "n")
		fill := rapid.SampledFrom([]byte{0, 'a', 0xFF}).Draw(t, "fill")
		k := bytesOf(fill, n)
		for i := range k {
			if i >= 30 && rapid.Bool().Draw(t, "other") {
				k[i] = rapid.SampledFrom([]byte{0, 'a', 0xFF}).Draw(t, "b")
			}
		}
		return k
	})
	bounds := func(first, last []byte) *Table {
		tb := &Table{LowerKey: base.LowerBound(first)}
		if up, ok := base.UpperBound(last); ok {
			tb.UpperKey = up
		}
		return tb
	}
	rapid.Check(t, func(t *rapid.T) {
		keys := [][]byte{key.Draw(t, "a"), key.Draw(t, "b"), key.Draw(t, "c"), key.Draw(t, "d")}
		for i := range keys { // insertion sort: four keys
			for j := i; j > 0 && base.Compare(keys[j], 0, keys[j-1], 0) < 0; j-- {
				keys[j], keys[j-1] = keys[j-1], keys[j]
			}
		}
		if err := validNeighbours(bounds(keys[0], keys[1]), bounds(keys[2], keys[3])); err != nil {
			t.Fatalf("%x: %v", keys, err)
		}
	})
}

func TestValidateLog(t *testing.T) {
	require.NoError(t, ValidateLog(richLog()))
	for want, change := range map[string]func(l *Log){
		"format version 0":                 func(l *Log) { l.FormatVersion = 0 },
		"log id has 0 bytes":               func(l *Log) { l.LogId = nil },
		"no tree":                          func(l *Log) { l.Trees = nil },
		"tree 0 is not":                    func(l *Log) { l.Trees[1].Id = 0 },
		"tree 100000000 is":                func(l *Log) { l.Trees[1].Id = 100_000_000 },
		"tree 0: key range does not start": func(l *Log) { l.Trees[0].StartKey = []byte("a") },
		"tree 3: key range does not start": func(l *Log) { l.Trees[1].StartKey = []byte("n") },
		"tree 3: key range is empty":       func(l *Log) { l.Trees[1].EndKey = []byte("m") },
		"without an end before the last":   func(l *Log) { l.Trees[0].EndKey = nil },
		"the last key range has an end":    func(l *Log) { l.Trees[1].EndKey = []byte("z") },
		"key range is empty":               func(l *Log) { l.Trees[0].EndKey = []byte{} },
	} {
		t.Run(want, func(t *testing.T) {
			l := richLog()
			change(l)
			require.ErrorContains(t, ValidateLog(l), want)
			_, err := DecodeLog("LOG", EncodeLog(l))
			require.ErrorIs(t, err, base.ErrCorrupt)
		})
	}
}

func TestReferences(t *testing.T) {
	id := base.ObjectID{Tree: 5, Kind: base.KindSST, Role: base.RoleCompactor, Epoch: 1 << 40, Segment: 9, ULID: base.ULID(id16(1))}
	require.Equal(t, id, RefOf(id).ID())
	require.Panics(t, func() { (&ObjectRef{}).ID() })
	require.Panics(t, func() { (*ObjectRef)(nil).ID() })
}

func TestPositionOrder(t *testing.T) {
	ascending := []Pos{{0, 0}, {1, 1}, {1, 9}, {2, 1}, {2, 2}}
	for i, a := range ascending {
		for j, b := range ascending {
			require.Equal(t, i < j, a.Less(b))
			require.Equal(t, i == j, a.Compare(b) == 0)
		}
		require.Equal(t, a, a.Proto().Pos())
	}
	require.Equal(t, "(1, 9)", Pos{1, 9}.String())
	require.Equal(t, Pos{}, (*Position)(nil).Pos())
}
