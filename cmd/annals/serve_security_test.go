package main

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/auth"
	"github.com/annalsdb/annals/server"
)

// writeCert writes a certificate for 127.0.0.1 that is its own authority, and its key.
func writeCert(t *testing.T, folder string, serial int64) (cert, key string) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(serial), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	require.NoError(t, err)
	pkcs8, err := x509.MarshalPKCS8PrivateKey(private)
	require.NoError(t, err)
	cert, key = filepath.Join(folder, "tls.crt"), filepath.Join(folder, "tls.key")
	require.NoError(t, os.WriteFile(cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600))
	require.NoError(t, os.WriteFile(key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8}), 0o600))
	return cert, key
}

func TestSecurityFaults(t *testing.T) {
	cert, key := writeCert(t, t.TempDir(), 1)
	bad := configFile(t, "tokens: [{name: a}]")
	for _, c := range []struct {
		args []string
		want []string
	}{
		{[]string{"--tls-cert", cert}, []string{"--tls-cert needs --tls-key"}},
		{[]string{"--tls-key", key}, []string{"--tls-key needs --tls-cert"}},
		{[]string{"--tls-client-ca", cert}, []string{"--tls-client-ca needs --tls-cert and --tls-key"}},
		{[]string{"--tls-cert", cert, "--tls-key", cert, "--tls-client-ca", key, "--tokens", bad},
			[]string{"--tokens " + bad + ": line 1: token \"a\": hash: it is missing", "--tokens " + bad + ": line 1: token \"a\": scopes",
				"--tls-cert and --tls-key: " + cert + " and " + cert + ": tls: found a certificate rather than a key", "--tls-client-ca: " + key + ": there is no certificate"}},
		{[]string{"--tokens", "/nowhere/t", "--tls-cert", "/nowhere/c", "--tls-key", "/nowhere/k"},
			[]string{"--tokens /nowhere/t: open /nowhere/t", "--tls-cert: open /nowhere/c", "--tls-key: open /nowhere/k"}},
		{[]string{"--tls-cert", "/nowhere/c", "--tls-key", "/nowhere/k", "--tls-client-ca", bad},
			[]string{"--tls-cert: open /nowhere/c", "--tls-key: open /nowhere/k", "--tls-client-ca: " + bad + ": there is no certificate in it"}},
		{[]string{"--tls-cert", key, "--tls-key", "/nowhere/k", "--tls-client-ca", "/nowhere/ca"},
			[]string{"--tls-cert: " + key + ": there is no certificate in it", "--tls-key: open /nowhere/k", "--tls-client-ca: open /nowhere/ca"}},
		{[]string{"--listen", "127.0.0.1:99", "--admin-listen", "127.0.0.1:99"}, []string{"are the same"}},
		{[]string{"--admin-listen", "99", "--max-connections", "0"}, []string{"--admin-listen: ", "--max-connections: "}},
	} {
		_, faults := parseServe(t, nil, c.args...)
		require.Len(t, faults, len(c.want), "%v", faults)
		for i, want := range c.want {
			require.Contains(t, strings.Join(faults, "\n"), want, "fault %d", i)
		}
	}
	c, faults := parseServe(t, nil, "--tls-cert", cert, "--tls-key", key, "--tokens", configFile(t, "tokens: []"), "--admin-listen", "127.0.0.1:0", "--listen", "127.0.0.1:0")
	require.Empty(t, faults)
	require.NotNil(t, c.security.tls)
	require.Zero(t, c.security.tokens.Len())
	// What is only printed is not read.
	status, stdout, stderr := runIn("serve", "--print-config", "--tokens", "/nowhere/t")
	require.Equal(t, exitOK, status, stderr)
	require.Contains(t, stdout, "tokens: /nowhere/t")
}

// An open port is told of.
func TestWhatIsOpenIsLogged(t *testing.T) {
	tokens, err := auth.NewTokens(nil)
	require.NoError(t, err)
	withTokens := securityConfig{tokens: tokens}
	withBoth := securityConfig{tokens: tokens, tls: new(server.TLS)}
	withClients := securityConfig{tls: new(server.TLS), tlsFiles: server.TLSFiles{ClientCA: "ca"}}
	for _, c := range []struct {
		listen   string
		security securityConfig
		want     string
	}{
		{"127.0.0.1:8080", securityConfig{}, ""},
		{"[::1]:8080", securityConfig{}, ""},
		{"localhost:8080", securityConfig{}, ""},
		{":8080", securityConfig{}, "level=WARN msg=\"whoever reaches the port"},
		{"0.0.0.0:8080", securityConfig{}, "level=WARN msg=\"whoever reaches the port"},
		{"10.0.0.1:8080", securityConfig{tls: new(server.TLS)}, "level=WARN msg=\"whoever reaches the port"},
		{"10.0.0.1:8080", withTokens, "level=INFO msg=\"tokens and records cross the network in the clear"},
		{"10.0.0.1:8080", withBoth, ""},
		{"10.0.0.1:8080", withClients, ""},
	} {
		var log bytes.Buffer
		c.security.warn(slog.New(slog.NewTextHandler(&log, nil)), c.listen)
		if c.want == "" {
			require.Empty(t, log.String(), c.listen)
		} else {
			require.Contains(t, log.String(), c.want, c.listen)
		}
	}
}

// bearing asks with a token.
func bearing(t *testing.T, client *http.Client, method, url, token string) int {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, nil)
	require.NoError(t, err)
	r.Header.Set("Authorization", "Bearer "+token)
	answer, err := client.Do(r)
	require.NoError(t, err)
	defer answer.Body.Close()
	return answer.StatusCode
}

// What a newcomer does with tokens, and what happens to the file later.
func TestBinaryTokens(t *testing.T) {
	folder := t.TempDir()
	file, tokenFile := filepath.Join(folder, "tokens.yaml"), filepath.Join(folder, "mailer.token")
	mailer := newTokenOf(t, "--file", file, "--name", "mailer", "--scopes", "read,append", "--prefix", "user/42/")
	require.NoError(t, os.WriteFile(tokenFile, []byte(mailer+"\n"), 0o600))
	d := start(t, "mem:", "--tokens", file, "--admin-listen", "127.0.0.1:0")
	admin := fmt.Sprint("http://", d.await(t, "admin listener")["address"])

	input := configFile(t, `{"key":"user/42/inbox","value":"hello"}`)
	status, _, stderr := runIn("append", "--server", d.url, "--token-file", tokenFile, "--file", input)
	require.Equal(t, exitOK, status, stderr)
	status, stdout, stderr := runIn("scan", "--server", d.url, "--token-file", tokenFile, "user/42/inbox")
	require.Equal(t, exitOK, status, stderr)
	require.Equal(t, "hello\n", stdout)
	for _, args := range [][]string{{"scan", "user/42/inbox"}, {"scan", "--token-file", tokenFile, "user/43/inbox"}, {"segments", "--token-file", tokenFile}} {
		status, _, stderr = runIn(append(args, "--server", d.url)...)
		require.Equal(t, exitFailure, status)
		require.Contains(t, stderr, "token")
	}
	refused := d.await(t, "request refused")
	require.Equal(t, "missing", refused["reason"])

	// Operators are on their own listener.
	require.Equal(t, 404, bearing(t, http.DefaultClient, "GET", d.url+"/metrics", mailer))
	status, metrics := request(t, "GET", admin+"/metrics", "")
	require.Equal(t, 200, status)
	require.Contains(t, metrics, "\nannals_auth_tokens 1\n")
	require.Contains(t, metrics, `annals_auth_refused_total{reason="keys"} 2`)
	for _, path := range []string{"/debug/pprof/", "/debug/pprof/heap?debug=1", "/debug/pprof/cmdline", "/debug/pprof/symbol", "/-/ready", "/-/healthy"} {
		status, _ := request(t, "GET", admin+path, "")
		require.Equal(t, 200, status, path)
	}

	// Another token is taken up, by the signal at once; a bad file is not.
	other := newTokenOf(t, "--file", file, "--name", "other", "--scopes", "read")
	require.NoError(t, d.cmd.Process.Signal(syscall.SIGHUP))
	d.await(t, "token file was reloaded")
	require.Equal(t, 200, bearing(t, http.DefaultClient, "GET", d.url+"/api/v1/log/segments", other))
	require.NoError(t, os.WriteFile(file, []byte("tokens: [{name: "), 0o600))
	require.NoError(t, d.cmd.Process.Signal(syscall.SIGHUP))
	line := d.await(t, "token file was not reloaded; the old one stays in force")
	require.Equal(t, file, line["files"])
	require.Contains(t, line["error"], "line 1")
	require.Equal(t, 200, bearing(t, http.DefaultClient, "GET", d.url+"/api/v1/log/segments", other))
	_, metrics = request(t, "GET", admin+"/metrics", "")
	require.Contains(t, metrics, "\nannals_auth_reload_failing 1\n")
	// Without a signal it takes a few seconds.
	require.NoError(t, os.WriteFile(file, []byte("tokens: []"), 0o600))
	require.Eventually(t, func() bool {
		return bearing(t, http.DefaultClient, "GET", d.url+"/api/v1/log/segments", other) == 401
	}, patience, 50*time.Millisecond)

	d.stop(t)
	for _, line := range d.log {
		for _, secret := range []string{mailer, other} {
			require.NotContains(t, fmt.Sprint(line), secret[len(auth.SecretPrefix):])
		}
	}
}

func TestBinaryTLS(t *testing.T) {
	folder := t.TempDir()
	cert, key := writeCert(t, folder, 1)
	d := start(t, "mem:", "--tls-cert", cert, "--tls-key", key)
	url := "https" + strings.TrimPrefix(d.url, "http")
	status, _, stderr := runIn("keys", "--server", url, "--tls-ca", cert)
	require.Equal(t, exitOK, status, stderr)
	status, _, stderr = runIn("keys", "--server", url)
	require.Equal(t, exitFailure, status)
	require.Contains(t, stderr, "certificate")

	serial := func() int64 {
		conn, err := tls.Dial("tcp", strings.TrimPrefix(d.url, "http://"), &tls.Config{InsecureSkipVerify: true})
		require.NoError(t, err)
		defer conn.Close()
		return conn.ConnectionState().PeerCertificates[0].SerialNumber.Int64()
	}
	require.EqualValues(t, 1, serial())
	writeCert(t, folder, 2)
	require.NoError(t, d.cmd.Process.Signal(syscall.SIGHUP))
	d.await(t, "certificate was reloaded")
	require.EqualValues(t, 2, serial())
	require.NoError(t, os.Remove(key))
	require.NoError(t, d.cmd.Process.Signal(syscall.SIGHUP))
	d.await(t, "certificate was not reloaded; the old one stays in force")
	require.EqualValues(t, 2, serial())
	d.stop(t)
}

// A server that has nothing to reload goes on.
func TestBinaryHangUpWithoutFiles(t *testing.T) {
	d := start(t, "mem:")
	require.NoError(t, d.cmd.Process.Signal(syscall.SIGHUP))
	d.await(t, "SIGHUP: there are no tokens and no certificates to reload")
	status, _ := request(t, "GET", d.url+"/-/ready", "")
	require.Equal(t, 200, status)
	d.stop(t)
}
