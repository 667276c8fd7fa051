package auth

import (
	"errors"
	"fmt"
)

// Bounds of a set of tokens.
const (
	MaxTokens      = 10_000
	MaxNameBytes   = 64
	MaxPrefixes    = 256  // of one token: a listing of keys reads the log once for each
	MaxPrefixBytes = 4096 // of one prefix
)

// Validate reports everything that is wrong with the entries, joined into one error, or nil.
func Validate(entries []Entry) error {
	var errs []error
	v := newValidator()
	for i := range entries {
		for _, err := range v.entry(&entries[i]) {
			errs = append(errs, fmt.Errorf("token %d (%.64q): %w", i, entries[i].Name, err))
		}
	}
	if len(entries) > MaxTokens {
		errs = append(errs, errTooManyTokens(len(entries)))
	}
	return errors.Join(errs...)
}

func errTooManyTokens(n int) error {
	return fmt.Errorf("%d tokens; at most %d are allowed", n, MaxTokens)
}

// validator checks the entries of one set.
type validator struct {
	names  map[string]bool
	hashes map[Hash]string // name of whose it is
}

func newValidator() *validator {
	return &validator{names: make(map[string]bool), hashes: make(map[Hash]string)}
}

// entry returns what is wrong with the next entry.
func (v *validator) entry(e *Entry) (errs []error) {
	fault := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if err := ValidateName(e.Name); err != nil {
		fault("name: %w", err)
	} else if v.names[e.Name] {
		fault("name: another token has it")
	}
	v.names[e.Name] = true
	if e.Hash == (Hash{}) {
		fault("hash: it is missing")
	} else if name, taken := v.hashes[e.Hash]; taken {
		fault("hash: it is that of %.64q too; every token needs a secret of its own", name)
	} else {
		v.hashes[e.Hash] = e.Name
	}
	if e.Scopes == 0 || e.Scopes > Read|Append|Admin {
		fault("scopes: one at least of read, append and admin is required")
	}
	if e.Scopes.Has(Admin) && len(e.Prefixes) > 0 {
		fault("scopes: admin tells about all keys and cannot be limited by prefixes; make a token of its own for it")
	}
	if n := len(e.Prefixes); n > MaxPrefixes {
		fault("prefixes: there are %d; at most %d are allowed", n, MaxPrefixes)
	}
	for _, p := range e.Prefixes {
		if err := ValidatePrefix(p); err != nil {
			fault("prefixes: %w", err)
		}
	}
	return errs
}

// ValidateName checks the name of a token: 1 to MaxNameBytes letters, digits, dots, hyphens and
// underscores.
func ValidateName(name string) error {
	if name == "" || len(name) > MaxNameBytes {
		return fmt.Errorf("it has %d bytes; it must have 1 to %d", len(name), MaxNameBytes)
	}
	for _, c := range []byte(name) {
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '.' && c != '-' && c != '_' {
			return fmt.Errorf("%q has a %q in it; allowed are letters, digits, dots, hyphens and underscores", name, c)
		}
	}
	return nil
}

// ValidatePrefix checks one prefix of a token.
func ValidatePrefix(p []byte) error {
	switch {
	case len(p) == 0:
		return errors.New("an empty one covers all keys; leave prefixes out for a token that is not limited")
	case len(p) > MaxPrefixBytes:
		return fmt.Errorf("one has %d bytes; at most %d are allowed", len(p), MaxPrefixBytes)
	}
	return nil
}
