package main

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// completions are what a shell is offered for the last of some words, without descriptions, and how it goes on.
func completions(t *testing.T, words ...string) (offered []string, directive string) {
	t.Helper()
	status, stdout, stderr := runIn(append([]string{"__complete"}, words...)...)
	require.Equal(t, exitOK, status, stderr)
	lines := strings.Split(strings.TrimSpace(stdout), "\n")
	for _, line := range lines[:len(lines)-1] {
		word, _, _ := strings.Cut(line, "\t")
		offered = append(offered, word)
	}
	return offered, lines[len(lines)-1]
}

// The directives of the library's protocol.
const (
	files   = ":0"
	noFiles = ":4"
	folders = ":16"
)

func TestCompletion(t *testing.T) {
	for _, test := range []struct {
		words     []string
		want      []string
		directive string
	}{
		{[]string{"comp"}, []string{"compact", "completion"}, noFiles},
		{[]string{"cursors", "g"}, []string{"get"}, noFiles},
		{[]string{"serve", "--segment-"}, []string{"--segment-interval", "--segment-bytes", "--segment-min-bytes"}, noFiles},
		{[]string{"serve", "--he"}, []string{"--help"}, noFiles},
		{[]string{"serve", "--ack", ""}, []string{"durable", "memory"}, noFiles},
		{[]string{"serve", "--log-level", "w"}, []string{"warn"}, noFiles},
		{[]string{"serve", "--ack=m"}, []string{"memory"}, noFiles},
		{[]string{"serve", "--listen", ""}, nil, noFiles},
		{[]string{"serve", "--replica", ""}, nil, noFiles},
		{[]string{"serve", "--config", ""}, nil, files},
		{[]string{"serve", "--disk-cache", ""}, nil, folders},
		{[]string{"append", "--file", "x"}, nil, files},
		{[]string{"scan", "--json", ""}, nil, noFiles},
		{[]string{"scan", "--server", "http://h", "--", "--limit", ""}, nil, noFiles},
		{[]string{"bench", "ingest", "--rate", ""}, []string{"max"}, noFiles},
		{[]string{"bench", "follow", "--form", "h"}, []string{"h2", "h1"}, noFiles},
		{[]string{"completion", ""}, completionShells, noFiles},
		{[]string{"completion", "bash", ""}, nil, noFiles},
	} {
		offered, directive := completions(t, test.words...)
		require.Equal(t, test.want, offered, "%v", test.words)
		require.Equal(t, test.directive, directive, "%v", test.words)
	}
}

// Each shell that is here reads its script.
func TestCompletionScripts(t *testing.T) {
	for _, shell := range completionShells {
		status, script, stderr := runIn("completion", shell)
		require.Equal(t, exitOK, status, stderr)
		require.Contains(t, script, "__complete")
		path, err := exec.LookPath(shell)
		if err != nil || shell == "powershell" {
			continue
		}
		cmd := exec.CommandContext(t.Context(), path, "-n")
		cmd.Stdin = strings.NewReader(script)
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s: %s", shell, out)
	}
	status, _, stderr := runIn("completion", "tcsh")
	require.Equal(t, exitUsage, status)
	require.Contains(t, stderr, `there is no shell "tcsh"; want one of bash, zsh, fish, powershell`)
}
