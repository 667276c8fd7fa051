package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The commands that ask a running server what it has, for people and for programs.
func TestBinaryLists(t *testing.T) {
	d := start(t, "mem:")
	ask := func(args ...string) string {
		t.Helper()
		status, stdout, stderr := runIn(append(args, "--server", d.url)...)
		require.Equal(t, exitOK, status, "%v: %s", args, stderr)
		return stdout
	}
	require.Empty(t, ask("keys"))
	input := configFile(t, `{"key":"a","value":"1"}
{"key":"user/1","value":"1"}
{"key":"user/2","value":"1"}
{"key":"user/2","value":"2"}
{"keyB64":"/w==","value":"1"}
`)
	var result struct {
		Outcome string
		LinesAcknowledged, Records,
		Bytes, NextProducerSeq uint64
	}
	out := ask("append", "--json", "--file", input, "--producer", "p", "--producer-seq", "7")
	require.NoError(t, json.Unmarshal([]byte(out), &result), out)
	require.Equal(t, outcomeAppended, result.Outcome)
	require.Equal(t, []uint64{5, 5, 25, 8}, []uint64{result.LinesAcknowledged, result.Records, result.Bytes, result.NextProducerSeq})

	require.Equal(t, "a\nuser/1\nuser/2\nb64:/w==\n", ask("keys"))
	require.Equal(t, "user/1\nuser/2\n", ask("keys", "--prefix", "user/"))
	require.Equal(t, "user/1\nuser/2\n", ask("keys", "--after", "a", "--limit", "2"))
	require.Equal(t, `{"key":"user/2"}`+"\n"+`{"keyB64":"/w=="}`+"\n", ask("keys", "--after", "user/1", "--json"))
	require.Empty(t, ask("keys", "--from-segment", "1000"))

	require.Equal(t, "2\n", ask("count", "user/2"))
	require.Equal(t, "1\n", ask("count", "b64:/w=="))
	require.Equal(t, "1\n", ask("count", "--from", "3", "user/2"))
	require.Equal(t, "0\n", ask("count", "--from", "0", "--to", "2", "user/2"))
	require.Equal(t, `{"key":"user/2","count":2}`+"\n", ask("count", "--json", "user/2"))
	require.Equal(t, "1\n", ask("scan", "b64:/w"))

	table := strings.Split(ask("segments"), "\n")
	require.Len(t, table, 3)
	require.Equal(t, "segment sequences begins records bytes runs state", strings.Join(strings.Fields(table[0]), " "))
	fields := strings.Fields(table[1])
	require.Equal(t, []string{"1", "0..", "active"}, []string{fields[0], fields[1], fields[len(fields)-1]})
	var segment map[string]any
	require.NoError(t, json.Unmarshal([]byte(ask("segments", "--json")), &segment))
	require.Equal(t, float64(1), segment["id"])
	require.Equal(t, float64(5), segment["records"])
	require.NotContains(t, segment, "endSeq")
}

// What fails prints nothing on standard output, headings neither.
func TestListsOfNobody(t *testing.T) {
	for _, command := range []string{"keys", "segments"} {
		status, stdout, stderr := runIn(command, "--server", "http://"+freeAddress(t))
		require.Equal(t, exitFailure, status)
		require.Empty(t, stdout)
		require.Contains(t, stderr, "connection refused")
	}
}

func TestListFaults(t *testing.T) {
	for _, test := range []struct {
		args []string
		want string
	}{
		{[]string{"keys", "k"}, "annals keys: unexpected argument \"k\"\n"},
		{[]string{"keys", "--prefix", "b64:!"}, "annals keys: --prefix: \"b64:!\" is not base64 behind b64:\n"},
		{[]string{"keys", "--from-segment", "2", "--to-segment", "2"}, "annals keys: --from-segment 2 is not below --to-segment 2\n"},
		{[]string{"keys", "--limit", "0"}, "annals keys: --limit: 0 is out of range: it must be from 1 to 18446744073709551615\n"},
		{[]string{"count"}, "annals count: KEY is missing\n"},
		{[]string{"count", "--from", "3", "--to", "2", "b64:!"}, "annals count: 2 faults:\n  --from 3 is above --to 2\n  KEY: \"b64:!\" is not base64 behind b64:\n"},
		{[]string{"segments", "--from", "3", "--to", "2"}, "annals segments: --from 3 is above --to 2\n"},
		{[]string{"scan", "b64:!"}, "annals scan: KEY: \"b64:!\" is not base64 behind b64:\n"},
		{[]string{"segments", "--tls-cert", "c", "--tls-ca", "ca"}, "annals segments: 3 faults:\n  --tls-cert and --tls-key need each other\n  --tls-ca needs a --server that begins with https://\n  --tls-cert needs a --server that begins with https://\n"},
	} {
		status, stdout, stderr := runIn(test.args...)
		require.Equal(t, exitUsage, status, "%v", test.args)
		require.Empty(t, stdout)
		require.True(t, strings.HasPrefix(stderr, test.want), stderr)
	}
}
