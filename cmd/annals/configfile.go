package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"

	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"
)

// maxConfigBytes is the longest configuration file.
const maxConfigBytes = 1 << 20

const (
	configFlag      = "config"
	printConfigFlag = "print-config"
)

// addConfigFlags adds the flags of a command that can be configured by a file, behind all that the file may set.
func addConfigFlags(s *settings) {
	addFlag(s, configFlag, "file", "", &s.config, parseText,
		"YAML file of flags, a line each, such as \"retention: 7d\"; flags and variables win over it (default: none)")
	s.flags.BoolVar(&s.printing, printConfigFlag, false,
		"print what is in force after all sources as such a file, with where each value is from and without passwords, and do nothing else")
}

// readFile sets the flags that neither the command line nor a variable did from the file of --config, if there is one.
func (s *settings) readFile() {
	if s.config == "" {
		return
	}
	text, err := readConfig(s.config)
	if err != nil {
		s.fault("%s: %v", s.sources[configFlag], err)
		return
	}
	s.applyFile(s.config, text)
}

func readConfig(name string) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxConfigBytes+1))
	if err == nil && len(text) > maxConfigBytes {
		err = fmt.Errorf("%s is longer than %s", name, formatSize(maxConfigBytes))
	}
	return text, err
}

// applyFile sets flags from a file's text: one mapping of their names to scalars. Each fault names its line.
func (s *settings) applyFile(file string, text []byte) {
	document, err := parseYAML(text)
	if err != nil {
		s.fault("%s%v", file, err)
		return
	}
	at := func(n *yaml.Node) string { return fmt.Sprintf("%s:%d", file, n.Line) }
	if document.Kind != yaml.MappingNode {
		s.fault("%s: want lines of the form \"name: value\"", at(document))
		return
	}
	lines := make(map[string]int)
	for i := 0; i+1 < len(document.Content); i += 2 {
		name, value := document.Content[i], document.Content[i+1]
		flag := s.flagOfFile(name.Value)
		first, again := lines[name.Value]
		switch {
		case name.Kind != yaml.ScalarNode:
			s.fault("%s: a name must be a plain word", at(name))
			continue
		case flag == nil:
			s.fault("%s: %s", at(name), s.unknownInFile(name.Value))
			continue
		case again:
			s.fault("%s: %s is there twice, first in line %d", at(name), name.Value, first)
			continue
		}
		lines[name.Value] = name.Line
		content, err := contentOf(value, flag)
		switch {
		case err != nil:
			s.fault("%s: %s %v", at(value), name.Value, err)
		case !flag.Changed:
			s.set(flag, at(value)+": "+name.Value, content)
		}
	}
}

// flagOfFile returns the flag that a name in a file sets; nil: none.
func (s *settings) flagOfFile(name string) *pflag.Flag {
	if name == configFlag || s.variables[variableOf(name)] == nil {
		return nil
	}
	return s.flags.Lookup(name)
}

// unknownInFile says what is wrong with a name that sets nothing.
func (s *settings) unknownInFile(name string) string {
	switch {
	case name == configFlag:
		return "a file cannot name another one"
	case s.flags.Lookup(name) != nil:
		return name + " is a flag of the command line only"
	case s.flagOfFile(strings.ReplaceAll(strings.TrimPrefix(name, "--"), "_", "-")) != nil:
		return fmt.Sprintf("unknown name %s; names are written as flags are, without the dashes in front: %s", quoteName(name),
			strings.ReplaceAll(strings.TrimPrefix(name, "--"), "_", "-"))
	}
	var names []string
	for _, known := range s.names() {
		if s.flagOfFile(known) != nil {
			names = append(names, known)
		}
	}
	return "unknown name " + quoteName(name) + didYouMean("", name, names)
}

// quoteName shows a name out of a file on one line.
func quoteName(name string) string { return fmt.Sprintf("%.*q", maxComparedName, name) }

// listKind ends the kinds of flags that take several values, with commas between them.
const listKind = ",..."

// contentOf returns the text of what a file sets a flag to. A list may be written as one.
func contentOf(n *yaml.Node, flag *pflag.Flag) (string, error) {
	if n.Kind != yaml.SequenceNode || n.Anchor != "" || n.Style&yaml.TaggedStyle != 0 || !strings.HasSuffix(flag.Value.Type(), listKind) {
		return scalarOf(n)
	}
	parts := make([]string, len(n.Content))
	for i, part := range n.Content {
		text, err := scalarOf(part)
		switch {
		case err != nil:
			return "", fmt.Errorf("is a list of which part %d %w", i+1, err)
		case strings.Contains(text, ","):
			return "", fmt.Errorf("is a list of which part %d holds a comma", i+1)
		}
		parts[i] = text
	}
	return strings.Join(parts, ","), nil
}

// scalarOf returns the text of a value.
func scalarOf(n *yaml.Node) (string, error) {
	switch {
	case n.Kind == yaml.AliasNode || n.Anchor != "":
		return "", errors.New("has an anchor or alias; write the value itself")
	case n.Kind == yaml.SequenceNode:
		return "", errors.New("is a list; want one value")
	case n.Kind != yaml.ScalarNode:
		return "", errors.New("is a mapping; want one value")
	case n.Style&yaml.TaggedStyle != 0:
		return "", fmt.Errorf("has the tag %s; write the value alone", n.Tag)
	case n.ShortTag() == "!!null":
		return "", errors.New("has no value; leave the line away for the default")
	}
	return n.Value, nil
}

// yamlLine is how the library begins an error that it knows the line of.
var yamlLine = regexp.MustCompile(`^line (\d+): `)

// parseYAML returns the only document of a text, of which there is one. Its errors begin with a colon, behind the file's name.
func parseYAML(text []byte) (*yaml.Node, error) {
	d := yaml.NewDecoder(bytes.NewReader(text))
	var root, more yaml.Node
	err := d.Decode(&root)
	if errors.Is(err, io.EOF) {
		return nil, errors.New(": it is empty; leave --config away to set nothing")
	}
	if err == nil {
		if err = d.Decode(&more); err == nil {
			return nil, fmt.Errorf(":%d: a second document; want one", more.Line)
		}
	}
	if !errors.Is(err, io.EOF) {
		why := strings.ReplaceAll(strings.TrimPrefix(err.Error(), "yaml: "), "\n", "; ")
		if strings.HasSuffix(why, "mapping values are not allowed in this context") { // store: mem:
			why += ": put a value with a colon into quotes"
		}
		if m := yamlLine.FindStringSubmatch(why); m != nil {
			return nil, fmt.Errorf(":%s: %s", m[1], why[len(m[0]):])
		}
		return nil, fmt.Errorf(": %s", why)
	}
	return root.Content[0], nil
}
