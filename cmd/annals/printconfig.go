package main

import (
	"bytes"
	"fmt"
	"io"
	"regexp"
	"strings"
	"unicode/utf8"

	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"
)

// printConfig writes the values that are in force as a file for --config, with where each is from. A flag that is not
// set and whose default depends on others stands there as a comment.
func (s *settings) printConfig(w io.Writer) error {
	var out bytes.Buffer
	var failed error
	s.flags.VisitAll(func(f *pflag.Flag) {
		if s.flagOfFile(f.Name) == nil || s.unused != nil && s.unused(f.Name) {
			return
		}
		text := f.Value.String()
		if text == "" && !s.changed(f.Name) {
			fmt.Fprintf(&out, "# %s: %s\n", f.Name, defaultInUsage(f.Usage))
			return
		}
		scalar, err := yamlScalar(withoutPassword(text))
		if err != nil {
			failed = failf("print --%s: %w", f.Name, err)
			return
		}
		source := "default"
		if from := s.sources[f.Name]; from != "" {
			source = strings.TrimSuffix(from, ": "+f.Name) // that of a file names the line
		}
		fmt.Fprintf(&out, "%s: %s # %s\n", f.Name, scalar, source)
	})
	if failed != nil {
		return failed
	}
	if _, err := out.WriteTo(w); err != nil {
		return failf("write: %w", err)
	}
	return nil
}

// defaultInUsage is what a flag's usage says of a default that is not one value.
func defaultInUsage(usage string) string {
	if _, rest, found := strings.Cut(usage, "(default"); found {
		text, _, _ := strings.Cut(rest, ")")
		return "default " + strings.TrimLeft(text, ": ")
	}
	return "not set"
}

// passwordInURL finds the user and password of a URL, wherever it stands.
var passwordInURL = regexp.MustCompile(`://[^/?#@\s]*@`)

// withoutPassword is a value as it may be shown.
func withoutPassword(text string) string {
	return passwordInURL.ReplaceAllString(text, "://HIDDEN@")
}

// yamlScalar writes a text as one line of YAML that is read back as it is.
func yamlScalar(text string) (string, error) {
	if !utf8.ValidString(text) {
		return "", fmt.Errorf("%q is not UTF-8, which YAML must be", text)
	}
	n := yaml.Node{Kind: yaml.ScalarNode, Value: text}
	if n.ShortTag() == "!!null" || strings.ContainsAny(text, "\n\r\u0085\u2028\u2029") {
		n.Style = yaml.DoubleQuotedStyle
	}
	b, err := yaml.Marshal(&n)
	return strings.TrimSuffix(string(b), "\n"), err
}
