package server

import (
	"encoding/json"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/wire"
)

// docExample is a command of docs/HTTP.md with what it prints.
type docExample struct {
	command string
	want    []string // lines; none: the page does not say
}

// docExamples returns the commands of docs/HTTP.md in their order.
func docExamples(t *testing.T) (list []docExample) {
	t.Helper()
	text, err := os.ReadFile("../docs/HTTP.md")
	require.NoError(t, err)
	var now *docExample
	for line := range strings.Lines(string(text)) {
		code, isCode := strings.CutPrefix(strings.TrimRight(line, "\n"), "    ")
		switch {
		case strings.HasPrefix(code, "curl "):
			list = append(list, docExample{command: code})
			now = &list[len(list)-1]
		case !isCode:
			now = nil
		case now != nil && strings.HasSuffix(now.command, "\\"):
			now.command = strings.TrimSuffix(now.command, "\\") + strings.TrimSpace(code)
		case now != nil:
			now.want = append(now.want, strings.TrimSpace(code))
		}
	}
	return list
}

// shellWords splits a command as a shell does that has no variables.
func shellWords(command string) (words []string) {
	var word strings.Builder
	quote := rune(0)
	for _, c := range command + " " {
		switch {
		case c == quote:
			quote = 0
		case quote == 0 && (c == '\'' || c == '"'):
			quote = c
		case quote == 0 && c == ' ':
			if word.Len() > 0 {
				words = append(words, word.String())
			}
			word.Reset()
		default:
			word.WriteRune(c)
		}
	}
	return words
}

// curl is what a command asks for.
type curl struct {
	method, path, body string
	headers            []string
}

func parseCurl(t *testing.T, command string) curl {
	t.Helper()
	c := curl{method: "GET"}
	words := shellWords(command)[1:]
	for len(words) > 0 {
		word := words[0]
		words = words[1:]
		if path, ok := strings.CutPrefix(word, "localhost:8080"); ok {
			c.path = path
			continue
		}
		if word == "-s" || word == "-sN" {
			continue
		}
		require.NotEmpty(t, words, command)
		value := words[0]
		words = words[1:]
		switch word {
		case "-X":
			c.method = value
		case "-d":
			c.body = value
			if c.method == "GET" {
				c.method = "POST"
			}
		case "-H":
			name, text, ok := strings.Cut(value, ": ")
			require.True(t, ok, command)
			c.headers = append(c.headers, name, text)
		default:
			t.Fatalf("%s: what is %s?", command, word)
		}
	}
	return c
}

// The commands of docs/HTTP.md print what it says, one after the other.
func TestExamplesOfHTTPDocs(t *testing.T) {
	r := start(t, Options{})
	examples := docExamples(t)
	require.Greater(t, len(examples), 10)
	for _, e := range examples {
		c := parseCurl(t, e.command)
		switch {
		case strings.Contains(e.command, "follow=true&timeout_ms"): // it would wait for a record
			continue
		case strings.HasPrefix(e.command, "curl -sN"): // the first item, and that there are others
			o := r.open(c.method, c.path, c.body, c.headers...)
			for i, line := range e.want[:len(e.want)-1] {
				if line == ":" {
					break
				}
				require.Equal(t, line, o.line(), "%s: line %d", e.command, i)
			}
			o.cancel()
			continue
		}
		got := r.do(c.method, c.path, strings.NewReader(c.body), c.headers...)
		require.Equal(t, 200, got.status, e.command)
		switch {
		case len(e.want) == 0:
		case c.path == statusPath: // other figures
			require.Equal(t, fieldsOf(t, strings.Join(e.want, "")), fieldsOf(t, got.body))
		default:
			require.Equal(t, strings.Join(e.want, "\n"), got.body, e.command)
		}
	}
	require.Contains(t, r.get("/metrics").body, `endpoint="`+consumerPath+`",method="PUT",status="200"`, "the page's commands were run")
}

func fieldsOf(t *testing.T, object string) []string {
	t.Helper()
	var fields map[string]any
	require.NoError(t, json.Unmarshal([]byte(object), &fields))
	return slices.Sorted(maps.Keys(fields))
}

// What the page shows of errors, and of what streams send, is as it is described.
func TestErrorsOfHTTPDocsAreDescribed(t *testing.T) {
	text, err := os.ReadFile("../docs/HTTP.md")
	require.NoError(t, err)
	n := 0
	for line := range strings.Lines(string(text)) {
		if body, ok := strings.CutPrefix(strings.TrimSpace(line), `{"status":"error"`); ok && strings.HasPrefix(line, "    ") {
			body = `{"status":"error"` + body
			_, err := wire.ParseErrorBody([]byte(body))
			require.NoError(t, err)
			require.NoError(t, checkJSON(description(t).Components.Schemas["Conflict"].Value, []byte(body)), body) // it has all fields but outcome
			n++
		}
	}
	require.Greater(t, n, 2)
}
