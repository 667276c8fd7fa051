package main

import (
	"bytes"
	"context"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/client"
	"github.com/annalsdb/annals/engine"
	"github.com/annalsdb/annals/objstore/mem"
	"github.com/annalsdb/annals/server"
)

func TestParseFrom(t *testing.T) {
	for text, want := range map[string]tailFrom{
		"now":                       {now: true},
		"0":                         {},
		"18446744073709551615":      {seq: 1<<64 - 1},
		"1970-01-01T00:00:00Z":      {sinceMs: 1},
		"2023-11-14T22:13:20Z":      {sinceMs: 1_700_000_000_000},
		"2023-11-14T23:13:20+01:00": {sinceMs: 1_700_000_000_000},
		"-106751d":                  {sinceMs: 1},
	} {
		got, err := parseFrom(text)
		require.NoError(t, err, text)
		require.Equal(t, want, got, text)
	}
	got, err := parseFrom("-1h30m")
	require.NoError(t, err)
	require.InDelta(t, time.Now().Add(-90*time.Minute).UnixMilli(), got.sinceMs, float64(time.Minute.Milliseconds()))
	for _, text := range []string{"", "then", "-1", "-0s", "--1s", "10m", "2023-11-14", "18446744073709551616", "1.5"} {
		_, err := parseFrom(text)
		require.ErrorContains(t, err, "duration ago", text)
	}
}

func TestTailRefuses(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string
	}{
		{nil, "a KEY or --prefix is missing"},
		{[]string{"--commit", "k"}, "--commit needs --consumer"},
		{[]string{"--consumer", "c", "--prefix", "p"}, "--consumer and --prefix exclude each other"},
		{[]string{"--consumer", "c", "--from", "7", "k"}, "--consumer and a sequence"},
		{[]string{"--consumer", "c", "--from", "0", "k"}, "--consumer and a sequence"},
		{[]string{"--consumer", "a/b", "k"}, "--consumer: consumer holds a slash"},
		{[]string{"--consumer", "", "k"}, "--consumer: "},
		{[]string{"--from", "then", "k"}, "--from: \"then\" is not now"},
		{[]string{"--prefix", "b64:!"}, "--prefix: \"b64:!\" is not base64"},
		{[]string{"b64:!"}, "KEY: \"b64:!\" is not base64"},
		{[]string{"--limit", "0", "k"}, "--limit: 0 is out of range"},
	} {
		var stderr bytes.Buffer
		require.Equal(t, exitUsage, run(&process{args: append([]string{"tail"}, c.args...), stdout: &stderr, stderr: &stderr}), c.args)
		require.Contains(t, stderr.String(), c.want)
	}
}

// Cursors are moved behind what was printed, several requests' worth too, and what failed is tried again.
func TestCommitter(t *testing.T) {
	db, err := engine.Open(t.Context(), mem.New(mem.Options{}), engine.Options{FlushInterval: time.Millisecond})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close(context.Background())) })
	s, err := server.New(server.Options{DB: db})
	require.NoError(t, err)
	ts := httptest.NewServer(s)
	t.Cleanup(ts.Close)
	api, err := client.New(ts.URL, client.Options{})
	require.NoError(t, err)
	t.Cleanup(api.Close)
	c := newCommitter(api, "me", func(err error) { t.Error(err) })
	const keys = commitKeys + 5
	key := func(i int) []byte {
		return []byte(strings.Repeat("k", 1+i%7) + string(rune('a'+i%26)) + time.Duration(i).String())
	}
	for i := range keys {
		c.printed(key(i), 1)
		c.printed(key(i), uint64(i+2))
	}
	require.NoError(t, c.close())
	require.Empty(t, c.next)
	n := 0
	for _, err := range api.CursorsAll(t.Context(), "me", client.CursorsOptions{}) {
		require.NoError(t, err)
		n++
	}
	require.Equal(t, keys, n)
	cursors, err := api.CursorsOf(t.Context(), "me", key(7))
	require.NoError(t, err)
	require.Equal(t, []client.Cursor{{Key: key(7), Next: 9}}, cursors)

	c = newCommitter(api, "no/slashes", nil)
	c.printed([]byte("k"), 5)
	require.ErrorContains(t, c.close(), "commit cursors")
	require.Len(t, c.next, 1)
}
