package auth

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/annalsdb/annals/internal/reload"
)

// MaxFileBytes is the largest token file.
const MaxFileBytes = reload.MaxFileBytes

// Parse reads a token file. It is strict: what is not known, there twice or ambiguous is a
// fault. All faults are reported at once, joined into one error, each with its line.
//
// A file without any token must say so (tokens: []): an empty one is more likely cut off.
func Parse(data []byte) ([]Entry, error) {
	if len(data) > MaxFileBytes {
		return nil, fmt.Errorf("the file has %d bytes; at most %d are allowed", len(data), MaxFileBytes)
	}
	root, err := document(data)
	if err != nil {
		return nil, err
	}
	p := parser{validator: newValidator()}
	entries := p.file(root)
	if len(p.faults) > 0 {
		slices.SortStableFunc(p.faults, func(a, b fault) int { return a.line - b.line })
		errs := make([]error, len(p.faults))
		for i, f := range p.faults {
			errs[i] = f
		}
		return nil, errors.Join(errs...)
	}
	return entries, nil
}

// document returns the root of the file's only document.
func document(data []byte) (*yaml.Node, error) {
	dec := yaml.NewDecoder(bytes.NewReader(data))
	var doc yaml.Node
	err := dec.Decode(&doc)
	switch {
	case errors.Is(err, io.EOF):
		return nil, errors.New("the file is empty; a file without tokens says \"tokens: []\"")
	case err != nil:
		return nil, yamlError(err)
	}
	switch err := dec.Decode(new(yaml.Node)); {
	case err == nil:
		return nil, errors.New("the file has more than one document")
	case !errors.Is(err, io.EOF):
		return nil, yamlError(err)
	}
	return doc.Content[0], nil
}

// yamlError is a fault of the YAML itself, which names its line, in one line.
func yamlError(err error) error {
	return errors.New(strings.ReplaceAll(strings.TrimPrefix(err.Error(), "yaml: "), "\n", "; "))
}

// fault is something that is wrong with a file.
type fault struct {
	line int
	what string
}

// Error implements error.
func (f fault) Error() string { return fmt.Sprintf("line %d: %s", f.line, f.what) }

// maxFaults bounds the faults that one file is told of.
const maxFaults = 100

// parser turns nodes into entries. It goes on after a fault.
type parser struct {
	validator *validator
	faults    []fault
}

// fault notes a fault. Faults are logged, so they hide what may be a token, or the beginning of one, in a wrong place.
func (p *parser) fault(n *yaml.Node, format string, args ...any) {
	if len(p.faults) < maxFaults {
		what := secretBegins.ReplaceAllString(fmt.Sprintf(format, args...), SecretPrefix+"HIDDEN")
		p.faults = append(p.faults, fault{n.Line, what})
	}
}

// secretBegins matches what of a secret is more than a log may have (Hash.Short).
var secretBegins = regexp.MustCompile("(?i)" + SecretPrefix + "[0-9a-f]{9,}")

// fields reads each field of a mapping by the function of its name, and returns the names of those
// that had faults. It is nil where the node is no mapping.
func (p *parser) fields(n *yaml.Node, what string, known map[string]func(*yaml.Node)) (bad map[string]bool) {
	if n.Kind != yaml.MappingNode {
		p.fault(n, "%s must be a mapping", what)
		return nil
	}
	bad = make(map[string]bool)
	seen := make(map[string]bool)
	for i := 0; i+1 < len(n.Content); i += 2 {
		name, value := n.Content[i], n.Content[i+1]
		read := known[name.Value]
		switch {
		case name.Kind != yaml.ScalarNode || read == nil:
			p.fault(name, "%s: unknown field %.64q", what, name.Value)
		case seen[name.Value]:
			p.fault(name, "%s: %s is there twice", what, name.Value)
		default:
			before := len(p.faults)
			read(value)
			bad[name.Value] = len(p.faults) > before
		}
		seen[name.Value] = true
	}
	return bad
}

// file reads the whole file.
func (p *parser) file(n *yaml.Node) (entries []Entry) {
	found := false
	p.fields(n, "the file", map[string]func(*yaml.Node){"tokens": func(n *yaml.Node) {
		found = true
		if n.Kind != yaml.SequenceNode {
			p.fault(n, "tokens must be a list; write [] for none")
			return
		}
		if len(n.Content) > MaxTokens {
			p.fault(n, "%v", errTooManyTokens(len(n.Content)))
			return
		}
		for i, item := range n.Content {
			entries = append(entries, p.token(item, i))
		}
	}})
	if !found && len(p.faults) == 0 {
		p.fault(n, "tokens is missing; a file without tokens says \"tokens: []\"")
	}
	return entries
}

// token reads one token.
func (p *parser) token(n *yaml.Node, index int) (e Entry) {
	what := fmt.Sprintf("token %d", index)
	bad := p.fields(n, what, map[string]func(*yaml.Node){
		"name": func(n *yaml.Node) {
			if e.Name, _ = p.text(n, what, "name"); e.Name != "" {
				what = fmt.Sprintf("token %.64q", e.Name)
			}
		},
		"hash": func(n *yaml.Node) {
			text, ok := p.text(n, what, "hash")
			var err error
			if e.Hash, err = ParseHash(text); ok && err != nil {
				p.fault(n, "%s: hash: %v", what, err)
			}
		},
		"scopes": func(n *yaml.Node) { e.Scopes = p.scopes(n, what) },
		"prefixes": func(n *yaml.Node) {
			for _, t := range p.list(n, what, "prefixes") {
				e.Prefixes = append(e.Prefixes, []byte(t.Value))
			}
		},
		"prefixes_b64": func(n *yaml.Node) {
			for _, t := range p.list(n, what, "prefixes_b64") {
				b, err := base64.StdEncoding.Strict().DecodeString(t.Value)
				if err != nil {
					p.fault(t, "%s: prefixes_b64: %.64q is not base64", what, t.Value)
					continue
				}
				e.Prefixes = append(e.Prefixes, b)
			}
		},
		"expires": func(n *yaml.Node) {
			text, ok := p.text(n, what, "expires")
			var err error
			if e.Expires, err = time.Parse(time.RFC3339, text); ok && err != nil {
				p.fault(n, "%s: expires: %.64q is not a time such as 2027-01-31T00:00:00Z", what, n.Value)
			}
		},
	})
	if bad == nil {
		return e
	}
	for _, err := range p.validator.entry(&e) {
		// What follows from a fault that was told is not told.
		if field, _, _ := strings.Cut(err.Error(), ":"); !bad[field] {
			p.fault(n, "%s: %v", what, err)
		}
	}
	return e
}

// text returns a scalar's text as it is written, whatever YAML takes it for; or false, with a fault.
func (p *parser) text(n *yaml.Node, what, field string) (string, bool) {
	if n.Kind != yaml.ScalarNode || n.Tag == "!!null" || n.Tag == "!!binary" {
		p.fault(n, "%s: %s must be text", what, field)
		return "", false
	}
	return n.Value, true
}

// list returns the items of a list of texts that is not empty.
func (p *parser) list(n *yaml.Node, what, field string) (items []*yaml.Node) {
	if n.Kind != yaml.SequenceNode || len(n.Content) == 0 {
		p.fault(n, "%s: %s must be a list that is not empty; leave it out otherwise", what, field)
		return nil
	}
	for _, item := range n.Content {
		if _, ok := p.text(item, what, field); ok {
			items = append(items, item)
		}
	}
	return items
}

func (p *parser) scopes(n *yaml.Node, what string) (s Scope) {
	for _, t := range p.list(n, what, "scopes") {
		one, err := ParseScope(t.Value)
		switch {
		case err != nil:
			p.fault(t, "%s: scopes: %v", what, err)
		case s.Has(one):
			p.fault(t, "%s: scopes: %s is there twice", what, t.Value)
		}
		s |= one
	}
	return s
}
