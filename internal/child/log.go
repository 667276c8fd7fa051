package child

import (
	"fmt"
	"io"
	"os"
)

// maxTail is how much of a log's end Tail returns.
const maxTail = 64 << 10

// OpenLog opens a file for what processes write, one after the other: each goes on where
// the one before it ended.
func OpenLog(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open log: %w", err)
	}
	return f, nil
}

// Tail returns the last part of a log, for a test that failed.
func Tail(path string) string {
	f, err := os.Open(path)
	if err != nil {
		return err.Error()
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err.Error()
	}
	begin := max(0, info.Size()-maxTail)
	body, err := io.ReadAll(io.NewSectionReader(f, begin, maxTail))
	if err != nil {
		return err.Error()
	}
	if begin > 0 {
		return fmt.Sprintf("(%d bytes before)\n%s", begin, body)
	}
	return string(body)
}
