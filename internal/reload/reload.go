// Package reload keeps what a process read from files up to date: certificates, tokens. It reads
// the files again and again, so that it sees every way of replacing one: a rename, a write in place, a
// symlink that points elsewhere.
package reload

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"
)

// Interval is how often Watch looks. A change is taken up when two looks in a row saw the same, so after
// two intervals at most: a file that is being written in place is not read half.
const Interval = 2 * time.Second

// MaxFileBytes is the longest file.
const MaxFileBytes = 8 << 20

// Files are some files that belong together, and what is made of them. Methods may be called from any goroutine.
type Files struct {
	what  string // for logs: "token file"
	names []string
	use   func(contents [][]byte) error

	mu      sync.Mutex
	tried   [sha256.Size]byte // what was taken up last, or refused
	seen    [sha256.Size]byte // by the last look
	failing bool
}

// Open reads the files and has them used. When use returns an error it must have changed nothing. It is called for one
// reading at a time. Errors: all that cannot be read, or what use returns.
func Open(what string, names []string, use func(contents [][]byte) error) (*Files, error) {
	f := &Files{what: what, names: names, use: use}
	contents, sum, err := f.read()
	if err == nil {
		err = use(contents)
	}
	if err != nil {
		return nil, err
	}
	f.tried, f.seen = sum, sum
	return f, nil
}

// Watch takes changes up until ctx ends.
func (f *Files) Watch(ctx context.Context, log *slog.Logger) {
	ticker := time.NewTicker(Interval)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			f.look(log, false)
		case <-ctx.Done():
			return
		}
	}
}

// Reload reads the files now, whether or not they seem to have changed.
func (f *Files) Reload(log *slog.Logger) { f.look(log, true) }

// Failing reports whether what is in the files now was refused, so that what they were before is still in
// force.
func (f *Files) Failing() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.failing
}

// look reads the files, and takes them up if they changed, and did so before this look, or if it is to.
func (f *Files) look(log *slog.Logger, always bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	contents, sum, err := f.read()
	settled := sum == f.seen
	f.seen = sum
	if !always && (sum == f.tried || !settled) {
		return
	}
	f.tried = sum
	if err == nil {
		err = f.use(contents)
	}
	f.failing = err != nil
	if err != nil {
		log.Error(f.what+" was not reloaded; the old one stays in force", "files", strings.Join(f.names, " "),
			"error", strings.ReplaceAll(err.Error(), "\n", "; "))
		return
	}
	log.Info(f.what+" was reloaded", "files", strings.Join(f.names, " "))
}

// read returns what is in the files, or all reasons why it cannot be read, and a sum of either.
func (f *Files) read() (contents [][]byte, sum [sha256.Size]byte, err error) {
	h := sha256.New()
	var errs []error
	for _, name := range f.names {
		b, err := ReadFile(name)
		if err != nil {
			errs = append(errs, err)
			b = []byte(err.Error())
		}
		_, _ = h.Write(binary.AppendUvarint(nil, uint64(len(b)))) // a hash takes everything
		_, _ = h.Write(b)
		contents = append(contents, b)
	}
	h.Sum(sum[:0])
	return contents, sum, errors.Join(errs...)
}

// ReadFile returns what is in a file that is not too long for this package.
func ReadFile(name string) ([]byte, error) {
	file, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	b, err := io.ReadAll(io.LimitReader(file, MaxFileBytes+1))
	if err == nil && len(b) > MaxFileBytes {
		err = fmt.Errorf("read %s: it has more than %d bytes", name, MaxFileBytes)
	}
	return b, err
}
