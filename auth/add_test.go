package auth

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestAdd(t *testing.T) {
	a, _ := ParseHash(hashA)
	b, _ := ParseHash(hashB)
	text, err := Add(nil, Entry{Name: "mailer", Hash: a, Scopes: Read | Append, Prefixes: [][]byte{[]byte("user/42/"), {0xff}},
		Expires: time.Date(2027, 1, 31, 1, 2, 3, 0, time.FixedZone("", 3600))})
	require.NoError(t, err)
	const one = `# Who may do what. Of each token only the hash is here: "annals token new --file" adds one.
tokens:
  - name: mailer
    hash: ` + hashA + `
    scopes: [read, append]
    prefixes:
      - user/42/
    prefixes_b64:
      - /w==
    expires: 2027-01-31T00:02:03Z
`
	require.Equal(t, one, string(text))
	commented := strings.Replace(one, "name: mailer", "name: mailer # of the shop", 1)
	text, err = Add([]byte(commented), Entry{Name: "prometheus", Hash: b, Scopes: Admin})
	require.NoError(t, err)
	require.Equal(t, commented+`  - name: prometheus
    hash: `+hashB+`
    scopes: [admin]
`, string(text))

	for want, e := range map[string]Entry{
		"another token has it": {Name: "prometheus", Hash: a, Scopes: Read},
		"it is that of":        {Name: "c", Hash: b, Scopes: Read},
	} {
		_, err := Add(text, e)
		require.ErrorContains(t, err, want)
	}
	_, err = Add([]byte("tokens: ["), Entry{})
	require.ErrorContains(t, err, "line 1")
}

func one(b bool) int {
	if b {
		return 1
	}
	return 0
}

// What is added is read back, whatever the prefixes look like to YAML; and so is the text of an entry alone.
func TestAddedEntriesAreReadBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var data []byte
		var want []Entry
		for i := range rapid.IntRange(1, 4).Draw(t, "tokens") {
			e := Entry{Name: "t" + string(rune('a'+i)), Hash: HashOf(string(rune(i))), Scopes: rapid.SampledFrom([]Scope{Read, Append, Read | Append}).Draw(t, "scopes")}
			odd := rapid.SampledFrom([]string{"~", "null", "1.5", "yes", "*a", "- x", "a: b", "#", " x ", "\n", "\t", "'", "\"", "{", "!!binary x", "\x00", "\u0085", "\ufeff"})
			for _, p := range rapid.SliceOfN(rapid.OneOf(odd, rapid.String()), 0, 3).Draw(t, "prefixes") {
				if p != "" {
					e.Prefixes = append(e.Prefixes, []byte(p))
				}
			}
			var err error
			data, err = Add(data, e)
			require.NoError(t, err, "%q", e.Prefixes)
			slices.SortStableFunc(e.Prefixes, func(a, b []byte) int { // what is base64 stands behind
				return one(isPlain(b)) - one(isPlain(a))
			})
			want = append(want, e)
			alone, err := Parse([]byte("tokens:\n" + e.Text()))
			require.NoError(t, err)
			require.Equal(t, want[i:], alone)
		}
		got, err := Parse(data)
		require.NoError(t, err)
		require.Equal(t, want, got)
	})
}
