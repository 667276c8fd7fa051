package engine

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"

	"github.com/oklog/ulid/v2"

	"github.com/annalsdb/annals/internal/base"
)

// The files of the disk cache: docs/format/diskcache.md.

// diskKey names the n bytes from off on of the object with the id. Objects are
// written once, so the key names the bytes themselves for ever.
type diskKey struct {
	id     base.ULID
	off, n int64
}

const (
	diskVersion = 1
	diskHeader  = 56
	// maxDiskRange is the largest range that the cache keeps.
	maxDiskRange = 1 << 30
	// diskFolders spread the files. All ranges of an object share a folder.
	diskFolders = 256
)

var diskMagic = [8]byte{'A', 'N', 'N', 'A', 'L', 'D', 'S', 'K'}

// seed is the seed of the file's checksum, and a hash of the key.
func (k diskKey) seed() uint64 { return base.Seed(k.id[:], uint64(k.off), uint64(k.n)) }

// folder is the number of the folder that holds the object's ranges.
func (k diskKey) folder() int { return int(base.Seed(k.id[:]) % diskFolders) }

func folderName(folder int) string { return fmt.Sprintf("%02x", folder) }

const (
	diskNumberWidth = 16
	diskULIDWidth   = 26
	diskNameWidth   = diskULIDWidth + 2*(1+diskNumberWidth)
)

// name is the file's name in its folder.
func (k diskKey) name() string { return fmt.Sprintf("%s-%016x-%016x", k.id, k.off, k.n) }

// parseDiskName accepts exactly the names that diskKey.name makes of ranges that
// the cache keeps.
func parseDiskName(s string) (k diskKey, ok bool) {
	if len(s) != diskNameWidth || s[diskULIDWidth] != '-' || s[diskULIDWidth+1+diskNumberWidth] != '-' {
		return k, false
	}
	id, err := ulid.ParseStrict(s[:diskULIDWidth])
	if err != nil {
		return k, false
	}
	off, err1 := strconv.ParseInt(s[diskULIDWidth+1:][:diskNumberWidth], 16, 64)
	n, err2 := strconv.ParseInt(s[diskNameWidth-diskNumberWidth:], 16, 64)
	if err1 != nil || err2 != nil || off < 0 || n <= 0 || n > maxDiskRange {
		return k, false
	}
	k = diskKey{id, off, n}
	return k, k.name() == s // one spelling a range
}

// errDiskFile says that a file does not hold what its name promises.
var errDiskFile = errors.New("not an intact file of the disk cache")

// appendDiskHeader appends the header of the file that holds body.
func appendDiskHeader(dst []byte, k diskKey, body []byte) []byte {
	begin := len(dst)
	dst = append(dst, diskMagic[:]...)
	dst = binary.LittleEndian.AppendUint32(dst, diskVersion)
	dst = binary.LittleEndian.AppendUint32(dst, 0)
	dst = append(dst, k.id[:]...)
	dst = binary.LittleEndian.AppendUint64(dst, uint64(k.off))
	dst = binary.LittleEndian.AppendUint64(dst, uint64(k.n))
	return binary.LittleEndian.AppendUint64(dst, base.Checksum(k.seed(), dst[begin:], body))
}

// parseDiskFile returns the range in the bytes of a file, which it aliases, or
// errDiskFile.
func parseDiskFile(file []byte, k diskKey) ([]byte, error) {
	if len(file) < diskHeader || int64(len(file)) != diskHeader+k.n {
		return nil, errDiskFile
	}
	const checked = diskHeader - 8
	body := file[diskHeader:]
	sum := binary.LittleEndian.Uint64(file[checked:])
	if sum != base.Checksum(k.seed(), file[:checked], body) ||
		[8]byte(file[:8]) != diskMagic ||
		binary.LittleEndian.Uint32(file[8:]) != diskVersion ||
		binary.LittleEndian.Uint32(file[12:]) != 0 ||
		base.ULID(file[16:32]) != k.id ||
		binary.LittleEndian.Uint64(file[32:]) != uint64(k.off) ||
		binary.LittleEndian.Uint64(file[40:]) != uint64(k.n) {
		return nil, errDiskFile
	}
	return body, nil
}

// diskCost is about what a file for a range of n bytes occupies: whole blocks of
// 4 KiB, and its inode and folder entry.
func diskCost(n int64) int64 {
	const block, inode = 4 << 10, 512
	return (n+diskHeader+block-1)/block*block + inode
}

// readDiskFile reads a file that must have size bytes; nothing is allocated for
// one that has not.
func readDiskFile(path string, size int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || info.Size() != size {
		return nil, errDiskFile
	}
	b := make([]byte, size)
	if _, err := io.ReadFull(f, b); err != nil {
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			err = errDiskFile // cut short meanwhile
		}
		return nil, err
	}
	return b, nil
}

// writeDiskFile writes a file. It is not synced: the checksum finds out what a
// crash left of it.
func writeDiskFile(path string, parts ...[]byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	for _, p := range parts {
		if _, err := f.Write(p); err != nil {
			_ = f.Close()
			return err
		}
	}
	return f.Close()
}
