package engine

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"
)

// FuzzParseKeyRange: what parses is written and read again to the same range, and any two bounds can be written.
func FuzzParseKeyRange(f *testing.F) {
	for _, s := range []string{"a..n", "..", "..b64:/wA=", "b64:/w==..", "a.b..c", "a..", "a...b", "b..a", "b64:..b64:", "a..b64:!", "a..b..c", "x"} {
		f.Add(s, []byte("a.."), []byte("b64:"))
	}
	f.Add(" ..\x7f", []byte{0xff}, []byte{0xff, 0})
	f.Fuzz(func(t *testing.T, s string, from, to []byte) {
		if r, err := ParseKeyRange(s); err != nil {
			require.ErrorIs(t, err, ErrInvalid)
		} else {
			requireSameRange(t, r)
		}
		r := KeyRange{Start: from, End: to}
		if len(to) == 0 {
			r.End = nil // an empty bound is none
		}
		if r.validate() == nil {
			requireSameRange(t, r)
		}
	})
}

func requireSameRange(t *testing.T, r KeyRange) {
	again, err := ParseKeyRange(r.String())
	require.NoError(t, err, "%q", r.String())
	require.True(t, bytes.Equal(r.Start, again.Start) && bytes.Equal(r.End, again.End) && (r.End == nil) == (again.End == nil),
		"%q to %q is written as %s", r.Start, r.End, r)
	require.True(t, r.Contains(r.Start))
	require.False(t, r.End != nil && r.Contains(r.End))
	require.Equal(t, r.ContainsPrefix(r.Start), r.ContainsPrefix(r.Start) && r.overlapsPrefix(r.Start), "what holds all of them holds some")
}
