package server

import "fmt"

// A scope is what a token must allow for a route to answer its bearer. Where the server has
// no tokens every route is open.
type scope int

const (
	scopeUnset  scope = iota // of a route that does not say: New refuses it
	scopeOpen                // for everybody, without a token
	scopeRead                // what reads the log, and cursors
	scopeAppend              // what appends
	scopeAdmin               // what tells about the process; it does not imply the others
)

// String implements fmt.Stringer: the scope's name in token files and messages.
func (s scope) String() string {
	switch s {
	case scopeOpen:
		return "open"
	case scopeRead:
		return "read"
	case scopeAppend:
		return "append"
	case scopeAdmin:
		return "admin"
	}
	return fmt.Sprintf("scope(%d)", int(s))
}
