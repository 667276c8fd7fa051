package client_test

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// What docs/CLIENT.md shows is part of an example that runs.
func TestDocsShowExamples(t *testing.T) {
	page, err := os.ReadFile("../docs/CLIENT.md")
	require.NoError(t, err)
	text, err := os.ReadFile("example_test.go")
	require.NoError(t, err)
	var flat []string // without indentation, which differs
	for line := range strings.Lines(string(text)) {
		flat = append(flat, strings.TrimSpace(line))
	}
	examples := strings.Join(flat, "\n")
	blocks := regexp.MustCompile("(?s)```go\n(.*?)```").FindAllStringSubmatch(string(page), -1)
	require.GreaterOrEqual(t, len(blocks), 6)
	for _, b := range blocks {
		var lines []string
		for line := range strings.Lines(b[1]) {
			lines = append(lines, strings.TrimSpace(line))
		}
		require.Contains(t, examples, strings.Join(lines, "\n"), "no example has this:\n%s", b[1])
	}
}
