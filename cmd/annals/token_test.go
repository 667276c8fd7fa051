package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/auth"
)

// newTokenOf makes a token and returns it.
func newTokenOf(t *testing.T, args ...string) string {
	t.Helper()
	status, stdout, stderr := runIn(append([]string{"token", "new"}, args...)...)
	require.Equal(t, exitOK, status, stderr)
	secret := strings.TrimSuffix(stdout, "\n")
	require.True(t, auth.WellFormed(secret), stdout)
	require.NotContains(t, stderr, secret)
	return secret
}

func TestTokenNew(t *testing.T) {
	file := filepath.Join(t.TempDir(), "tokens.yaml")
	a := newTokenOf(t, "--file", file, "--name", "mailer", "--scopes", "read,append", "--prefix", "user/42/", "--prefix", "b64:/w==", "--expires", "90d")
	info, err := os.Stat(file)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
	require.NoError(t, os.Chmod(file, 0o640)) // for the server's group
	link := file + ".link"
	require.NoError(t, os.Symlink(file, link))
	b := newTokenOf(t, "--file", link, "--name", "prometheus", "--scopes", "admin", "--expires", "2099-01-31T00:00:00+01:00")
	info, err = os.Lstat(file)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o640), info.Mode(), "it is the file that changed, not the link, and who may read it may")
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	require.NotContains(t, string(text), a)
	require.NotContains(t, string(text), b)
	entries, err := auth.Parse(text)
	require.NoError(t, err)
	require.Len(t, entries, 2)
	require.Equal(t, auth.HashOf(a), entries[0].Hash)
	require.Equal(t, [][]byte{[]byte("user/42/"), {0xff}}, entries[0].Prefixes)
	require.InDelta(t, 90*24*time.Hour, time.Until(entries[0].Expires), float64(time.Hour))
	require.Equal(t, auth.Admin, entries[1].Scopes)
	require.True(t, entries[1].Expires.Equal(time.Date(2099, 1, 30, 23, 0, 0, 0, time.UTC)))
	left, err := os.ReadDir(filepath.Dir(file))
	require.NoError(t, err)
	require.Len(t, left, 2, "no temporary file stays")

	// Another of the same name changes nothing.
	status, stdout, stderr := runIn("token", "new", "--file", file, "--name", "mailer", "--scopes", "read")
	require.Equal(t, exitFailure, status)
	require.Empty(t, stdout, "no token that nobody knows of")
	require.Contains(t, stderr, "another token has it")
	after, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, string(text), string(after))

	status, stdout, _ = runIn("token", "check", file)
	require.Equal(t, exitOK, status)
	lines := strings.Split(stdout, "\n")
	require.Equal(t, []string{"mailer", "read,append"}, strings.Fields(lines[1])[:2])
	require.Contains(t, lines[1], "user/42/ b64:/w==")
	require.Contains(t, lines[2], "2099-01-30T23:00:00Z  all keys")
}

// Tokens that are made at the same time are all in the file.
func TestTokensOfOneMoment(t *testing.T) {
	file := filepath.Join(t.TempDir(), "tokens.yaml")
	const makers = 20
	statuses := make(chan int)
	for i := range makers {
		go func() {
			status, _, _ := runIn("token", "new", "--file", file, "--name", fmt.Sprintf("t%d", i), "--scopes", "read")
			statuses <- status
		}()
	}
	for range makers {
		require.Equal(t, exitOK, <-statuses)
	}
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	entries, err := auth.Parse(text)
	require.NoError(t, err)
	require.Len(t, entries, makers)
}

// The server reads the file as one of its group: root, who adds a token, leaves it that.
func TestTokenNewKeepsOwnerAndGroup(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root gives files away")
	}
	file := filepath.Join(t.TempDir(), "tokens.yaml")
	newTokenOf(t, "--file", file, "--name", "a", "--scopes", "read")
	require.NoError(t, os.Chown(file, 12, 34))
	require.NoError(t, os.Chmod(file, 0o640))
	newTokenOf(t, "--file", file, "--name", "b", "--scopes", "read")
	info, err := os.Stat(file)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o640), info.Mode())
	stat := info.Sys().(*syscall.Stat_t)
	require.Equal(t, [2]uint32{12, 34}, [2]uint32{stat.Uid, stat.Gid})
}

func TestTokenNewWithoutFile(t *testing.T) {
	status, stdout, stderr := runIn("token", "new", "--name", "a", "--scopes", "read", "--prefix", "x")
	require.Equal(t, exitOK, status)
	_, entry, _ := strings.Cut(stderr, "\n")
	entries, err := auth.Parse([]byte("tokens:\n" + entry))
	require.NoError(t, err)
	require.Equal(t, auth.HashOf(strings.TrimSpace(stdout)), entries[0].Hash)

	status, stdout, stderr = runIn("token", "new", "--json", "--name", "a", "--scopes", "append,read", "--prefix", "x", "--prefix", "b64:/w")
	require.Equal(t, exitOK, status)
	require.Empty(t, stderr)
	var got map[string]any
	require.NoError(t, json.Unmarshal([]byte(stdout), &got))
	require.Equal(t, auth.HashOf(got["token"].(string)).String(), got["hash"])
	delete(got, "token")
	delete(got, "hash")
	require.Equal(t, map[string]any{"name": "a", "scopes": []any{"read", "append"}, "prefixes": []any{"x"}, "prefixesB64": []any{"/w=="}}, got)
}

func TestTokenFaults(t *testing.T) {
	for _, c := range []struct {
		args []string
		want []string
	}{
		{[]string{"new"}, []string{"--name is missing", "--scopes is missing"}},
		{[]string{"new", "--name", "a b", "--scopes", "read,write", "--prefix", "", "--expires", "yesterday"},
			[]string{"allowed are letters", `"write" is not a scope`, "an empty one covers all keys", "neither a duration"}},
		{[]string{"new", "--name", "a", "--scopes", "admin", "--prefix", "x"}, []string{"admin tells about all keys"}},
		{[]string{"new", "--name", "a", "--scopes", "read", "--expires", "2001-01-01T00:00:00Z"}, []string{"is past"}},
		{[]string{"check"}, []string{"FILE is missing"}},
		{[]string{}, []string{"one of new and check is missing"}},
		{[]string{"make"}, []string{`unknown command "make"`}},
	} {
		status, stdout, stderr := runIn(append([]string{"token"}, c.args...)...)
		require.Equal(t, exitUsage, status, c.args)
		require.Empty(t, stdout)
		for _, want := range c.want {
			require.Contains(t, stderr, want)
		}
	}
	bad := configFile(t, "tokens: [{name: a}, 3]")
	status, stdout, stderr := runIn("token", "check", bad)
	require.Equal(t, exitFailure, status)
	require.Empty(t, stdout)
	require.Equal(t, 4, strings.Count(stderr, "\n"), stderr)
	status, _, stderr = runIn("token", "check", bad+".none")
	require.Equal(t, exitFailure, status)
	require.Contains(t, stderr, "no such file")
}

func TestTokenCheckSaysWhatExpired(t *testing.T) {
	var out bytes.Buffer
	e := auth.Entry{Name: "a", Scopes: auth.Read, Expires: time.Unix(1700000000, 0)}
	require.NoError(t, printTokens(&out, []auth.Entry{e}, time.Unix(1700000000, 0)))
	require.Contains(t, out.String(), "2023-11-14T22:13:20Z (expired)")
	out.Reset()
	require.NoError(t, printTokens(&out, []auth.Entry{e}, time.Unix(1699999999, 0)))
	require.NotContains(t, out.String(), "expired")
}
