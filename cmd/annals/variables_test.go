package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// What Kubernetes puts into every container of a namespace that has services named annals, annals-reader and
// annals-log-http is not taken for a mistake of the operator's.
func TestServiceVariables(t *testing.T) {
	services := []string{
		"ANNALS_SERVICE_HOST=10.0.0.11", "ANNALS_SERVICE_PORT=8080", "ANNALS_SERVICE_PORT_HTTP=8080", "ANNALS_PORT=tcp://10.0.0.11:8080",
		"ANNALS_PORT_8080_TCP=tcp://10.0.0.11:8080", "ANNALS_PORT_8080_TCP_PROTO=tcp", "ANNALS_PORT_8080_TCP_PORT=8080", "ANNALS_PORT_8080_TCP_ADDR=10.0.0.11",
		"ANNALS_READER_SERVICE_HOST=10.0.0.12", "ANNALS_READER_SERVICE_PORT_HTTP=8080", "ANNALS_READER_PORT=tcp://10.0.0.12:8080",
		"ANNALS_READER_PORT_8080_TCP_ADDR=10.0.0.12", "ANNALS_LOG_HTTP_PORT_53_UDP=udp://10.0.0.13:53", "ANNALS_LOG_HTTP_SERVICE_PORT=53",
	}
	_, faults := parseServe(t, services)
	require.Empty(t, faults)

	_, faults = parseServe(t, []string{"ANNALS_PORT=8080", "ANNALS_SERVICE=x", "ANNALS_SERVICE_HOSTS=x", "ANNALS_PORT_TCP=tcp://h:1"})
	require.Len(t, faults, 4, "%v", faults)

	p := &process{}
	newRoot(p)
	for name := range p.variables {
		require.False(t, isOthersVariable(name+"=x"), "%s is ours and would be passed over", name)
	}
}

// One environment is for all commands: what another one reads is no fault, and what none does is.
func TestVariablesOfOtherCommands(t *testing.T) {
	runWith := func(environ []string, args ...string) (int, string) {
		var out strings.Builder
		p := &process{args: args, environ: environ, stdin: strings.NewReader(""), stdout: &out, stderr: &out}
		return run(p), out.String()
	}
	status, out := runWith([]string{"ANNALS_SERVER=http://h", "ANNALS_TOKEN=t", "ANNALS_TEST_S3=s3://x", "ANNALS_HISTORY=f"}, "serve", "--print-config")
	require.Equal(t, exitOK, status, out)
	status, out = runWith([]string{"ANNALS_SERVRE=http://h", "ANNALS_FLUSH_INTERVAL=1s", "ANNALS_=x", "ANNALS_EMPTY="}, "version")
	require.Equal(t, exitUsage, status)
	require.True(t, strings.HasPrefix(out, "annals version: 2 faults:\n  unknown variable ANNALS_\n  unknown variable ANNALS_SERVRE"), out)
	status, out = runWith([]string{"ANNALS_SERVRE=http://h"}, "scan", "k")
	require.Equal(t, exitUsage, status)
	require.Contains(t, out, "unknown variable ANNALS_SERVRE; do you mean ANNALS_SERVER?")
}

func TestEditDistance(t *testing.T) {
	for _, test := range []struct {
		a, b string
		want int
	}{{"", "", 0}, {"", "abc", 3}, {"abc", "abc", 0}, {"abc", "acb", 1}, {"kitten", "sitting", 3}, {"ab", "bca", 3}, {"retenton", "retention", 1}} {
		require.Equal(t, test.want, editDistance(test.a, test.b), "%v", test)
		require.Equal(t, test.want, editDistance(test.b, test.a), "%v", test)
	}
	require.Equal(t, "; do you mean --ack?", didYouMean("--", "akc", []string{"store", "ack", "listen"}))
	require.Empty(t, didYouMean("--", "x", []string{"ack", "a"}), "nothing of it is right")
	require.Empty(t, didYouMean("", strings.Repeat("x", 1<<20), []string{"ack"}))
}
