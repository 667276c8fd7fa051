package main

import (
	"encoding/base64"
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// base64Mark begins a key, in arguments and in lists for people, that stands there in base64: one that is no text,
// or that begins with the mark itself. --key-range has it too.
const base64Mark = "b64:"

// keyLong says in the text of a command how keys are written.
const keyLong = `A key that is not UTF-8 text is written b64:BASE64 as an argument and in lists, and is "keyB64" in JSON. One that begins with a
dash stands behind two dashes: annals scan -- -key`

// parseKey reads a key of a command line: its text, or behind the mark its bytes in base64, of either alphabet, with or without padding.
func parseKey(text string) ([]byte, error) {
	coded, ok := strings.CutPrefix(text, base64Mark)
	if !ok {
		return []byte(text), nil
	}
	plain := strings.NewReplacer("-", "+", "_", "/").Replace(strings.TrimRight(coded, "="))
	key, err := base64.RawStdEncoding.Strict().DecodeString(plain)
	if err != nil || strings.ContainsAny(coded, "\r\n") {
		return nil, fmt.Errorf("%q is not base64 behind %s", text, base64Mark)
	}
	return key, nil
}

// keysOf reads the keys of a command line.
func keysOf(args []string) ([][]byte, error) {
	keys := make([][]byte, len(args))
	for i, a := range args {
		key, err := parseKey(a)
		if err != nil {
			return nil, err
		}
		keys[i] = key
	}
	return keys, nil
}

// checkKeys records which arguments are no keys.
func checkKeys(s *settings, args []string) {
	for _, a := range args {
		if _, err := parseKey(a); err != nil {
			s.fault("KEY: %v", err)
		}
	}
}

// keyText writes a key on a line as parseKey reads it: as it is, if it is text without line breaks and other
// characters that do not show, and not empty.
func keyText(key []byte) string {
	text := string(key)
	unfit := func(r rune) bool { return !strconv.IsPrint(r) }
	if text == "" || !utf8.ValidString(text) || strings.HasPrefix(text, base64Mark) || strings.ContainsFunc(text, unfit) ||
		strings.TrimFunc(text, unicode.IsSpace) != text {
		return base64Mark + base64.StdEncoding.EncodeToString(key)
	}
	return text
}

// shellQuote writes a key so that a POSIX shell, and then parseKey, reads it back.
func shellQuote(key []byte) string {
	text := keyText(key)
	plain := strings.IndexFunc(text, func(r rune) bool {
		return !strings.ContainsRune("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./:@%+,=", r)
	}) < 0
	if plain {
		return text
	}
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
}
