package auth

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const (
	hashA = "sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
	hashB = "sha256:bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
)

func TestParse(t *testing.T) {
	entries, err := Parse([]byte(`# who may do what
tokens:
  - name: mailer
    hash: ` + hashA + `
    scopes: [read, append]
    prefixes:
      - user/42/
      - 42
      - "tab\there"
    prefixes_b64: [/w==]
    expires: 2027-01-31T00:00:00Z
  - {name: prometheus, hash: "` + hashB + `", scopes: [admin]}
`))
	require.NoError(t, err)
	a, _ := ParseHash(hashA)
	b, _ := ParseHash(hashB)
	require.Equal(t, []Entry{
		{Name: "mailer", Hash: a, Scopes: Read | Append, Prefixes: [][]byte{[]byte("user/42/"), []byte("42"), []byte("tab\there"), {0xff}},
			Expires: time.Date(2027, 1, 31, 0, 0, 0, 0, time.UTC)},
		{Name: "prometheus", Hash: b, Scopes: Admin},
	}, entries)

	entries, err = Parse([]byte("tokens: []\n"))
	require.NoError(t, err)
	require.Empty(t, entries)
}

// A token that somebody put into the file, wherever, is in no fault: those are logged.
func TestFaultsHideSecrets(t *testing.T) {
	secret := Generate()
	_, err := Parse([]byte(strings.ReplaceAll(`tokens:
  - name: SECRET
    hash: SECRET
    scopes: [SECRET]
    prefixes_b64: ["SECRET*"]
    expires: SECRET
    SECRET: x
  - name: x SECRET
SECRET: x
`, "SECRET", secret)))
	require.ErrorContains(t, err, `"annals_HIDDEN" is not a scope`)
	require.GreaterOrEqual(t, strings.Count(err.Error(), "annals_HIDDEN"), 6)
	require.NotContains(t, err.Error(), secret[:len(SecretPrefix)+9])
}

// All faults are told at once, each with its line.
func TestParseTellsAllFaults(t *testing.T) {
	_, err := Parse([]byte(`tokens:
  - name: mailer
    hash: ` + hashA + `
    scopes: [read, write, read]
    scope: [read]
    expires: 2027-01-31
  - name: mailer
    hash: ` + hashA + `
    scopes: [append]
    prefixes: []
  - name: with space
    hash: sha256:12
    scopes: [read, admin]
    prefixes: [""]
    prefixes_b64: ["*"]
  - name: d
  - just text
  - name: e
    name: f
    hash: {a: b}
    scopes: read
limits: 3
`))
	require.Equal(t, []string{
		`line 4: token "mailer": scopes: "write" is not a scope: read, append or admin`,
		`line 4: token "mailer": scopes: read is there twice`,
		`line 5: token 0: unknown field "scope"`,
		`line 6: token "mailer": expires: "2027-01-31" is not a time such as 2027-01-31T00:00:00Z`,
		`line 7: token "mailer": name: another token has it`,
		`line 7: token "mailer": hash: it is that of "mailer" too; every token needs a secret of its own`,
		`line 10: token "mailer": prefixes must be a list that is not empty; leave it out otherwise`,
		`line 11: token "with space": name: "with space" has a ' ' in it; allowed are letters, digits, dots, hyphens and underscores`,
		`line 11: token "with space": scopes: admin tells about all keys and cannot be limited by prefixes; make a token of its own for it`,
		`line 11: token "with space": prefixes: an empty one covers all keys; leave prefixes out for a token that is not limited`,
		`line 12: token "with space": hash: it must be sha256: and 64 hexadecimal digits`,
		`line 15: token "with space": prefixes_b64: "*" is not base64`,
		`line 16: token "d": hash: it is missing`,
		`line 16: token "d": scopes: one at least of read, append and admin is required`,
		`line 17: token 4 must be a mapping`,
		`line 19: token 5: name is there twice`,
		`line 20: token "e": hash must be text`,
		`line 21: token "e": scopes must be a list that is not empty; leave it out otherwise`,
		`line 22: the file: unknown field "limits"`,
	}, strings.Split(err.Error(), "\n"))
}

func TestParseRefusesFilesAsAWhole(t *testing.T) {
	for text, want := range map[string]string{
		"":                               "the file is empty",
		"# nothing\n":                    "the file is empty",
		"tokens:\n":                      "tokens must be a list; write [] for none",
		"{}":                             "tokens is missing",
		"null":                           "must be a mapping",
		"[]":                             "must be a mapping",
		"tokens: []\n---\ntokens: []":    "more than one document",
		"tokens: []\n--- [":              "line 2",
		"tokens: [":                      "line 1",
		"\x00":                           "control characters",
		"a: &a [x]\ntokens: *a":          "unknown field \"a\"",
		"tokens: []\ntokens: []":         "tokens is there twice",
		"tokens: [{name: ~}]":            "name must be text",
		"tokens: [*x]":                   "unknown anchor",
		strings.Repeat(" ", 8<<20) + "x": "at most 8388608",
		"tokens: [" + strings.Repeat("{},", 10_001) + "]": "at most 10000",
	} {
		_, err := Parse([]byte(text))
		require.ErrorContains(t, err, want, "%.50q", text)
	}
	_, err := Parse([]byte("tokens: [" + strings.Repeat("{x: 1},", 5000) + "]"))
	require.Len(t, strings.Split(err.Error(), "\n"), maxFaults)
}

func TestValidate(t *testing.T) {
	ok, _ := entry("ok", Read, "a")
	require.NoError(t, Validate([]Entry{ok}))
	require.NoError(t, Validate(nil))
	many := ok
	many.Prefixes = nil
	for i := range MaxPrefixes + 1 {
		many.Prefixes = append(many.Prefixes, fmt.Appendf(nil, "p%d", i))
	}
	for want, e := range map[string]Entry{
		"at most 256":       many,
		"hash: it is miss":  {Name: "a", Scopes: Read},
		"at most 4096":      {Name: "a", Hash: ok.Hash, Scopes: Read, Prefixes: [][]byte{make([]byte, 4097)}},
		"it must have 1 to": {Hash: ok.Hash, Scopes: Read},
		"it has 65 bytes":   {Name: strings.Repeat("x", 65), Hash: ok.Hash, Scopes: Read},
		"scopes: one at":    {Name: "a", Hash: ok.Hash, Scopes: 8},
		"cannot be limited": {Name: "a", Hash: ok.Hash, Scopes: Admin, Prefixes: [][]byte{{1}}},
		"has a '\\n' in it": {Name: "a\n", Hash: ok.Hash, Scopes: Read},
	} {
		_, err := NewTokens([]Entry{e})
		require.ErrorContains(t, err, want)
	}
	all := make([]Entry, MaxTokens+1)
	for i := range all {
		all[i] = Entry{Name: fmt.Sprint(i), Hash: HashOf(fmt.Sprint(i)), Scopes: Read}
	}
	require.ErrorContains(t, Validate(all), "10001 tokens")
	require.NoError(t, Validate(all[1:]))
}

// Whatever is in a file, it is entries that are valid or an error.
func FuzzParse(f *testing.F) {
	f.Add([]byte("tokens:\n  - name: a\n    hash: " + hashA + "\n    scopes: [read]\n    prefixes: [x]\n"))
	f.Add([]byte("tokens: [{name: a, hash: '" + hashB + "', scopes: [append, admin], expires: 2027-01-31T00:00:00Z}]"))
	f.Add([]byte("tokens: &a [*a]"))
	f.Add([]byte("<<: {tokens: []}"))
	f.Fuzz(func(t *testing.T, data []byte) {
		entries, err := Parse(data)
		if err != nil {
			require.Nil(t, entries)
			require.NotEmpty(t, err.Error())
			return
		}
		require.NoError(t, Validate(entries))
		tokens, err := NewTokens(entries)
		require.NoError(t, err)
		require.Equal(t, len(entries), tokens.Len())
	})
}
