package sst

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"os"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/internal/base"
)

var update = flag.Bool("update", false, "write the golden files anew")

// goldenRecords has every shape that the format knows: the empty key, a single
// record, a key over several blocks, empty values, gaps, raw and zstd blocks.
func goldenRecords() []base.Record {
	var recs []base.Record
	add := func(key string, seq uint64, ts int64, value string) {
		recs = append(recs, base.Record{Key: []byte(key), Value: []byte(value), Sequence: seq, Timestamp: ts})
	}
	add("", 3, -5, "value of the empty key")
	add("", 1<<40, 1_700_000_000_000, "")
	for i := range 30 {
		add("hot", uint64(10+3*i), int64(1_700_000_000_000+i/2), fmt.Sprintf("value %d %s", i, bytes.Repeat([]byte("x"), i)))
	}
	for i := range 40 {
		add(fmt.Sprintf("key/%02d", i), uint64(1000+i), 1_700_000_000_500, "v")
	}
	sortRecords(recs)
	return recs
}

func goldenTable() ([]byte, Info) { return goldenTableOf(Dense) }

func goldenTableOf(c Compression) ([]byte, Info) {
	return write(WriterOptions{Segment: 42, BlockBytes: 256, PartitionBytes: 64, Compression: c}, goldenRecords())
}

const goldenFile = "testdata/v2.sst"

// TestGolden pins the bytes of version 2. If only a new library makes
// other bytes, the old file must stay under another name and must still read.
func TestGolden(t *testing.T) {
	for _, c := range []struct {
		file        string
		compression Compression
		codec       codec
	}{{goldenFile, Dense, codecZstd}, {"testdata/v2-fast.sst", Fast, codecS2}} {
		body, info := goldenTableOf(c.compression)
		if *update {
			require.NoError(t, os.MkdirAll("testdata", 0o777))
			require.NoError(t, os.WriteFile(c.file, body, 0o666))
		}
		golden, err := os.ReadFile(c.file)
		require.NoError(t, err)
		// The S2 encoder is another program on each architecture, and gives other bytes.
		if c.compression == Dense || runtime.GOARCH == "amd64" {
			require.True(t, bytes.Equal(golden, body), "the bytes of %s have changed", c.file)
		}
		requireGolden(t, golden, info, c.codec)
	}
}

// TestGoldenOfVersion1: what it wrote is read, but not written any more. Nothing but the version differs.
func TestGoldenOfVersion1(t *testing.T) {
	golden, err := os.ReadFile("testdata/v1.sst")
	require.NoError(t, err)
	body, info := goldenTable()
	requireGolden(t, golden, info, codecZstd)
	footer := len(body) - footerSize
	require.True(t, bytes.Equal(golden[:footer], body[:footer]))
	require.Equal(t, []byte{1, 0, 0, 0}, golden[footer+footerVersion:footer+footerMagic])
}

// requireGolden checks a table of the golden records, of which some data blocks have the codec.
func requireGolden(t *testing.T, golden []byte, info Info, c codec) {
	r, _ := open(t, golden, Info{Size: int64(len(golden)), MetaOffset: info.MetaOffset}, nil)
	require.NoError(t, r.Verify(context.Background(), nil))
	requireRecords(t, goldenRecords(), collect(t, r.All(0)))
	require.NotZero(t, dataCodecs(t, r, golden)[c])
	p := r.Properties()
	require.Equal(t, uint32(42), p.Segment)
	require.Equal(t, uint64(256), p.BlockBytes)
	require.Equal(t, uint64(72), p.Records)
	require.Equal(t, uint64(42), p.Keys)
	require.Equal(t, []uint64{3, 1 << 40}, []uint64{p.FirstSequence, p.LastSequence})
	require.Equal(t, []int64{-5, 1_700_000_000_500}, []int64{p.FirstTimestamp, p.LastTimestamp})
	require.Equal(t, []string{"", "key/39"}, []string{string(p.FirstKey), string(p.LastKey)})
	require.Greater(t, r.root.index.n, 1, "several partitions")
	require.Greater(t, r.root.directory.n, 1)
}

// TestGoldenWriterIsDeterministic: a writer's output does not depend on what it
// or another one wrote before.
func TestGoldenWriterIsDeterministic(t *testing.T) {
	a, _ := goldenTable()
	buf := bytes.Repeat([]byte{0xAA}, len(a))
	b, _ := write(WriterOptions{Segment: 42, BlockBytes: 256, PartitionBytes: 64, Buffer: buf}, goldenRecords())
	require.True(t, bytes.Equal(a, b))
	require.Same(t, &buf[0], &b[0], "the buffer is used")
}
