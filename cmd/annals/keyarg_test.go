package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestKeyArguments(t *testing.T) {
	for text, want := range map[string]string{
		"": "", "a b": "a b", "b64": "b64", "b64:": "", "b64:/wA=": "\xff\x00", "b64:_wA": "\xff\x00", "b64:YjY0Og==": "b64:", "B64:/wA=": "B64:/wA=",
	} {
		key, err := parseKey(text)
		require.NoError(t, err, text)
		require.Equal(t, want, string(key), text)
	}
	for _, text := range []string{"b64:!", "b64:a", "b64:YWJ=c", "b64:YW\nJj", "b64:YWJ"} { // the last has bits behind its end
		_, err := parseKey(text)
		require.Error(t, err, text)
	}
}

func TestKeyText(t *testing.T) {
	for key, want := range map[string]string{
		"": "b64:", "k": "k", "a b": "a b", " a": "b64:IGE=", "a\n": "b64:YQo=", "a\tb": "b64:YQli", "\xff": "b64:/w==", "b64:x": "b64:YjY0Ong=", "\u202e": "b64:4oCu", "é": "é",
	} {
		require.Equal(t, want, keyText([]byte(key)), "%q", key)
	}
}

// FuzzKeyText: what a list shows of any key stands on one line, and is that key when it is given back.
func FuzzKeyText(f *testing.F) {
	for _, key := range []string{"", "k", "b64:x", "\xff\x00", " a ", "a\r\n", "\u2028", "\x1b[31m"} {
		f.Add([]byte(key))
	}
	f.Fuzz(func(t *testing.T, key []byte) {
		text := keyText(key)
		require.False(t, strings.ContainsAny(text, "\r\n\x1b"))
		again, err := parseKey(text)
		require.NoError(t, err)
		require.Equal(t, string(key), string(again))
	})
}
