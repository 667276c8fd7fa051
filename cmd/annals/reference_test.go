package main

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "write docs/CLI.md anew from what the commands say")

const (
	referenceFile = "../../docs/CLI.md"
	// referenceMark begins the part of the file that is made of the commands.
	referenceMark = "<!-- From here on: what the commands say. Do not edit; run: go test ./cmd/annals -run TestCommandReference -update -->\n"
)

// docs/CLI.md says of each command what its help says.
func TestCommandReference(t *testing.T) {
	text, err := os.ReadFile(referenceFile)
	require.NoError(t, err)
	head, _, found := strings.Cut(string(text), referenceMark)
	require.True(t, found)
	want := head + referenceMark + reference(t)
	if *update {
		require.NoError(t, os.WriteFile(referenceFile, []byte(want), 0o644))
		return
	}
	if want != string(text) {
		require.Equal(t, want, string(text), "run: go test ./cmd/annals -run TestCommandReference -update")
	}
}

// reference is the generated part.
func reference(t *testing.T) string {
	var b strings.Builder
	b.WriteString("\n## Exit statuses\n\n| status | meaning |\n|---|---|\n")
	for _, e := range exitStatuses {
		fmt.Fprintf(&b, "| %d | %s |\n", e.status, e.meaning)
	}
	b.WriteString("\n## Commands\n")
	for _, c := range allCommands() {
		var help bytes.Buffer
		p := &process{args: append(strings.Fields(c.CommandPath())[1:], "--help"), stdout: &help, stderr: &help}
		require.Equal(t, exitOK, run(p))
		fmt.Fprintf(&b, "\n### %s\n\n```text\n%s```\n", c.CommandPath(), help.String())
	}
	return b.String()
}

// allCommands are all commands that are not hidden, each before those below it.
func allCommands() (all []*cobra.Command) {
	var walk func(c *cobra.Command)
	walk = func(c *cobra.Command) {
		for _, sub := range c.Commands() {
			if !sub.Hidden && sub.Name() != "help" {
				all = append(all, sub)
				walk(sub)
			}
		}
	}
	walk(newRoot(&process{}))
	return all
}

// Every command says what it does, every flag what it means, and every command that prints an answer can do it as JSON.
func TestCommandsAreComplete(t *testing.T) {
	noAnswer := map[string]bool{"annals serve": true, "annals completion": true}
	for _, c := range allCommands() {
		require.NotEmpty(t, c.Short, c.CommandPath())
		c.Flags().VisitAll(func(f *pflag.Flag) { require.NotEmpty(t, f.Usage, "%s --%s", c.CommandPath(), f.Name) })
		if !c.HasSubCommands() && !noAnswer[c.CommandPath()] {
			require.NotNil(t, c.Flags().Lookup("json"), "%s has no --json", c.CommandPath())
		}
	}
}

// The example of docs/CONFIGURATION.md is a file that serve takes.
func TestConfigurationExample(t *testing.T) {
	text, err := os.ReadFile("../../docs/CONFIGURATION.md")
	require.NoError(t, err)
	_, rest, found := strings.Cut(string(text), "```yaml\n")
	require.True(t, found)
	example, _, found := strings.Cut(rest, "```\n")
	require.True(t, found)
	_, faults := parseServe(t, nil, "--config", configFile(t, example))
	require.Empty(t, faults)
}
