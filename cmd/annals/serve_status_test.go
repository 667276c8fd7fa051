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
		{[]string{"--replicas", "http://a,"}, `--replicas: "" is not a URL such as http://127.0.0.1:8080`},
		{[]string{"--replicas", "http://a,http://a/"}, "--replicas: http://a is named twice"},
		{[]string{"--replicas", strings.Join(many, ",")}, "--replicas: 65 are named; at most 64 are allowed"},
		{[]string{"--replicas", "http://a", "--replica"}, "--replicas cannot be combined with --replica: the log's writer tells of its replicas"},
		{[]string{"--replicas", "http://a", "--replicas-ca", ca}, "--replicas-ca needs --replicas of which one begins with https://"},
		{[]string{"--replicas", "https://a", "--replicas-ca", none}, "--replicas-ca: " + none + " holds no certificate in PEM form"},
	} {
		_, faults := parseServe(t, nil, test.args...)
		require.Equal(t, []string{test.want}, faults)
	}
}
