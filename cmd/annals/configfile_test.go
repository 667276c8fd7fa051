package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
)

// configFile writes a file that --config may name.
func configFile(t testing.TB, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "annals.yaml")
	require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	return file
}

func TestPrecedence(t *testing.T) {
	file := configFile(t, "# all of it\nretention: 7d\ngc-grace: 20m # the file's\n\"gc-interval\": '2m'\nmax-followers: 5\ncompaction: off\nmax-key-bytes: nonsense\n")
	c, faults := parseServe(t, []string{"ANNALS_CONFIG=" + file, "ANNALS_GC_GRACE=21m", "ANNALS_MAX_KEY_BYTES=more nonsense"}, "--max-key-bytes", "3KiB")
	require.Empty(t, faults)
	require.Equal(t, 7*24*time.Hour, c.engine.Retention, "the file beats the default")
	require.Equal(t, 2*time.Minute, c.engine.GCInterval)
	require.Equal(t, 5, c.maxFollowers)
	require.True(t, c.engine.DisableCompaction, "off is a word, not a boolean")
	require.Equal(t, 21*time.Minute, c.engine.GCGrace, "the variable beats the file")
	require.Equal(t, 3<<10, c.engine.MaxKeyBytes, "the flag beats both, which are not looked at")
}

func TestConfigFaults(t *testing.T) {
	for _, test := range []struct {
		text string
		want []string // behind the file's name
	}{
		{"", []string{": it is empty; leave --config away to set nothing"}},
		{"# a comment\n", []string{": it is empty; leave --config away to set nothing"}},
		{"retention: 7d\n---\nack: memory\n", []string{":2: a second document; want one"}},
		{"retention: 7d\n\tack: x\n", []string{":2: found a tab character that violates indentation"}},
		{"store: mem:\n", []string{": mapping values are not allowed in this context: put a value with a colon into quotes"}},
		{"ack", []string{":1: want lines of the form \"name: value\""}},
		{"- ack\n- store\n", []string{":1: want lines of the form \"name: value\""}},
		{"ack: [durable]\nlisten: {a: b}\nretention:\nstore: null\n", []string{
			":1: ack is a list; want one value", ":2: listen is a mapping; want one value",
			":3: retention has no value; leave the line away for the default", ":4: store has no value; leave the line away for the default",
		}},
		{"ack: &a memory\nread-visibility: *a\nstore: !!str x\n", []string{
			":1: ack has an anchor or alias; write the value itself", ":2: read-visibility has an anchor or alias; write the value itself",
			":3: store has the tag !!str; write the value alone",
		}},
		{"ack: memory\nack: durable\n", []string{":2: ack is there twice, first in line 1"}},
		{"<<: {ack: memory}\n", []string{`:1: unknown name "<<"`}},
		{"? [ack]\n: memory\n", []string{":1: a name must be a plain word"}},
		{"flush-intervall: 1s\nacks: memory\nsomething: else\n", []string{
			`:1: unknown name "flush-intervall"; do you mean flush-interval?`, `:2: unknown name "acks"; do you mean ack?`, `:3: unknown name "something"`,
		}},
		{"flush_interval: 1s\n--ack: memory\n", []string{
			`:1: unknown name "flush_interval"; names are written as flags are, without the dashes in front: flush-interval`,
			`:2: unknown name "--ack"; names are written as flags are, without the dashes in front: ack`,
		}},
		{"config: other.yaml\nprint-config: true\nhelp: true\n", []string{
			":1: a file cannot name another one", ":2: print-config is a flag of the command line only", `:3: unknown name "help"`,
		}},
		{"retention: soon\nmax-followers: 0\n", []string{
			`:1: retention: "soon" is not a duration such as 100ms, or above the longest, of 106751 days`,
			":2: max-followers: 0 is out of range: it must be from 1 to 2147483647",
		}},
	} {
		file := configFile(t, test.text)
		_, faults := parseServe(t, nil, "--config", file)
		for i, fault := range faults {
			faults[i] = strings.TrimPrefix(fault, file)
		}
		require.Equal(t, test.want, faults, "%q", test.text)
	}
}

// What takes several values may be a list in a file.
func TestConfigList(t *testing.T) {
	for _, text := range []string{"replicas: [http://a, 'http://b']\n", "replicas:\n  - http://a\n  - http://b\n", "replicas: http://a,http://b\n"} {
		c, faults := parseServe(t, nil, "--config", configFile(t, text))
		require.Empty(t, faults, text)
		require.Equal(t, []string{"http://a", "http://b"}, c.status.replicas)
	}
	for text, want := range map[string]string{
		"replicas: [http://a, [b]]\n":          ":1: replicas is a list of which part 2 is a list; want one value",
		"replicas: ['http://a,http://b']\n":    ":1: replicas is a list of which part 1 holds a comma",
		"replicas: []\n":                       `:1: replicas: "" is not a URL such as http://127.0.0.1:8080`,
		"replicas: &x [http://a]\n":            ":1: replicas has an anchor or alias; write the value itself",
		"replicas: {http://a: b}\n":            ":1: replicas is a mapping; want one value",
		"replicas: !!set [http://a]\n":         ":1: replicas is a list; want one value",
		"listen: [127.0.0.1:1, 127.0.0.1:2]\n": ":1: listen is a list; want one value",
	} {
		file := configFile(t, text)
		_, faults := parseServe(t, nil, "--config", file)
		require.Equal(t, []string{file + want}, faults)
	}
}

// The faults of all sources come together, those of values that contradict each other included.
func TestFaultsOfAllSources(t *testing.T) {
	file := configFile(t, "bogus: 1\nsegment-min-bytes: 2MiB\n")
	_, faults := parseServe(t, []string{"ANNALS_SEGMENT_BYTES=1MiB", "ANNALS_GC_GRACES=1h"}, "--ackk", "x", "--config="+file)
	require.Equal(t, []string{
		"unknown flag --ackk; do you mean --ack?",
		"unknown variable ANNALS_GC_GRACES; do you mean ANNALS_GC_GRACE?",
		file + `:1: unknown name "bogus"`,
		"--segment-min-bytes (2097152) is above --segment-bytes (1048576)",
	}, faults)
}

func TestConfigUnreadable(t *testing.T) {
	dir := t.TempDir()
	_, faults := parseServe(t, []string{"ANNALS_CONFIG=" + filepath.Join(dir, "none")})
	require.Len(t, faults, 1)
	require.True(t, strings.HasPrefix(faults[0], "ANNALS_CONFIG: open "), faults[0])
	_, faults = parseServe(t, nil, "--config", dir)
	require.Len(t, faults, 1)
	require.Contains(t, faults[0], "--config: read "+dir)
	large := configFile(t, strings.Repeat("# a line\n", maxConfigBytes/8))
	_, faults = parseServe(t, nil, "--config", large)
	require.Equal(t, []string{"--config: " + large + " is longer than 1MiB"}, faults)
}

// What --print-config prints is a file that says the same, for a writer and a replica, and with every flag set.
func TestPrintConfigRoundTrip(t *testing.T) {
	for _, args := range [][]string{
		{},
		{"--replica", "--key-range", "b64:/wA=..", "--store", "s3://bucket/a?region=x"},
		{"--retention=7d", "--segment-interval", "1h", "--store", "file:./it's: #1 \"quoted\"", "--disk-cache", "null", "--disk-cache-bytes=1GiB", "--forget-lost-state", "two\nlines\u2028\u0085"},
		{"--ack=memory", "--flush-interval", "30ms", "--segment-bytes=1GB", "--compaction=off", "--log-level", "debug"},
	} {
		status, printed, stderr := runIn(append([]string{"serve", "--print-config"}, args...)...)
		require.Equal(t, exitOK, status, stderr)
		file := configFile(t, printed)
		got, faults := parseServe(t, nil, "--config", file)
		require.Empty(t, faults, printed)
		want, faults := parseServe(t, nil, args...)
		require.Empty(t, faults)
		got.store.open, want.store.open = nil, nil // functions cannot be compared
		require.Equal(t, want, got, printed)
		status, again, _ := runIn("serve", "--print-config", "--config", file)
		require.Equal(t, exitOK, status)
		require.Equal(t, withoutSources(printed), withoutSources(again))
	}
}

// withoutSources removes the comments behind values.
func withoutSources(printed string) string {
	var lines []string
	for line := range strings.Lines(printed) {
		if !strings.HasPrefix(line, "#") {
			line = line[:strings.LastIndex(line, " # ")]
		}
		lines = append(lines, line)
	}
	return strings.Join(lines, "\n")
}

func TestPrintConfigSources(t *testing.T) {
	file := configFile(t, "ack: memory\ngc-grace: 20m\nretention: 7d\n")
	var out bytes.Buffer
	p := &process{
		args: []string{"serve", "--config", file, "--print-config", "--log-format=json"}, environ: []string{"ANNALS_RETENTION=8d", "ANNALS_SERVER=http://elsewhere"},
		stdin: strings.NewReader(""), stdout: &out, stderr: &out,
	}
	require.Equal(t, exitOK, run(p), out.String())
	for _, line := range []string{
		"ack: memory # " + file + ":1", "gc-grace: 20m # " + file + ":2", "retention: 8d # ANNALS_RETENTION", "log-format: json # --log-format",
		"gc-interval: 1m # default", "# segment-min-bytes: default 64MiB, or --segment-bytes where that is less",
	} {
		require.Contains(t, out.String(), line+"\n")
	}
	require.NotContains(t, out.String(), "config:")
	require.NotContains(t, out.String(), "key-range", "it is of replicas")

	status, stdout, stderr := runIn("serve", "--print-config", "--gc-grace", "1s")
	require.Equal(t, exitUsage, status)
	require.Empty(t, stdout)
	require.Contains(t, stderr, "--gc-grace is 1s; it must be at least 6m, ")
}

func TestWithoutPassword(t *testing.T) {
	for text, want := range map[string]string{
		"s3://b/p?endpoint=http://user:secret@host:1/x": "s3://b/p?endpoint=http://HIDDEN@host:1/x",
		"https://token@host,http://a@b":                 "https://HIDDEN@host,http://HIDDEN@b",
		"http://host/a@b":                               "http://host/a@b",
		"file:./a@b":                                    "file:./a@b",
	} {
		require.Equal(t, want, withoutPassword(text))
	}
}

// FuzzConfig reads any file: there is a fault that is one line and names the file, or options that are valid and that
// print and read again to the same.
func FuzzConfig(f *testing.F) {
	for _, text := range []string{
		"retention: 7d\nstore: \"mem:\"\n", "a: &x [*x]\n", "? {a: b}\n: c\n", "ack: !!binary aGk=\n", "---\n---\n", "replica: true\nkey-range: a..b\n",
		"disk-cache: |\n  x\n  y\n", "ack: ~\n", "%YAML 1.1\n---\nack: memory\n...\n", "{ack: memory, ack: durable}", "\xff\xfe", "disk-cache: \"\\u2028\"\n", "",
	} {
		f.Add([]byte(text))
	}
	read := func(text []byte) (*serveConfig, *settings) {
		c := new(serveConfig)
		s := newSettings(pflag.NewFlagSet("serve", pflag.ContinueOnError))
		c.define(s)
		s.applyFile("annals.yaml", text)
		if len(s.faults) == 0 {
			c.check(s)
		}
		return c, s
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		_, s := read(text)
		if len(s.faults) > 0 {
			for _, fault := range s.faults {
				require.NotContains(t, fault, "\n")
				require.True(t, strings.HasPrefix(fault, "annals.yaml") || strings.Contains(fault, "--"), fault)
			}
			return
		}
		var printed, again bytes.Buffer
		require.NoError(t, s.printConfig(&printed))
		_, s = read(printed.Bytes())
		require.Empty(t, s.faults, "%s", printed.String())
		require.NoError(t, s.printConfig(&again))
		require.Equal(t, withoutSources(printed.String()), withoutSources(again.String()))
	})
}
