package main

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/wire"
)

// What the commands ask of a server, and print of its answers.
func TestCursorsCommands(t *testing.T) {
	list := func(next []byte, cursors ...*wire.Cursor) *wire.CursorsResponse {
		return &wire.CursorsResponse{Cursors: cursors, NextKey: next}
	}
	cursor := func(key string, next uint64) *wire.Cursor {
		return &wire.Cursor{Key: []byte(key), NextSequence: next}
	}
	name := "b"
	answers := map[string][]byte{
		"GET /cursors?limit=10000": wire.AppendMessage(nil, wire.Protobuf,
			&wire.ConsumersResponse{Consumers: []*wire.Consumer{{Consumer: "a"}, {Consumer: "b"}}, NextConsumer: &name}),
		"GET /cursors?after=b&limit=10000":                  wire.AppendMessage(nil, wire.Protobuf, &wire.ConsumersResponse{Consumers: []*wire.Consumer{{Consumer: "c d"}}}),
		"GET /cursors/a%20b?limit=10000":                    wire.AppendMessage(nil, wire.Protobuf, list([]byte("k"), cursor("k", 1<<64-1))),
		"GET /cursors/a%20b?after_b64=aw%3D%3D&limit=10000": wire.AppendMessage(nil, wire.Protobuf, list(nil, cursor("\xff\n", 0), cursor("it's", 2))),
		"GET /cursors/c?key_b64=aw==&key_b64=":              wire.AppendMessage(nil, wire.Protobuf, list(nil, cursor("", 3))),
		"PUT /cursors/c false k=17":                         wire.AppendMessage(nil, wire.Protobuf, list(nil, cursor("k", 20))),
		"PUT /cursors/c true k=17":                          wire.AppendMessage(nil, wire.Protobuf, list(nil, cursor("k", 17))),
		"DELETE /cursors/%2E%2E":                            {},
		"DELETE /cursors/c?key_b64=aw==":                    {},
		"DELETE /cursors/c?key_b64=aw==&key_b64=_wo=":       {},
	}
	var asked []string
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		what := r.Method + " " + r.RequestURI[len("/api/v1/log"):]
		if r.Method == http.MethodPut {
			body, _ := io.ReadAll(r.Body)
			var b wire.CursorsBody
			if err := b.UnmarshalProtobuf(body); err != nil {
				panic(err)
			}
			what += fmt.Sprintf(" %v", b.Force)
			for _, c := range b.Cursors {
				what += fmt.Sprintf(" %s=%d", c.Key, c.Next)
			}
		}
		asked = append(asked, what)
		answer, ok := answers[what]
		if !ok {
			w.WriteHeader(http.StatusNotFound)
			_, _ = io.WriteString(w, `{"status":"error","message":"as told"}`)
		}
		_, _ = w.Write(answer)
	}))
	defer s.Close()
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"list"}, "a\nb\nc d\n"},
		{[]string{"list", "--json"}, `{"consumer":"a"}` + "\n" + `{"consumer":"b"}` + "\n" + `{"consumer":"c d"}` + "\n"},
		{[]string{"get", "a b"}, "18446744073709551615 k\n0 b64:/wo=\n2 it's\n"},
		{[]string{"get", "--json", "a b"}, `{"nextSequence":18446744073709551615,"key":"k"}` + "\n" +
			`{"nextSequence":0,"keyB64":"/wo="}` + "\n" + `{"nextSequence":2,"key":"it's"}` + "\n"},
		{[]string{"get", "c", "k", ""}, "3 b64:\n"},
		{[]string{"get", "c", "b64:aw", "b64:"}, "3 b64:\n"},
		{[]string{"set", "c", "k", "17"}, "20 k\n"},
		{[]string{"set", "--force", "c", "k", "17"}, "17 k\n"},
		{[]string{"delete", "--all", ".."}, ""},
		{[]string{"delete", "c", "k"}, ""},
		{[]string{"delete", "--json", "--all", ".."}, `{"consumer":"..","deleted":"all"}` + "\n"},
		{[]string{"delete", "--json", "c", "k"}, `{"consumer":"c","deleted":[{"key":"k"}]}` + "\n"},
		{[]string{"delete", "--json", "c", "k", "b64:/wo="}, `{"consumer":"c","deleted":[{"key":"k"},{"keyB64":"/wo="}]}` + "\n"},
	} {
		status, stdout, stderr := runIn(append([]string{"cursors", c.args[0], "--server", s.URL}, c.args[1:]...)...)
		require.Equal(t, exitOK, status, "%v: %s", c.args, stderr)
		require.Equal(t, c.want, stdout)
	}
	require.Len(t, asked, 17)
	status, stdout, stderr := runIn("cursors", "delete", "--json", "--server", s.URL, "unknown", "k")
	require.Equal(t, exitFailure, status, stderr)
	require.Empty(t, stdout, "nothing is known to be deleted")
	status, _, stderr = runIn("cursors", "get", "--server", s.URL, "unknown")
	require.Equal(t, exitFailure, status)
	require.Equal(t, "annals cursors get: get cursors: the server answered 404 Not Found: as told\n", stderr)
}

func TestCursorsUsage(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{}, "annals cursors: one of list, get, set and delete is missing\n"},
		{[]string{"nonsense"}, "annals cursors: unknown command \"nonsense\"\n"},
		{[]string{"lits"}, "annals cursors: unknown command \"lits\"; do you mean list?\n"},
		{[]string{"list", "--json=maybe"}, "annals cursors list: --json: \"maybe\" is not true or false\n"},
		{[]string{"list", "a"}, "annals cursors list: unexpected argument \"a\"\n"},
		{[]string{"get"}, "annals cursors get: CONSUMER is missing\n"},
		{[]string{"get", "a/b"}, "annals cursors get: consumer holds a slash\n"},
		{[]string{"set", "c", "k"}, "annals cursors set: SEQUENCE is missing\n"},
		{[]string{"set", "", "k", "x"}, "annals cursors set: 2 faults:\n  consumer has 0 bytes; it must have 1 to 128\n  SEQUENCE: \"x\" is not a whole number\n"},
		{[]string{"get", "c", "b64:!"}, "annals cursors get: KEY: \"b64:!\" is not base64 behind b64:\n"},
		{[]string{"delete", "c"}, "annals cursors delete: KEY is missing; --all deletes all cursors of the consumer\n"},
		{[]string{"delete", "--all", "c", "k"}, "annals cursors delete: --all and KEY exclude each other\n"},
	} {
		status, stdout, stderr := runIn(append([]string{"cursors"}, c.args...)...)
		require.Equal(t, exitUsage, status, "%v", c.args)
		require.Empty(t, stdout)
		require.Contains(t, stderr, c.want)
	}
}
