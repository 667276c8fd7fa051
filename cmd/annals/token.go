package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/annalsdb/annals/auth"
)

const tokenLong = `Makes tokens, and checks the file that lists them for annals serve --tokens. docs/SECURITY.md says what they may do.`

const tokenNewLong = `Makes a token, prints it on standard output, and adds what the server needs to know of it to a file:

  annals token new --file tokens.yaml --name mailer --scopes read,append --prefix user/42/ > mailer.token
  annals serve --tokens tokens.yaml
  annals scan --token-file mailer.token user/42/inbox

The file has only the token's hash: the token is shown now and never again. A server that uses the file takes the token
up within seconds. Without --file the entry is printed on standard error, for a file elsewhere. With --json token and
entry are one object:

  {"token":"annals_...","name":"mailer","hash":"sha256:...","scopes":["read","append"],"prefixes":["user/42/"]}

Prefixes that are no text are in "prefixesB64".`

const tokenCheckLong = `Reads a token file as the server does, and prints its tokens, or all that is wrong with it, each with its line. With --json
one object a line:

  {"name":"mailer","hash":"sha256:...","scopes":["read","append"],"prefixes":["user/42/"]}`

func newToken(p *process) *cobra.Command {
	root := &cobra.Command{Use: "token", Short: "Make tokens and check the file that lists them", Long: tokenLong, Args: cobra.ArbitraryArgs}
	root.RunE = func(_ *cobra.Command, args []string) error {
		if len(args) == 0 {
			return &usageError{[]string{"one of new and check is missing"}}
		}
		return &usageError{[]string{fmt.Sprintf("unknown command %q", args[0])}}
	}
	root.AddCommand(newTokenNew(p), newTokenCheck(p))
	return root
}

// tokenConfig is what the flags of annals token new say.
type tokenConfig struct {
	entry auth.Entry
	file  string
	json  bool
}

func newTokenNew(p *process) *cobra.Command {
	var c tokenConfig
	cmd := &cobra.Command{Use: "new [flags]", Short: "Make a token", Long: tokenNewLong}
	return newCommand(p, cmd, nil, c.define, c.check, func(*settings, []string) error {
		secret := auth.Generate()
		c.entry.Hash = auth.HashOf(secret)
		if c.file != "" {
			if err := addToFile(c.file, c.entry); err != nil {
				return failf("add the token to %s: %w", c.file, err)
			}
		} else if !c.json {
			fmt.Fprintf(p.stderr, "Add this to the token file, below \"tokens:\":\n\n%s\n", c.entry.Text())
		}
		if !c.json {
			_, err := fmt.Fprintln(p.stdout, secret)
			return writeFailure(err)
		}
		line := lineOf(&c.entry)
		line.Token = secret
		return writeFailure(printJSONLine(p.stdout, line))
	})
}

func (c *tokenConfig) define(s *settings) {
	e := &c.entry
	addFlag(s, "name", "name", "", &e.Name, func(text string) (string, error) { return text, auth.ValidateName(text) },
		"what the server's log calls whoever has the token; needed")
	addFlag(s, "scopes", "scopes", "", &e.Scopes, parseScopes,
		"what it allows: read, append and admin (metrics), with commas between them; needed")
	addFlag(s, "prefix", "prefix", "", &e.Prefixes, func(text string) ([][]byte, error) {
		p, err := parseKey(text)
		if err == nil {
			err = auth.ValidatePrefix(p)
		}
		return append(e.Prefixes, p), err
	}, "limit it to keys that begin so, such as user/42/; may be given several times (default none: all keys)")
	addFlag(s, "expires", "duration|time", "", &e.Expires, parseExpiry, "when it ends: in 90d, or at 2027-01-31T00:00:00Z (default none: never)")
	addFlag(s, "file", "file", "", &c.file, parseText, "token file to add it to, which is made if there is none (default none: print the entry)")
	s.flags.BoolVar(&c.json, "json", false, "print one JSON object, with the token")
}

func (c *tokenConfig) check(s *settings) {
	for _, name := range []string{"name", "scopes"} {
		if !s.changed(name) {
			s.fault("--%s is missing", name)
		}
	}
	e := c.entry
	e.Hash[0] = 1 // there is none yet
	if len(s.faults) == 0 {
		if err := auth.Validate([]auth.Entry{e}); err != nil {
			_, what, _ := strings.Cut(err.Error(), "): ") // behind the name
			s.fault("%s", what)
		}
	}
}

// parseScopes reads scopes with commas between them.
func parseScopes(text string) (s auth.Scope, err error) {
	for _, name := range strings.Split(text, ",") {
		one, err := auth.ParseScope(strings.TrimSpace(name))
		if err != nil {
			return 0, err
		}
		s |= one
	}
	return s, nil
}

// parseExpiry reads a time to come, or how long it is until then.
func parseExpiry(text string) (time.Time, error) {
	if d, err := parseDuration(text); err == nil {
		return time.Now().Add(d).UTC().Truncate(time.Second), nil
	}
	at, err := time.Parse(time.RFC3339, text)
	switch {
	case err != nil:
		return at, fmt.Errorf("%q is neither a duration such as 90d nor a time such as 2027-01-31T00:00:00Z", text)
	case at.Before(time.Now()):
		return at, fmt.Errorf("%s is past", text)
	}
	return at, nil
}

func newTokenCheck(p *process) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{Use: "check [flags] FILE", Short: "Check a token file, and print its tokens", Long: tokenCheckLong}
	define := func(s *settings) { s.flags.BoolVar(&asJSON, "json", false, "print one JSON object a line") }
	return newCommand(p, cmd, []string{"FILE"}, define, func(*settings) {}, func(_ *settings, args []string) error {
		text, err := os.ReadFile(args[0])
		if err != nil {
			return failf("%w", err)
		}
		entries, err := auth.Parse(text)
		if err != nil {
			return failf("%s is not valid:\n  %s", args[0], strings.ReplaceAll(err.Error(), "\n", "\n  "))
		}
		if asJSON {
			for i := range entries {
				if err := printJSONLine(p.stdout, lineOf(&entries[i])); err != nil {
					return writeFailure(err)
				}
			}
			return nil
		}
		return printTokens(p.stdout, entries, time.Now())
	})
}

// printTokens writes a table for people.
func printTokens(w io.Writer, entries []auth.Entry, now time.Time) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "name\tscopes\texpires\tprefixes") // the error sticks until Flush
	for _, e := range entries {
		expires, prefixes := "never", []string{}
		if !e.Expires.IsZero() {
			expires = e.Expires.UTC().Format(time.RFC3339)
			if !now.Before(e.Expires) {
				expires += " (expired)"
			}
		}
		for _, p := range e.Prefixes {
			prefixes = append(prefixes, shellQuote(p))
		}
		if len(prefixes) == 0 {
			prefixes = []string{"all keys"}
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\n", e.Name, e.Scopes, expires, strings.Join(prefixes, " "))
	}
	return writeFailure(table.Flush())
}

// tokenLine is a token in JSON.
type tokenLine struct {
	Token       string    `json:"token,omitzero"`
	Name        string    `json:"name"`
	Hash        string    `json:"hash"`
	Scopes      []string  `json:"scopes"`
	Prefixes    []string  `json:"prefixes,omitempty"`
	PrefixesB64 [][]byte  `json:"prefixesB64,omitempty"`
	Expires     time.Time `json:"expires,omitzero"`
}

func lineOf(e *auth.Entry) tokenLine {
	line := tokenLine{Name: e.Name, Hash: e.Hash.String(), Scopes: e.Scopes.Names(), Expires: e.Expires}
	for _, p := range e.Prefixes {
		if utf8.Valid(p) {
			line.Prefixes = append(line.Prefixes, string(p))
		} else {
			line.PrefixesB64 = append(line.PrefixesB64, p)
		}
	}
	return line
}

func writeFailure(err error) error {
	if err != nil {
		return failf("write: %w", err)
	}
	return nil
}
