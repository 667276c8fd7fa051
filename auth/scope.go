package auth

import (
	"fmt"
	"strings"
)

// A Scope is a set of things that a token allows. Zero allows nothing.
type Scope uint8

// The scopes. None implies another.
const (
	Read   Scope = 1 << iota // scan, follow, keys, count, segments, status, cursors
	Append                   // append
	Admin                    // metrics
)

// scopeNames are the scopes by their names in token files, in the order in which they are written.
var scopeNames = []struct {
	scope Scope
	name  string
}{{Read, "read"}, {Append, "append"}, {Admin, "admin"}}

// Has reports whether all of want are in the set.
func (s Scope) Has(want Scope) bool { return s&want == want }

// Names returns the names of the scopes in the set.
func (s Scope) Names() []string {
	names := []string{}
	for _, n := range scopeNames {
		if s.Has(n.scope) {
			names = append(names, n.name)
		}
	}
	return names
}

// String returns the names with commas between them.
func (s Scope) String() string { return strings.Join(s.Names(), ",") }

// ParseScope reads one scope's name.
func ParseScope(name string) (Scope, error) {
	for _, n := range scopeNames {
		if n.name == name {
			return n.scope, nil
		}
	}
	return 0, fmt.Errorf("%q is not a scope: read, append or admin", name)
}
