package manifest

import (
	"encoding/binary"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/annalsdb/annals/internal/base"
)

var update = flag.Bool("update", false, "write the golden files")

func requireEqual(t testing.TB, want, got proto.Message) {
	t.Helper()
	if !proto.Equal(want, got) {
		t.Fatalf("messages differ:\nwant %v\n got %v", want, got)
	}
}

func richLog() *Log {
	return &Log{FormatVersion: 1, LogId: id16(1), CreatedMs: 1234567890123,
		Trees: []*Tree{{Id: 0, EndKey: []byte("m")}, {Id: 3, StartKey: []byte("m")}}}
}

func smallState() *State { return emptyState(testEnv(1), 7) }

func golden(t *testing.T, name string, encoded []byte) []byte {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		require.NoError(t, os.MkdirAll("testdata", 0o755))
		require.NoError(t, os.WriteFile(path, encoded, 0o644))
	}
	body, err := os.ReadFile(path)
	require.NoError(t, err)
	return body
}

// The golden files were written by version 1 and must be readable for ever. The
// raw ones must also come out the same, byte for byte; how zstd compresses may
// change with its library.
func TestGoldenFiles(t *testing.T) {
	body := golden(t, "log.golden", EncodeLog(richLog()))
	l, err := DecodeLog("LOG", body)
	require.NoError(t, err)
	requireEqual(t, richLog(), l)
	require.Equal(t, byte(codecRaw), body[offCodec])
	require.Equal(t, body, EncodeLog(l))

	body = golden(t, "manifest-raw.golden", EncodeState(smallState()))
	s, err := DecodeState("M", 7, body)
	require.NoError(t, err)
	requireEqual(t, smallState(), s)
	require.Equal(t, byte(codecRaw), body[offCodec])
	require.Equal(t, body, EncodeState(s))

	body = golden(t, "manifest-zstd.golden", EncodeState(richState()))
	s, err = DecodeState("M", 7, body)
	require.NoError(t, err)
	requireEqual(t, richState(), s)
	require.Equal(t, byte(codecZstd), body[offCodec])
}

// Every truncation and every flipped bit of a byte is an error that matches
// ErrCorrupt (I8), those of the version's bytes too.
func TestEveryDamagedByteIsNoticed(t *testing.T) {
	decoders := map[string]struct {
		body   []byte
		decode func([]byte) error
	}{
		"log":  {EncodeLog(richLog()), func(b []byte) error { _, err := DecodeLog("obj", b); return err }},
		"raw":  {EncodeState(smallState()), func(b []byte) error { _, err := DecodeState("obj", 7, b); return err }},
		"zstd": {EncodeState(richState()), func(b []byte) error { _, err := DecodeState("obj", 7, b); return err }},
	}
	for name, d := range decoders {
		t.Run(name, func(t *testing.T) {
			require.NoError(t, d.decode(d.body))
			for n := range d.body {
				require.ErrorIs(t, d.decode(d.body[:n]), base.ErrCorrupt, "cut to %d bytes", n)
			}
			require.ErrorIs(t, d.decode(append(d.body[:len(d.body):len(d.body)], 0)), base.ErrCorrupt, "one byte more")
			for i := range d.body {
				for bit := range 8 {
					body := append([]byte(nil), d.body...)
					body[i] ^= 1 << bit
					err := d.decode(body)
					require.ErrorIs(t, err, base.ErrCorrupt, "bit %d of byte %d", bit, i)
					require.ErrorContains(t, err, "obj")
				}
			}
		})
	}
}

func TestFrameSaysWhatIsWrong(t *testing.T) {
	message, err := proto.Marshal(smallState())
	require.NoError(t, err)
	// forge builds a frame with a right checksum around anything.
	forge := func(change func(b []byte) []byte) []byte {
		b := EncodeState(smallState())
		b = change(b[:len(b)-sumBytes])
		return binary.LittleEndian.AppendUint64(b, stateFrame.checksum(7, b))
	}
	bomb := zstdEncoder.EncodeAll(make([]byte, 1<<20), nil)
	zip := func(payload []byte, length uint32) func([]byte) []byte {
		return func(b []byte) []byte {
			b = append(b[:headerBytes:headerBytes], payload...)
			b[offCodec] = codecZstd
			binary.LittleEndian.PutUint32(b[offLength:], length)
			return b
		}
	}
	for name, c := range map[string]struct {
		body []byte
		is   error
		text string
	}{
		"version":          {forge(func(b []byte) []byte { b[offVersion] = 9; return b }), ErrVersion, "log has format version 9, this binary knows 1"},
		"codec":            {forge(func(b []byte) []byte { b[offCodec] = 2; return b }), base.ErrCorrupt, "unknown codec 2"},
		"reserved":         {forge(func(b []byte) []byte { b[15] = 1; return b }), base.ErrCorrupt, "reserved"},
		"length":           {forge(func(b []byte) []byte { b[offLength]++; return b }), base.ErrCorrupt, "decoded length"},
		"huge length":      {forge(func(b []byte) []byte { b[offLength+3] = 0xFF; return b }), base.ErrCorrupt, "is above"},
		"bomb":             {forge(zip(bomb, 1<<20)), base.ErrCorrupt, "times the payload"},
		"more than length": {forge(zip(bomb, 64)), base.ErrCorrupt, "decompress"},
		"less than length": {forge(zip(zstdEncoder.EncodeAll(message, nil), uint32(len(message)+1))), base.ErrCorrupt, "decodes to"},
		"not zstd":         {forge(zip(message, 5)), base.ErrCorrupt, "decompress"},
		"not protobuf":     {stateFrame.seal(7, []byte{0xFF}), base.ErrCorrupt, "offset 20"},
		"invalid state":    {stateFrame.seal(7, []byte{0x18, 7}), base.ErrCorrupt, "format version 0"}, /* tree: 7 */
		"other tree":       {EncodeState(emptyState(testEnv(1), 8)), base.ErrCorrupt, "checksum"},
		"a LOG":            {EncodeLog(richLog()), base.ErrCorrupt, "magic"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := DecodeState("obj", 7, c.body)
			require.ErrorIs(t, err, c.is)
			require.ErrorContains(t, err, c.text)
		})
	}
	// A state sealed for another tree than it says it belongs to.
	_, err = DecodeState("obj", 8, stateFrame.seal(8, message))
	require.ErrorContains(t, err, "state of tree 7, want tree 8")
}

func TestFeatureThatThisBinaryLacks(t *testing.T) {
	l := richLog()
	l.RequiredFeatures = []string{"time-travel"}
	l.Trees = nil // a later format may break today's rules: the feature is reported first
	_, err := DecodeLog("LOG", EncodeLog(l))
	require.ErrorIs(t, err, ErrFeature)
	require.ErrorContains(t, err, `"time-travel"`)

	s := smallState()
	s.RequiredFeatures, s.Segments = []string{"time-travel"}, nil
	_, err = DecodeState("M", 7, EncodeState(s))
	require.ErrorIs(t, err, ErrFeature)
}

func TestUnknownFieldsAreKept(t *testing.T) {
	extra := protowire.AppendTag(nil, 1000, protowire.BytesType)
	extra = protowire.AppendString(extra, "from a later version")
	s := smallState()
	s.ProtoReflect().SetUnknown(extra)
	s.Segments[0].ProtoReflect().SetUnknown(extra)

	s, err := DecodeState("M", 7, EncodeState(s))
	require.NoError(t, err)
	next := clone(s)
	mustApply(t, next, OpenWriter(0, owner(1)))
	next, err = DecodeState("M", 7, EncodeState(next))
	require.NoError(t, err)
	require.Equal(t, extra, []byte(next.ProtoReflect().GetUnknown()))
	require.Equal(t, extra, []byte(next.Segments[0].ProtoReflect().GetUnknown()))
}

func TestHighlyCompressibleStateIsReadable(t *testing.T) {
	s := smallState()
	s.ProtoReflect().SetUnknown(protowire.AppendBytes(protowire.AppendTag(nil, 1000, protowire.BytesType), make([]byte, 1<<20)))
	body := EncodeState(s)
	require.Equal(t, byte(codecRaw), body[offCodec], "a reader would refuse the ratio")
	got, err := DecodeState("M", 7, body)
	require.NoError(t, err)
	requireEqual(t, s, got)
}

func TestEncodePanicsAboveTheLimit(t *testing.T) {
	s := smallState()
	s.ProtoReflect().SetUnknown(protowire.AppendBytes(protowire.AppendTag(nil, 1000, protowire.BytesType), make([]byte, MaxManifestBytes)))
	require.Panics(t, func() { EncodeState(s) })
}

// A manifest keeps a line a table: the whole log's metadata must stay small.
func TestTableLineStaysSmall(t *testing.T) {
	s := bigState(2000)
	require.NoError(t, Validate(s))
	require.Less(t, len(EncodeState(s))/2000, 120)
}

// bigState has n tables with random ULIDs and run ids, 16-byte hexadecimal keys, and
// runs of 8 tables.
func bigState(n int) *State {
	rng := rand.New(rand.NewPCG(3, 4))
	env := testEnv(5)
	s := emptyState(env, 7)
	g := s.Segments[0]
	at := uint64(0)
	for made := 0; made < n; {
		r := &Run{Id: randomID(env), Start: at}
		prefix := fmt.Sprintf("%08x", rng.Uint32())
		for i := 0; i < 8 && made < n; i, made = i+1, made+1 {
			records := 50_000 + rng.Uint64N(10_000)
			size := 60<<20 + rng.Uint64N(8<<20)
			r.Tables = append(r.Tables, &Table{
				Ref:  RefOf(base.ObjectID{Tree: 7, Kind: base.KindSST, Role: base.RoleWriter, Epoch: 12, Segment: 9, ULID: base.ULID(randomID(env))}),
				Size: size, MetaOffset: size - 100_000 - rng.Uint64N(9000),
				LowerKey:      fmt.Appendf(nil, "user-%s%x%07x", prefix, 2*i, rng.Uint32()>>4),
				UpperKey:      fmt.Appendf(nil, "user-%s%x%07x", prefix, 2*i+1, rng.Uint32()>>4),
				FirstSequence: at, LastSequence: at + records - 1,
				FirstTimestampMs: int64(1_700_000_000_000 + at), LastTimestampMs: int64(1_700_000_000_000 + at + records),
				Records: records, Keys: records / 10, Bytes: records * 1024,
			})
			at += records
		}
		r.End = at
		g.Runs = append(g.Runs, r)
	}
	s.FlushedEnd, s.SeqLimit, s.LastTimestampMs = at, at, int64(1_700_000_000_000+at)
	return s
}

func FuzzDecodeState(f *testing.F) {
	f.Add(EncodeState(smallState()))
	f.Add(EncodeState(richState()))
	f.Fuzz(func(t *testing.T, body []byte) {
		if s, err := DecodeState("obj", 7, body); err == nil {
			again, err := DecodeState("obj", 7, EncodeState(s))
			require.NoError(t, err)
			requireEqual(t, s, again)
		}
	})
}

// FuzzDecodeMessage gets past the checksum: the payload is hostile, the frame is not.
func FuzzDecodeMessage(f *testing.F) {
	for _, s := range []*State{smallState(), richState()} {
		message, err := proto.Marshal(s)
		require.NoError(f, err)
		f.Add(message, byte(codecRaw), uint32(len(message)))
		f.Add(zstdEncoder.EncodeAll(message, nil), byte(codecZstd), uint32(len(message)))
	}
	f.Fuzz(func(t *testing.T, payload []byte, codec byte, length uint32) {
		body := make([]byte, headerBytes, frameBytes+len(payload))
		copy(body, stateFrame.magic)
		body[offVersion], body[offCodec] = FormatVersion, codec
		binary.LittleEndian.PutUint32(body[offLength:], length)
		body = append(body, payload...)
		body = binary.LittleEndian.AppendUint64(body, stateFrame.checksum(7, body))
		s, err := DecodeState("obj", 7, body)
		if err != nil {
			return
		}
		again, err := DecodeState("obj", 7, EncodeState(s))
		require.NoError(t, err)
		requireEqual(t, s, again)
		for _, o := range s.Obsolete {
			keyOf(o) // a validated reference never panics
		}
	})
}

func FuzzDecodeLog(f *testing.F) {
	message, err := proto.Marshal(richLog())
	require.NoError(f, err)
	f.Add(EncodeLog(richLog()), message)
	f.Fuzz(func(t *testing.T, body, message []byte) {
		for _, b := range [][]byte{body, logFrame.seal(0, message[:min(len(message), 1<<16)])} {
			if l, err := DecodeLog("LOG", b); err == nil {
				again, err := DecodeLog("LOG", EncodeLog(l))
				require.NoError(t, err)
				requireEqual(t, l, again)
			}
		}
	})
}

func BenchmarkEncode10kTables(b *testing.B) {
	s := bigState(10_000)
	for b.Loop() {
		b.SetBytes(int64(len(EncodeState(s))))
	}
}

func BenchmarkDecode10kTables(b *testing.B) {
	body := EncodeState(bigState(10_000))
	b.SetBytes(int64(len(body)))
	for b.Loop() {
		if _, err := DecodeState("M", 7, body); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkClone10kTables(b *testing.B) {
	s := bigState(10_000)
	for b.Loop() {
		clone(s)
	}
}

func BenchmarkValidate10kTables(b *testing.B) {
	s := bigState(10_000)
	for b.Loop() {
		if err := Validate(s); err != nil {
			b.Fatal(err)
		}
	}
}
