package main

import (
	"encoding/pem"
	"fmt"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/server"
)

func TestReplicasFlag(t *testing.T) {
	f := httptest.NewTLSServer(nil)
	defer f.Close()
	ca := filepath.Join(t.TempDir(), "ca.pem")
	require.NoError(t, os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: f.Certificate().Raw}), 0o600))
	c, faults := parseServe(t, []string{"ANNALS_REPLICAS=http://a:1/, https://b"}, "--replicas-ca", ca)
	require.Empty(t, faults)
	o := c.serverOptions(nil)
	c.status.options(&o)
	require.Equal(t, []string{"http://a:1", "https://b"}, o.Replicas)
	require.NotNil(t, o.ReplicaTLS.RootCAs)

	none := filepath.Join(t.TempDir(), "none")
	require.NoError(t, os.WriteFile(none, []byte("nothing"), 0o600))
	var many []string
	for i := range server.MaxReplicas + 1 {
		many = append(many, fmt.Sprintf("http://a:%d", i))
	}
	for _, test := range []struct {
		args []string
		want string
	}{
		{[]string{"--replicas", "http://a,b:8080"}, `--replicas: "b:8080" is not a URL such as http://127.0.0.1:8080`},
		{[]string{"--replicas", "https://admin:hunter2@a"}, `--replicas: "https://HIDDEN@a": a server's URL has no user, query or fragment`},
		{[]string{"--replicas", "http://a,"}, `--replicas: "" is not a URL such as http://127.0.0.1:8080`},
		{[]string{"--replicas", "http://a,http://a/"}, "--replicas: http://a is named twice"},
		{[]string{"--replicas", strings.Join(many, ",")}, "--replicas: 65 are named; at most 64 are allowed"},
		{[]string{"--replicas", "http://a", "--replica"}, "--replicas cannot be combined with --replica: the log's writer tells of its replicas"},
		{[]string{"--replicas", "http://a", "--replicas-ca", ca}, "--replicas-ca needs --replicas of which one begins with https://"},
		{[]string{"--replicas", "https://a", "--replicas-cert", none}, "--replicas-cert needs --replicas-key"},
		{[]string{"--replicas", "https://a", "--replicas-key", none}, "--replicas-key needs --replicas-cert"},
		{[]string{"--replicas", "http://a", "--replicas-cert", none, "--replicas-key", none}, "--replicas-cert needs --replicas of which one begins with https://"},
		{[]string{"--replicas", "https://a", "--replicas-cert", none, "--replicas-key", none},
			"--replicas-cert: tls: failed to find any PEM data in certificate input"},
		{[]string{"--replicas", "https://a", "--replicas-ca", none}, "--replicas-ca: " + none + " holds no certificate in PEM form"},
	} {
		_, faults := parseServe(t, nil, test.args...)
		require.Equal(t, []string{test.want}, faults)
	}
}

// Replicas that ask for a certificate are shown the one of the flags, as it is then.
func TestBinaryReplicasAskForCertificates(t *testing.T) {
	folder := t.TempDir()
	cert, key := writeCert(t, folder, 1)
	store := "file:" + t.TempDir() + "/data"
	writer := start(t, store)
	require.Equal(t, 200, first(writer.appendOne(t, "k", "v")))
	replica := start(t, store, "--replica", "--tls-cert", cert, "--tls-key", key, "--tls-client-ca", cert)
	url := "https" + strings.TrimPrefix(replica.url, "http")
	writer.stop(t)
	// How a refused handshake shows is a matter of luck: the alert may be overtaken by the end of the connection.
	for shown, want := range map[bool]string{true: `"ready":true`, false: `"ready":false`} {
		args := []string{"--replicas", url, "--replicas-ca", cert}
		if shown {
			args = append(args, "--replicas-cert", cert, "--replicas-key", key)
		}
		writer := start(t, store, args...)
		_, body := request(t, "GET", writer.url+"/api/v1/log/status", "")
		_, replicas, _ := strings.Cut(body, `"replicas":`)
		require.Contains(t, replicas, want)
		writer.stop(t)
	}
}

func first[A, B any](a A, _ B) A { return a }
