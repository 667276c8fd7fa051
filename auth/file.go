package auth

import (
	"context"
	"log/slog"

	"github.com/annalsdb/annals/internal/reload"
)

// Open returns the tokens of a file, whose form is docs/SECURITY.md's. Watch keeps them up to date.
// Errors: the file cannot be read, or what Parse finds in it.
func Open(name string) (*Tokens, error) {
	s, err := NewTokens(nil)
	if err != nil {
		return nil, err
	}
	s.file, err = reload.Open("token file", []string{name}, func(contents [][]byte) error {
		entries, err := Parse(contents[0])
		if err != nil {
			return err
		}
		return s.Replace(entries)
	})
	if err != nil {
		return nil, err
	}
	return s, nil
}

// Watch takes changes of the file up, within four seconds, until ctx ends. A file that is not valid
// changes nothing, and is logged. It returns at once where the tokens are of no file.
func (s *Tokens) Watch(ctx context.Context, log *slog.Logger) {
	if s.file != nil {
		s.file.Watch(ctx, log)
	}
}

// Reload takes the file up at once, for whoever does not want to wait for Watch.
func (s *Tokens) Reload(log *slog.Logger) {
	if s.file != nil {
		s.file.Reload(log)
	}
}

// ReloadFailing reports whether the file as it is now was refused, so that an older one is in force.
func (s *Tokens) ReloadFailing() bool { return s.file != nil && s.file.Failing() }
