package auth

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// newFile is a token file without tokens.
const newFile = "# Who may do what. Of each token only the hash is here: \"annals token new --file\" adds one.\ntokens: []\n"

// Add returns the text of a token file with one more entry. Comments and the order of what is there stay. An
// empty text is a new file. Errors: those of Parse, of the text with or without the entry.
func Add(data []byte, e Entry) ([]byte, error) {
	if len(bytes.TrimSpace(data)) == 0 {
		data = []byte(newFile)
	}
	if _, err := Parse(data); err != nil {
		return nil, err
	}
	root, err := document(data)
	if err != nil {
		return nil, err
	}
	list := root.Content[1] // Parse found one field
	list.Style &^= yaml.FlowStyle
	list.Content = append(list.Content, e.node())
	text, err := encode(root)
	if err != nil {
		return nil, err
	}
	if _, err := Parse(text); err != nil {
		return nil, fmt.Errorf("with the new token: %w", err)
	}
	return text, nil
}

// Text is the entry as an item of a token file's list.
func (e *Entry) Text() string {
	text, err := encode(&yaml.Node{Kind: yaml.SequenceNode, Content: []*yaml.Node{e.node()}})
	if err != nil {
		panic("auth: an entry is not YAML: " + err.Error()) // it is made of plain texts
	}
	return "  " + strings.ReplaceAll(strings.TrimSpace(string(text)), "\n", "\n  ") + "\n"
}

func encode(n *yaml.Node) ([]byte, error) {
	var b bytes.Buffer
	enc := yaml.NewEncoder(&b)
	enc.SetIndent(2)
	if err := enc.Encode(n); err != nil {
		return nil, fmt.Errorf("write YAML: %w", err)
	}
	return b.Bytes(), enc.Close()
}

// node is the entry as YAML.
func (e *Entry) node() *yaml.Node {
	n := &yaml.Node{Kind: yaml.MappingNode}
	field := func(name string, value *yaml.Node) {
		if value.Kind == yaml.ScalarNode || len(value.Content) > 0 {
			n.Content = append(n.Content, scalar(name), value)
		}
	}
	field("name", scalar(e.Name))
	field("hash", scalar(e.Hash.String()))
	scopes := &yaml.Node{Kind: yaml.SequenceNode, Style: yaml.FlowStyle}
	for _, name := range e.Scopes.Names() {
		scopes.Content = append(scopes.Content, scalar(name))
	}
	field("scopes", scopes)
	text, coded := &yaml.Node{Kind: yaml.SequenceNode}, &yaml.Node{Kind: yaml.SequenceNode}
	for _, p := range e.Prefixes {
		if isPlain(p) {
			text.Content = append(text.Content, scalar(string(p)))
		} else {
			coded.Content = append(coded.Content, scalar(base64.StdEncoding.EncodeToString(p)))
		}
	}
	field("prefixes", text)
	field("prefixes_b64", coded)
	if !e.Expires.IsZero() {
		// Not quoted: people write it so, and Parse reads the text whatever YAML takes it for.
		field("expires", &yaml.Node{Kind: yaml.ScalarNode, Value: e.Expires.UTC().Format(time.RFC3339)})
	}
	return n
}

// scalar is a text, quoted where YAML would take it for something else.
func scalar(text string) *yaml.Node {
	return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: text}
}

// isPlain reports whether people can read a prefix in a file.
func isPlain(p []byte) bool {
	return utf8.Valid(p) && !bytes.ContainsFunc(p, func(r rune) bool { return !strconv.IsPrint(r) })
}
