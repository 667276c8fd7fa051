package engine

import (
	"bytes"
	"encoding/hex"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/oklog/ulid/v2"
	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/internal/base"
)

var diskTestID = ulid.MustParse("01HZY8Q6T3M4N5P6Q7R8S9TABC")

func diskFile(k diskKey, body []byte) []byte {
	return append(appendDiskHeader(nil, k, body), body...)
}

// The format of the files, byte by byte: docs/format/diskcache.md.
func TestDiskFileFormat(t *testing.T) {
	k := diskKey{diskTestID, 0x1234, 5}
	file := diskFile(k, []byte("hello"))
	require.Equal(t, "414e4e414c44534b"+"01000000"+"00000000"+
		hex.EncodeToString(diskTestID[:])+"3412000000000000"+"0500000000000000", hex.EncodeToString(file[:48]))
	sum := base.Checksum(base.Seed(diskTestID[:], 0x1234, 5), file[:48], []byte("hello"))
	require.Equal(t, sum, uint64(file[48])|uint64(file[49])<<8|uint64(file[50])<<16|uint64(file[51])<<24|
		uint64(file[52])<<32|uint64(file[53])<<40|uint64(file[54])<<48|uint64(file[55])<<56)
	require.Equal(t, "hello", string(file[56:]))
	require.Equal(t, "01HZY8Q6T3M4N5P6Q7R8S9TABC-0000000000001234-0000000000000005", k.name())
	require.Len(t, k.name(), diskNameWidth)

	body, err := parseDiskFile(file, k)
	require.NoError(t, err)
	require.Equal(t, "hello", string(body))
	for _, other := range []diskKey{{diskTestID, 0x1234, 4}, {diskTestID, 0x1235, 5}, {base.ULID{1}, 0x1234, 5}} {
		_, err := parseDiskFile(file, other)
		require.ErrorIs(t, err, errDiskFile, "a misplaced file")
	}
}

// A file of a newer version is not damaged, and of no use either.
func TestDiskFileOfAnotherVersion(t *testing.T) {
	k := diskKey{diskTestID, 0, 3}
	file := diskFile(k, []byte("abc"))
	for _, at := range []int{0, 8, 12, 16, 32, 40} {
		changed := bytes.Clone(file)
		changed[at] ^= 1
		sum := base.Checksum(k.seed(), changed[:48], changed[56:])
		for i := range 8 {
			changed[48+i] = byte(sum >> (8 * i))
		}
		_, err := parseDiskFile(changed, k)
		require.ErrorIs(t, err, errDiskFile, at)
	}
}

func TestDiskName(t *testing.T) {
	good := diskKey{diskTestID, 1 << 40, maxDiskRange}.name()
	k, ok := parseDiskName(good)
	require.True(t, ok)
	require.Equal(t, diskKey{diskTestID, 1 << 40, maxDiskRange}, k)
	for name, bad := range map[string]string{
		"empty":             "",
		"lower-case ULID":   strings.ToLower(good[:26]) + good[26:],
		"upper-case number": good[:len(good)-1] + "A",
		"sign":              good[:27] + "+" + good[28:],
		"no offset":         good[:26] + good[43:],
		"longer":            good + "0",
		"other separator":   strings.Replace(good, "-", "_", 1),
		"second separator":  good[:43] + "_" + good[44:],
		"length 0":          good[:44] + "0000000000000000",
		"length too large":  good[:44] + "0000000040000001",
		"offset too large":  good[:27] + "8000000000000000" + good[43:],
		"temporary":         "write.tmp",
	} {
		_, ok := parseDiskName(bad)
		require.False(t, ok, name)
	}
}

func TestReadDiskFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "f")
	require.NoError(t, writeDiskFile(path, []byte("ab"), []byte("c")))
	b, err := readDiskFile(path, 3)
	require.NoError(t, err)
	require.Equal(t, "abc", string(b))
	for _, size := range []int64{0, 2, 4, 1 << 40} {
		_, err := readDiskFile(path, size)
		require.ErrorIs(t, err, errDiskFile, size)
	}
	_, err = readDiskFile(dir, 3)
	require.ErrorIs(t, err, errDiskFile, "a folder")
	_, err = readDiskFile(filepath.Join(dir, "none"), 3)
	require.ErrorIs(t, err, os.ErrNotExist)
	require.NoError(t, writeDiskFile(path, []byte("x")))
	b, err = readDiskFile(path, 1)
	require.NoError(t, err)
	require.Equal(t, "x", string(b), "nothing is left of a longer file")
}

// What parses, formats to the very same name.
func FuzzParseDiskName(f *testing.F) {
	f.Add(diskKey{diskTestID, 1, 2}.name())
	f.Add("write.tmp")
	f.Fuzz(func(t *testing.T, name string) {
		if k, ok := parseDiskName(name); ok {
			require.Equal(t, name, k.name())
			require.Positive(t, diskCost(k.n))
		}
	})
}

// Only the bytes that were written for a key are taken for it.
func FuzzParseDiskFile(f *testing.F) {
	k := diskKey{diskTestID, 7, 4}
	f.Add(diskFile(k, []byte("body")), int64(7), int64(4))
	f.Add(diskFile(k, []byte("body"))[:30], int64(7), int64(4))
	f.Add(diskFile(k, []byte("body"))[:30], int64(7), int64(30-diskHeader))
	f.Add([]byte{}, int64(0), int64(0))
	f.Fuzz(func(t *testing.T, file []byte, off, n int64) {
		k := diskKey{diskTestID, off, n}
		if body, err := parseDiskFile(file, k); err == nil {
			require.Equal(t, diskFile(k, body), file)
		}
	})
}
