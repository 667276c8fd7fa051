package main

import (
	"encoding/pem"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// askWith runs "annals count k" with an environment.
func askWith(environ []string, args ...string) (status int, stdout, stderr string) {
	var out, errs strings.Builder
	status = run(&process{args: append([]string{"count", "k"}, args...), environ: environ, stdin: strings.NewReader(""), stdout: &out, stderr: &errs})
	return status, out.String(), errs.String()
}

// A token comes from a file or a variable, and is in no error.
func TestConnectionToken(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.Header.Get("Authorization") {
		case "Bearer of-a-file", "Bearer of-a-variable":
			_, _ = w.Write(nil) // a count of 0
		case "":
			w.WriteHeader(http.StatusUnauthorized)
			_, _ = io.WriteString(w, `{"status":"error","message":"no token"}`)
		default:
			w.WriteHeader(http.StatusForbidden)
			_, _ = io.WriteString(w, `{"status":"error","message":"not you"}`)
		}
	}))
	defer s.Close()
	dir := t.TempDir()
	file, spoilt := filepath.Join(dir, "token"), filepath.Join(dir, "spoilt")
	require.NoError(t, os.WriteFile(file, []byte("of-a-file\n"), 0o600))
	require.NoError(t, os.WriteFile(spoilt, []byte("two words"), 0o600))
	server := "ANNALS_SERVER=" + s.URL
	for _, test := range []struct {
		environ []string
		args    []string
		status  int
		want    string
	}{
		{[]string{server, "ANNALS_TOKEN_FILE=" + file, "ANNALS_TOKEN=wrong"}, nil, exitOK, ""},
		{[]string{server, "ANNALS_TOKEN=of-a-variable"}, nil, exitOK, ""},
		{[]string{server, "ANNALS_TOKEN=of-a-variable", "ANNALS_TLS_CERT=/of/serve", "ANNALS_TLS_KEY=/of/serve"}, nil, exitOK, ""},
		{[]string{server, "ANNALS_TOKEN=wrong-one"}, []string{"--token-file", file}, exitOK, ""},
		{[]string{server}, nil, exitFailure, "--token-file FILE, or the variable ANNALS_TOKEN"},
		{[]string{server, "ANNALS_TOKEN=wrong-one"}, nil, exitFailure, "The token is not for this"},
		{[]string{server, "ANNALS_TOKEN=two words"}, nil, exitUsage, "ANNALS_TOKEN: a token is one word of plain characters"},
		{[]string{server}, []string{"--token-file", spoilt}, exitFailure, spoilt},
		{[]string{server}, []string{"--token-file", filepath.Join(dir, "none")}, exitFailure, "no such file"},
		{[]string{server}, []string{"--token", "secret"}, exitUsage, "--token: everybody on a machine can read command lines; use --token-file, or the variable ANNALS_TOKEN"},
	} {
		status, stdout, stderr := askWith(test.environ, test.args...)
		require.Equal(t, test.status, status, "%v %v: %s", test.environ, test.args, stderr)
		require.Contains(t, stderr, test.want)
		if status == exitOK {
			require.Equal(t, "0\n", stdout)
		}
		if status == exitFailure {
			require.Empty(t, stdout)
		}
		for _, secret := range []string{"wrong-one", "two words", "secret"} {
			require.NotContains(t, stderr, secret)
		}
	}
}

// The certificate of a server is checked, by the system's authorities or those of --tls-ca; errors say what to do.
func TestConnectionTLS(t *testing.T) {
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.StartTLS()
	defer s.Close()
	dir := t.TempDir()
	ca, none := filepath.Join(dir, "ca.pem"), filepath.Join(dir, "none.pem")
	require.NoError(t, os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}), 0o600))
	require.NoError(t, os.WriteFile(none, []byte("nothing"), 0o600))
	plain := httptest.NewServer(http.NotFoundHandler())
	defer plain.Close()
	for _, test := range []struct {
		args   []string
		status int
		want   string
	}{
		{[]string{"--server", s.URL, "--tls-ca", ca}, exitOK, ""},
		{[]string{"--server", s.URL}, exitFailure, "--tls-ca names the file"},
		{[]string{"--server", s.URL, "--tls-ca", none}, exitFailure, none + " holds no certificate in PEM form"},
		{[]string{"--server", s.URL, "--tls-cert", ca, "--tls-key", none}, exitFailure, "read --tls-cert and --tls-key: "},
		{[]string{"--server", "http" + strings.TrimPrefix(s.URL, "https")}, exitFailure, "--server with https:// instead of http://"},
		{[]string{"--server", "https" + strings.TrimPrefix(plain.URL, "http")}, exitFailure, "--server with http:// instead of https://"},
		{[]string{"--server", "http://" + freeAddress(t)}, exitFailure, `Is "annals serve" running at http://127.0.0.1:`},
		{[]string{"--server", "http://nowhere.invalid"}, exitFailure, "names the server: it is http://nowhere.invalid."},
	} {
		status, _, stderr := askWith(nil, test.args...)
		require.Equal(t, test.status, status, "%v: %s", test.args, stderr)
		require.Contains(t, stderr, test.want, "%v", test.args)
	}
}

// Commands on the store say what to do where there is no log.
func TestNoLogHint(t *testing.T) {
	dir := t.TempDir()
	table := smallLog(t, filepath.Join(dir, "log"))
	for _, args := range [][]string{
		{"check", "--store", "file:" + filepath.Join(dir, "log"), "--lost-log", filepath.Join(dir, "none", "LOG")}, {"check", "--store", "file:" + table},
		{"bench", "ingest", "--store", "mem:", "--cpu-profile", filepath.Join(dir, "none", "cpu")},
	} {
		status, _, stderr := runIn(args...)
		require.NotZero(t, status)
		require.NotContains(t, stderr, "annals serve", "it is something else that is not there")
	}
	dir = t.TempDir()
	for _, command := range []string{"check", "inspect", "compact"} {
		for _, folder := range []string{dir, filepath.Join(dir, "none")} {
			status, _, stderr := runIn(command, "--store", "file:"+folder)
			require.NotZero(t, status)
			require.Contains(t, stderr, "no log here")
			require.Contains(t, stderr, `"annals serve" begins a log in an empty store. --store, or the variable ANNALS_STORE, names another one: it is file:`+folder+".")
		}
	}
}
