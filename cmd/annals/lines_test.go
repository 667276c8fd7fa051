package main

import (
	"bytes"
	"compress/gzip"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/require"
)

func TestParseLine(t *testing.T) {
	tests := []struct{ name, line, key, value, fault string }{
		{"strings", `{"key":"k","value":"v"}`, "k", "v", ""},
		{"empty strings", `{"key":"","value":""}`, "", "", ""},
		{"escapes", `{"key":"a\u00e9\n","value":"\"\\\ud83d\ude00"}`, "aé\n", "\"\\😀", ""},
		{"members in any order, others ignored", `{"x":{"key":1},"value":"v","y":[1],"key":"k"}`, "k", "v", ""},
		{"white space", ` { "key" : "k" , "value" : { "b" : 1 , "a" : [ 1 , "x y" ] } } `, "k", `{"b":1,"a":[1,"x y"]}`, ""},
		{"numbers keep their text", `{"key":"k","value":[1e400,12345678901234567890123,1.0,-0,1E5]}`, "k", `[1e400,12345678901234567890123,1.0,-0,1E5]`, ""},
		{"strings inside keep their text", `{"key":"k","value":["\u0041\/"]}`, "k", `["\u0041\/"]`, ""},
		{"repeated names inside", `{"key":"k","value":{"a":1,"a":2}}`, "k", `{"a":1,"a":2}`, ""},
		{"base64", `{"keyB64":"/w==","valueB64":"AP8="}`, "\xff", "\x00\xff", ""},
		{"what scan prints", `{"sequence":17,"timestampMs":1712345678901,"key":"k","valueB64":""}`, "k", "", ""},
		{"no base64", `{"key":"k","valueB64":"!"}`, "", "", "valueB64: illegal base64"},
		{"base64 is no string", `{"key":"k","valueB64":1}`, "", "", "valueB64: it must be a string"},
		{"two forms of a key", `{"key":"k","keyB64":"aw==","value":"v"}`, "", "", "keyB64 is there twice"},
		{"null", `{"key":"k","value":null}`, "k", "null", ""},
		{"true", `{"key":"k","value":true}`, "k", "true", ""},
		{"number", `{"key":"k","value":007}`, "", "", "invalid character"},
		{"key is no string", `{"key":1,"value":"v"}`, "", "", "key: it must be a string"},
		{"key is null", `{"key":null,"value":"v"}`, "", "", "key: it must be a string"},
		{"no key", `{"value":"v"}`, "", "", "key is missing"},
		{"case matters", `{"Key":"k","value":"v"}`, "", "", "key is missing"},
		{"no value", `{"key":"k"}`, "", "", "value is missing"},
		{"key twice", `{"key":"k","key":"k","value":"v"}`, "", "", "key is there twice"},
		{"value twice", `{"key":"k","value":"","value":"v"}`, "", "", "value is there twice"},
		{"array", `["key","value"]`, "", "", `want {"key":...,"value":...}`},
		{"not JSON", `key=value`, "", "", "invalid character"},
		{"cut off", `{"key":"k","value":"v"`, "", "", "unexpected EOF"},
		{"cut off in a value", `{"key":"k","value":{"a":`, "", "", "unexpected EOF"},
		{"two objects", `{"key":"k","value":"v"}{"key":"k","value":"v"}`, "", "", "something follows"},
		{"no comma", `{"key":"k" "value":"v"}`, "", "", "expecting ','"},
		{"not UTF-8", "{\"key\":\"k\",\"value\":\"\xff\"}", "", "", "UTF-8"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			key, value, err := parseLine([]byte(test.line))
			if test.fault != "" {
				require.ErrorContains(t, err, test.fault)
				return
			}
			require.NoError(t, err)
			require.Equal(t, test.key, string(key))
			require.Equal(t, test.value, string(value))
		})
	}
}

func TestParseLineDoesNotAlias(t *testing.T) {
	text := []byte(`{"key":"k","value":[1, 2]}`)
	key, value, err := parseLine(text)
	require.NoError(t, err)
	for i := range text {
		text[i] = 'x'
	}
	require.Equal(t, "k", string(key))
	require.Equal(t, "[1,2]", string(value))
}

func FuzzParseLine(f *testing.F) {
	f.Add([]byte(`{"key":"k","value":{"a":[1e400," "]}}`))
	f.Add([]byte(`{"key":"\ud83d\ude00","value":"v"}`))
	f.Add([]byte(`{"key":1}`))
	f.Add([]byte(`[[[[`))
	f.Fuzz(func(t *testing.T, line []byte) {
		key, value, err := parseLine(line)
		if err != nil {
			require.Nil(t, key)
			require.Nil(t, value)
			return
		}
		// A parsed line written out again means the same.
		again := appendJSON(nil, key, scanned{value: value})
		key2, value2, err := parseLine(again)
		require.NoError(t, err)
		require.Equal(t, key, key2)
		require.Equal(t, value, value2)
	})
}

func readAll(t *testing.T, r *lineReader) (entries []entry, err error) {
	t.Helper()
	for {
		e, err := r.next()
		if err != nil {
			return entries, err
		}
		entries = append(entries, e)
	}
}

func zip(t testing.TB, text string) string {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, err := w.Write([]byte(text))
	require.NoError(t, err)
	require.NoError(t, w.Close())
	return b.String()
}

func TestLineReader(t *testing.T) {
	const text = "{\"key\":\"a\",\"value\":\"1\"}\r\n\n  \n{\"key\":\"b\",\"value\":\"2\"}\n{\"key\":\"c\",\"value\":\"3\"}"
	want := []entry{{1, []byte("a"), []byte("1")}, {4, []byte("b"), []byte("2")}, {5, []byte("c"), []byte("3")}}
	two := zip(t, text+"\n") + zip(t, "\n{\"key\":\"d\",\"value\":\"4\"}\n")
	for _, test := range []struct {
		name, file, input string
		want              []entry
	}{
		{"plain", "f.ndjson", text, want},
		{"gzipped, by its first bytes", "standard input", zip(t, text), want},
		{"gzipped, several members", "f.gz", two, append(want[:3:3], entry{7, []byte("d"), []byte("4")})},
		{"empty", "f", "", nil},
		{"only blank lines", "f", "\n\n", nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			r, err := newLineReader(iotest.HalfReader(strings.NewReader(test.input)), test.file)
			require.NoError(t, err)
			got, err := readAll(t, r)
			require.Equal(t, io.EOF, err)
			require.Equal(t, test.want, got)
		})
	}
}

func TestLineReaderFaults(t *testing.T) {
	const good = "{\"key\":\"a\",\"value\":\"1\"}\n"
	zipped := zip(t, strings.Repeat(good, 1000))
	for _, test := range []struct{ name, file, input, fault string }{
		{"a bad line", "f", good + good + "x\n" + good, "line 3: "},
		{"a .gz that is not", "f.gz", good, "read f.gz: it is not gzipped"},
		{"a .gz cut off", "f.gz", zipped[:len(zipped)-10], "unexpected EOF"},
		{"a .gz with a wrong byte", "f.gz", zipped[:len(zipped)-5] + "\xff" + zipped[len(zipped)-4:], "gzip: invalid checksum"},
		{"too long a line", "f", good + strings.Repeat("x", maxLineBytes+1) + "\n", "line 2: it is longer than 32MiB"},
		{"too long a last line", "f", strings.Repeat("x", maxLineBytes+1), "line 1: it is longer than 32MiB"},
	} {
		t.Run(test.name, func(t *testing.T) {
			r, err := newLineReader(strings.NewReader(test.input), test.file)
			if err == nil {
				_, err = readAll(t, r)
			}
			require.ErrorContains(t, err, test.fault)
		})
	}
}

func TestLongestLine(t *testing.T) {
	frame := len(`{"key":"","value":""}`)
	value := strings.Repeat("v", maxLineBytes-frame)
	line := `{"key":"","value":"` + value + `"}`
	r, err := newLineReader(strings.NewReader(line+"\n"+line), "f")
	require.NoError(t, err)
	got, err := readAll(t, r)
	require.Equal(t, io.EOF, err)
	require.Len(t, got, 2)
	require.Equal(t, value, string(got[1].value))
}

func TestSkip(t *testing.T) {
	const text = "not even JSON\n\n{\"key\":\"b\",\"value\":\"2\"}\n"
	r, err := newLineReader(strings.NewReader(text), "f")
	require.NoError(t, err)
	require.NoError(t, r.skip(2))
	e, err := r.next()
	require.NoError(t, err)
	require.Equal(t, uint64(3), e.line)
	require.NoError(t, r.skip(3))
	require.ErrorContains(t, r.skip(4), "--skip 4: the input has only 3 lines")
}

func BenchmarkParseLine(b *testing.B) {
	line := []byte(`{"key":"pebble/compaction.go","value":{"commit":"7b38858","time":1387563974,"added":20,"deleted":0}}`)
	b.SetBytes(int64(len(line)))
	for b.Loop() {
		if _, _, err := parseLine(line); err != nil {
			b.Fatal(err)
		}
	}
}
