package state

import (
	"bytes"
	"encoding/binary"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/annalsdb/annals/internal/base"
)

var update = flag.Bool("update", false, "write the golden files")

// rich returns tables with every kind of entry; with more, also what changed since a base of those.
func rich(more bool) *Tables {
	t := New(everything)
	for i := range uint64(3) {
		t.SetCursor("", []byte{byte(i)}, i)
		t.SetCursor("billing", fmt.Appendf(nil, "user/%d", i), 100*i)
		t.SetCursor("mailer", fmt.Appendf(nil, "user/%d", i), 1<<63+i)
		t.Mark("edge-1", Mark{Sequence: 41 + i, First: 1000 + 10*i, Count: 10, Timestamp: 1_700_000_000_000 + int64(i)})
	}
	t.SetCursor("billing", nil, 7)
	t.Mark("edge-2", Mark{Sequence: 0, First: 0, Count: 1, Timestamp: -1})
	if !more {
		return t
	}
	t.Rebase(t.Clone())
	t.SetCursor("auditor", []byte("user/1"), 5)
	t.DeleteConsumer("billing")
	t.SetCursor("billing", []byte("user/9"), 6)
	t.DeleteCursor("mailer", []byte("user/0"))
	t.SetCursor("mailer", []byte("user/1"), 1<<63+9)
	t.DeleteCursor("mailer", []byte("user/2"))
	t.DeleteConsumer("")
	t.Mark("edge-1", Mark{Sequence: 44, First: 2000, Count: 5, Timestamp: 1_700_000_000_000})
	t.deleteProducer("edge-2")
	t.Mark("edge-3", Mark{Sequence: 1, First: 2010, Count: 5, Timestamp: 0})
	return t
}

// large returns tables whose base has several frames, raw and compressed, one of a single entry, and a consumer in
// more than one frame.
func large() *Tables {
	t := New(everything)
	for i := range 10_000 {
		t.SetCursor("mailer", fmt.Appendf(nil, "user/%05d", i), uint64(i))
	}
	noise := make([]byte, 200<<10)
	for i := range noise {
		noise[i] = byte(base.Checksum(uint64(i)))
	}
	t.SetCursor("noise", noise, 1)
	for i := range 40 {
		t.SetCursor("noisy", noise[i*1000:i*1000+4000], 1)
	}
	for i := range uint64(2000) {
		t.Mark(fmt.Sprintf("edge-%d", i%30), Mark{Sequence: i / 30, First: i * 7, Count: 7, Timestamp: int64(i)})
	}
	return t
}

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

// The golden files were written by version 1 and must be readable for ever. The raw one must also come out the same, byte for
// byte; how zstd compresses may change with its library.
func TestGoldenFiles(t *testing.T) {
	body := golden(t, "base.golden", rich(false).EncodeBase(idOf(1)))
	require.Equal(t, byte(codecZstd), body[headerBytes+offCodec])
	tables, err := DecodeBase("base", idOf(1), body, everything)
	require.NoError(t, err)
	require.Equal(t, contentsOf(t, rich(false)), contentsOf(t, tables))

	changes := golden(t, "changes.golden", rich(true).EncodeChanges(idOf(2), idOf(1)))
	require.Equal(t, byte(codecZstd), changes[headerBytes+offCodec])
	require.NoError(t, tables.DecodeChanges("changes", idOf(2), idOf(1), changes))
	require.Equal(t, contentsOf(t, rich(true)), contentsOf(t, tables))
	checkTables(t, tables)

	small := New(everything)
	small.SetCursor("mailer", []byte("user/1"), 1<<32+5)
	small.Mark("edge", Mark{Sequence: 7, First: 1000, Count: 3, Timestamp: 1_700_000_000_000})
	small.Mark("edge", Mark{Sequence: 8, First: 1004, Count: 1, Timestamp: 1_700_000_000_009})
	body = golden(t, "raw.golden", small.EncodeBase(idOf(3)))
	require.Equal(t, byte(codecRaw), body[headerBytes+offCodec])
	tables, err = DecodeBase("base", idOf(3), body, everything)
	require.NoError(t, err)
	require.Equal(t, contentsOf(t, small), contentsOf(t, tables))
	require.Equal(t, body, tables.EncodeBase(idOf(3)))
}

func TestVerify(t *testing.T) {
	info, err := Verify("base", idOf(1), rich(false).EncodeBase(idOf(1)))
	require.NoError(t, err)
	require.Equal(t, Info{AppendsEnd: 1030, Counts: Counts{Frames: 1, Consumers: 3, Cursors: 10, Producers: 2}}, info)
	info, err = Verify("changes", idOf(2), rich(true).EncodeChanges(idOf(2), idOf(1)))
	require.NoError(t, err)
	require.Equal(t, Info{Changes: true, Base: idOf(1), AppendsEnd: 2015, Counts: Counts{
		Frames: 1, Consumers: 4, Cursors: 3, CursorsGone: 2, Producers: 2, ProducersGone: 1}}, info)

	empty := New(everything).EncodeBase(idOf(3))
	require.Len(t, empty, headerBytes+footerBytes)
	info, err = Verify("empty", idOf(3), empty)
	require.NoError(t, err)
	require.Equal(t, Info{}, info)
}

func TestLargeObject(t *testing.T) {
	tables := large()
	body := tables.EncodeBase(idOf(1))
	was := bytes.Clone(body)
	decoded, err := DecodeBase("base", idOf(1), body, everything)
	require.NoError(t, err)
	require.Equal(t, contentsOf(t, tables), contentsOf(t, decoded))
	require.True(t, bytes.Equal(was, body), "reading changes nothing")
	require.True(t, bytes.Equal(body, decoded.EncodeBase(idOf(1))))
	codecs := map[byte]int{}
	info, err := Verify("base", idOf(1), body)
	require.NoError(t, err)
	for at := headerBytes; at < len(body)-footerBytes; {
		codecs[body[at+offCodec]]++
		if size := le.Uint32(body[at+offDecoded:]); size > frameTarget {
			require.InDelta(t, 200<<10, size, 100)
		}
		at += frameHeaderBytes + int(le.Uint32(body[at:])) + sumBytes
	}
	require.Equal(t, int(info.Frames), codecs[codecRaw]+codecs[codecZstd])
	require.Greater(t, codecs[codecZstd], 2)
	require.Positive(t, codecs[codecRaw])
	require.EqualValues(t, 3, info.Consumers, "one that goes on in the next frame counts once")

}

// payloadBytes returns how much is in an object before compression.
func payloadBytes(body []byte) (n int) {
	for at := headerBytes; at < len(body)-footerBytes; {
		n += int(le.Uint32(body[at+offDecoded:]))
		at += frameHeaderBytes + int(le.Uint32(body[at:])) + sumBytes
	}
	return n
}

// The estimates are what is written, about.
func TestEstimates(t *testing.T) {
	tables := large()
	require.InEpsilon(t, payloadBytes(tables.EncodeBase(idOf(1))), tables.BaseBytes(), 0.25)
	require.Equal(t, tables.BaseBytes(), tables.ChangesBytes(), "before there is a base, everything is a change")
	tables.Rebase(tables.Clone())
	require.Zero(t, tables.ChangesBytes())
	for i := range 10_000 {
		switch key := fmt.Appendf(nil, "user/%05d", i); i % 10 {
		case 0:
			tables.SetCursor("mailer", key, 1<<40)
		case 1:
			tables.DeleteCursor("mailer", key)
		}
	}
	tables.DeleteConsumer("noisy")
	for i := range uint64(10) {
		tables.Mark(fmt.Sprintf("edge-%d", i), Mark{Sequence: 100, First: 1 << 20, Count: 1, Timestamp: 5})
		tables.deleteProducer(fmt.Sprintf("edge-%d", 20+i))
	}
	body := tables.EncodeChanges(idOf(2), idOf(1))
	require.InEpsilon(t, payloadBytes(body), tables.ChangesBytes(), 0.25)
	info, err := Verify("changes", idOf(2), body)
	require.NoError(t, err)
	require.Equal(t, Info{Changes: true, Base: idOf(1), AppendsEnd: 1<<20 + 1, Counts: Counts{
		Frames: 1, Consumers: 2, Cursors: 1000, CursorsGone: 1000, Producers: 10, ProducersGone: 10}}, info)
}

// Every truncation and every flipped bit is an error that matches ErrCorrupt and names the object (I8).
func TestEveryDamagedByteIsNoticed(t *testing.T) {
	for name, body := range map[string][]byte{
		"base":    rich(false).EncodeBase(idOf(1)),
		"changes": rich(true).EncodeChanges(idOf(1), idOf(2)),
	} {
		require.NoError(t, verify(body))
		for n := range body {
			require.ErrorIs(t, verify(body[:n]), base.ErrCorrupt, "%s cut to %d bytes", name, n)
		}
		require.ErrorIs(t, verify(append(body[:len(body):len(body)], 0)), base.ErrCorrupt, "one byte more")
		for i := range body {
			for bit := range 8 {
				body[i] ^= 1 << bit
				err := verify(body)
				require.ErrorIs(t, err, base.ErrCorrupt, "%s: bit %d of byte %d", name, bit, i)
				require.ErrorContains(t, err, "obj")
				body[i] ^= 1 << bit
			}
		}
		_, err := Verify("obj", idOf(9), body)
		require.ErrorIs(t, err, base.ErrCorrupt, "an object under the name of another")
	}
}

func verify(body []byte) error {
	_, err := Verify("obj", idOf(1), body)
	return err
}

// A frame that is intact but in the place of another fails.
func TestMisplacedFrame(t *testing.T) {
	tables := New(everything)
	noise := []byte(fmt.Sprint(base.Checksum(1), base.Checksum(2)))
	for i := range 5000 {
		tables.SetCursor("c", fmt.Appendf(nil, "%05d%s", i, noise), 1)
	}
	body := tables.EncodeBase(idOf(1))
	size := func(at int) int { return frameHeaderBytes + int(le.Uint32(body[at:])) + sumBytes }
	first := body[headerBytes : headerBytes+size(headerBytes)]
	second := body[headerBytes+len(first):][:size(headerBytes+len(first))]
	swapped := append([]byte(nil), body[:headerBytes]...)
	swapped = append(append(append(swapped, second...), first...), body[headerBytes+len(first)+len(second):]...)
	require.NoError(t, verify(body))
	require.ErrorContains(t, verify(swapped), "corrupt object obj at offset 40: checksum")
}

// object builds a body of frames of raw payloads, with right checksums.
func object(kind byte, of base.ULID, counts Counts, payloads ...string) []byte {
	e := New(everything).newEncoder(idOf(1), kind, of)
	e.counts = counts
	e.counts.Frames = uint64(len(payloads))
	for _, p := range payloads {
		at := len(e.out)
		e.out = le.AppendUint32(le.AppendUint32(e.out, uint32(len(p))), uint32(len(p)))
		e.out = appendSum(append(append(e.out, 0, 0, 0, 0), p...), idOf(1), at)
	}
	return e.finish()
}

// reseal puts right the checksum of a part that was changed.
func reseal(body []byte, at, size int) []byte {
	le.PutUint64(body[at+size-sumBytes:], base.Checksum(base.Seed(id1(), uint64(at)), body[at:at+size-sumBytes]))
	return body
}

func id1() []byte { id := idOf(1); return id[:] }

// Bytes whose checksums are right, and which are wrong: each gives an error that names the object, not a panic.
func TestHostileObjects(t *testing.T) {
	name := func(tag byte, s string) string { return string(append([]byte{tag, byte(len(s))}, s...)) }
	mark := func(s string, rest ...byte) string { return name(tagProducer, s) + string(rest) }
	consumer, cursor := name(tagConsumer, "c"), func(key string) string { return name(tagCursor, key) + "\x05" }
	huge := string(binary.AppendUvarint(nil, 1<<40))
	for want, body := range map[string][]byte{
		"byte 7 of the payload: a number ends early": object(kindBase, base.ULID{}, Counts{}, consumer+cursor("k")+"\x01"),
		"unknown entry 0":                         object(kindBase, base.ULID{}, Counts{}, "\x00\x00"),
		"unknown entry 7":                         object(kindBase, base.ULID{}, Counts{}, "\x07\x00"),
		"entry 2 in a base":                       object(kindBase, base.ULID{}, Counts{}, name(tagConsumerAnew, "c")),
		"entry 4 in a base":                       object(kindBase, base.ULID{}, Counts{}, consumer+name(tagCursorGone, "k")),
		"entry 6 in a base":                       object(kindBase, base.ULID{}, Counts{}, name(tagProducerGone, "p")),
		"bytes of a name, 1 are left":             object(kindBase, base.ULID{}, Counts{}, "\x01\x02c"),
		"1099511627776 bytes of a name":           object(kindBase, base.ULID{}, Counts{}, "\x01"+huge),
		"a number ends early":                     object(kindBase, base.ULID{}, Counts{}, consumer+name(tagCursor, "k")+"\x80"),
		"is too large":                            object(kindBase, base.ULID{}, Counts{}, "\x01"+strings.Repeat("\xFF", 10)+"\x01"),
		"a cursor without its consumer":           object(kindBase, base.ULID{}, Counts{}, cursor("k")),
		"a cursor without its consumer ":          object(kindBase, base.ULID{}, Counts{}, consumer+cursor("a"), cursor("k")),
		"byte 3 of the payload: consumer \"c\" a": object(kindBase, base.ULID{}, Counts{}, consumer+consumer),
		"consumer \"c\" again":                    object(kindChanges, idOf(2), Counts{}, consumer, name(tagConsumerAnew, "c")),
		"consumer \"b\" after \"c\"":              object(kindBase, base.ULID{}, Counts{}, consumer+name(tagConsumer, "b")),
		"key \"k\" after \"k\"":                   object(kindBase, base.ULID{}, Counts{}, consumer+cursor("k")+cursor("k")),
		"key \"j\" after \"k\"":                   object(kindBase, base.ULID{}, Counts{}, consumer+cursor("k"), consumer+cursor("j")),
		"key \"\" after \"\"":                     object(kindBase, base.ULID{}, Counts{}, consumer+cursor("")+cursor("")),
		"key \"i\" after \"k\"":                   object(kindChanges, idOf(2), Counts{}, consumer+cursor("k")+name(tagCursorGone, "i")),
		"cursors behind producers":                object(kindBase, base.ULID{}, Counts{}, mark("p", 0, 1, 0, 0, 1)+consumer),
		"cursors behind producers ":               object(kindBase, base.ULID{}, Counts{}, mark("", 0, 1, 0, 0, 1)+consumer),
		"producer \"p\" after \"p\"":              object(kindBase, base.ULID{}, Counts{}, mark("p", 0, 1, 0, 0, 1)+mark("p", 0, 1, 0, 0, 1)),
		"producer \"o\" after \"p\"":              object(kindChanges, idOf(2), Counts{}, mark("p", 0, 1, 0, 0, 1)+name(tagProducerGone, "o")),
		"0 appends up to number 0":                object(kindBase, base.ULID{}, Counts{}, mark("p", 0, 0)),
		"2 appends up to number 0":                object(kindBase, base.ULID{}, Counts{}, mark("p", 0, 2, 0, 0, 1, 0, 0, 1)),
		"65 appends up to number 99":              object(kindBase, base.ULID{}, Counts{}, mark("p", 99, 65)),
		"an append of 0 records":                  object(kindBase, base.ULID{}, Counts{}, mark("p", 0, 1, 0, 0, 0)),
		"an append of 4294967296 records":         object(kindBase, base.ULID{}, Counts{}, mark("p", 0, 1, 0, 0, 0x80, 0x80, 0x80, 0x80, 0x10)),
		"1 consumers, there are 0":                object(kindBase, base.ULID{}, Counts{Consumers: 1}),
		"0 cursors, there are 1":                  object(kindBase, base.ULID{}, Counts{Consumers: 1}, consumer+cursor("k")),
		"unknown kind 0":                          object(0, base.ULID{}, Counts{}),
		"unknown kind 3":                          object(3, base.ULID{}, Counts{}),
		"a base of another base":                  object(kindBase, idOf(2), Counts{}),
		"payload of 0 bytes decodes to 0":         object(kindBase, base.ULID{}, Counts{}, ""),
	} {
		t.Run(want, func(t *testing.T) {
			err := verify(body)
			require.ErrorIs(t, err, base.ErrCorrupt)
			require.ErrorContains(t, err, "corrupt object obj at offset ")
			require.ErrorContains(t, err, strings.TrimRight(want, " "))
			_, err = DecodeBase("obj", idOf(1), body, everything)
			require.ErrorIs(t, err, base.ErrCorrupt)
		})
	}
}

// What is wrong in headers, and does not reach an entry.
func TestHostileHeaders(t *testing.T) {
	valid := func() []byte { return rich(false).EncodeBase(idOf(1)) }
	size := func(b []byte) int { return len(b) - headerBytes - footerBytes }
	frame := func(change func(f []byte)) []byte {
		b := valid()
		change(b[headerBytes:])
		return reseal(b, headerBytes, size(b))
	}
	for want, body := range map[string][]byte{
		"offset 13: reserved":             func() []byte { b := valid(); b[offReserved+1] = 1; return reseal(b, 0, headerBytes) }(),
		"offset 0: magic":                 func() []byte { b := valid(); b[0] = 'B'; return reseal(b, 0, headerBytes) }(),
		"offset 49: reserved":             frame(func(f []byte) { f[offFrameReserved+2] = 1 }),
		"offset 48: unknown codec 2":      frame(func(f []byte) { f[offCodec] = 2 }),
		"offset 40: decompress":           frame(func(f []byte) { f[frameHeaderBytes] ^= 1 }),
		"decodes to 121 bytes, not 154":   frame(func(f []byte) { f[offCodec] = codecRaw }),
		"bytes decodes to 4294967295":     frame(func(f []byte) { le.PutUint32(f[offDecoded:], 1<<32-1) }),
		"bytes decodes to 67108864":       frame(func(f []byte) { le.PutUint32(f[offDecoded:], maxFrameBytes) }),
		"offset 40: frame with 429496729": func() []byte { b := valid(); le.PutUint32(b[headerBytes:], 1<<32-1); return b }(),
		"offset 40: frame of 3 bytes":     append(append(valid()[:headerBytes:headerBytes], 1, 2, 3), valid()[len(valid())-footerBytes:]...),
	} {
		t.Run(want, func(t *testing.T) {
			err := verify(body)
			require.ErrorIs(t, err, base.ErrCorrupt)
			require.ErrorContains(t, err, want)
		})
	}
	b := valid()
	le.PutUint32(b[offVersion:], 2)
	err := verify(reseal(b, 0, headerBytes))
	require.ErrorIs(t, err, ErrVersion)
	require.NotErrorIs(t, err, base.ErrCorrupt)
	require.EqualError(t, err, "read obj: state object has format version 2, this binary knows 1: unknown format version")

	_, err = DecodeBase("obj", idOf(1), rich(true).EncodeChanges(idOf(1), idOf(2)), everything)
	require.ErrorContains(t, err, "changes, not a base")
	require.ErrorContains(t, New(everything).DecodeChanges("obj", idOf(1), idOf(2), valid()), "not changes of base")
	require.ErrorContains(t, New(everything).DecodeChanges("obj", idOf(1), idOf(3), rich(true).EncodeChanges(idOf(1), idOf(2))), "not changes of base")
}

// A small object cannot ask for much memory: what zstd makes of it is bounded by its size, and so is what the tables keep.
func TestDecodeAllocatesInProportion(t *testing.T) {
	// One that compresses better than it may is stored as it is.
	tables := New(everything)
	for i := range 1000 {
		tables.SetCursor("c", []byte(strings.Repeat("k", 4000)+fmt.Sprintf("%04d", i)), 1)
	}
	body := tables.EncodeBase(idOf(1))
	require.GreaterOrEqual(t, len(body), 1000*4000/maxRatio)
	require.NoError(t, verify(body))

	// A frame that says so, and one that does not.
	zeros := zstdEncoder.EncodeAll(make([]byte, 4<<20), nil)
	for _, says := range []uint32{4 << 20, uint32(maxRatio * len(zeros)), 100} {
		e := New(everything).newEncoder(idOf(1), kindBase, base.ULID{})
		e.out = le.AppendUint32(le.AppendUint32(e.out, uint32(len(zeros))), says)
		e.out = appendSum(append(append(e.out, codecZstd, 0, 0, 0), zeros...), idOf(1), headerBytes)
		body := e.finish()
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		require.ErrorIs(t, verify(body), base.ErrCorrupt)
		runtime.ReadMemStats(&after)
		require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(maxRatio*len(body)+64<<10), "says %d", says)
	}
}

// FuzzDecode gives the decoder frames of any payload, with right checksums: it never panics, and what it accepts is
// written and read again to the same.
func FuzzDecode(f *testing.F) {
	payload := func(body []byte) []byte {
		p, err := zstdDecoder.DecodeAll(body[headerBytes+frameHeaderBytes:len(body)-footerBytes-sumBytes], make([]byte, 0, frameTarget))
		require.NoError(f, err)
		return p
	}
	f.Add(payload(rich(false).EncodeBase(idOf(1))), false, uint64(3), uint64(10), uint64(0), uint64(2), uint64(0))
	f.Add(payload(rich(true).EncodeChanges(idOf(1), idOf(2))), true, uint64(4), uint64(3), uint64(2), uint64(2), uint64(1))
	f.Fuzz(func(t *testing.T, payload []byte, changes bool, consumers, cursors, gone, producers, producersGone uint64) {
		kind, of := byte(kindBase), base.ULID{}
		if changes {
			kind, of = kindChanges, idOf(2)
		}
		body := object(kind, of, Counts{Consumers: consumers, Cursors: cursors, CursorsGone: gone, Producers: producers, ProducersGone: producersGone}, string(payload))
		if err := verify(body); err != nil {
			require.ErrorIs(t, err, base.ErrCorrupt)
			return
		}
		tables := New(everything)
		var err error
		if changes {
			err = tables.DecodeChanges("obj", idOf(1), of, body)
		} else {
			tables, err = DecodeBase("obj", idOf(1), body, everything)
		}
		require.NoError(t, err)
		checkTables(t, tables)
		again, err := DecodeBase("obj", idOf(1), tables.EncodeBase(idOf(1)), everything)
		require.NoError(t, err)
		require.Equal(t, contentsOf(t, tables), contentsOf(t, again))
	})
}

// FuzzDecodeBytes gives the decoder any bytes.
func FuzzDecodeBytes(f *testing.F) {
	f.Add(rich(false).EncodeBase(idOf(1)))
	f.Add(rich(true).EncodeChanges(idOf(1), idOf(2)))
	f.Add(New(everything).EncodeBase(idOf(1)))
	f.Fuzz(func(t *testing.T, body []byte) {
		tables, err := DecodeBase("obj", idOf(1), body, everything)
		if err == nil {
			checkTables(t, tables)
		}
	})
}

// FuzzModel is TestModel on what a fuzzer draws.
func FuzzModel(f *testing.F) {
	draws := make([]byte, 8<<10)
	_, _ = rand.NewChaCha8([32]byte{}).Read(draws) // never fails
	f.Add(draws)
	f.Fuzz(rapid.MakeFuzz(changes))
}
