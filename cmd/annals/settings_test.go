package main

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/engine"
	"github.com/annalsdb/annals/server"
)

// parseServe reads a command line of serve without running it.
func parseServe(t *testing.T, environ []string, args ...string) (serveConfig, []string) {
	t.Helper()
	var c serveConfig
	s := newSettings(pflag.NewFlagSet("serve", pflag.ContinueOnError))
	c.define(s)
	_, help := s.read(args, environ, nil)
	require.False(t, help)
	c.check(s)
	return c, s.faults
}

func TestServeDefaults(t *testing.T) {
	c, faults := parseServe(t, nil)
	require.Empty(t, faults)
	require.Equal(t, "127.0.0.1:8080", c.listen)
	require.Equal(t, engine.Durable, c.engine.Ack)
	require.Equal(t, 2*time.Millisecond, c.engine.FlushInterval, "the default store is a directory")
	require.Equal(t, int64(engine.DefaultMemtableBytes), c.engine.MemtableBytes)
	require.Zero(t, c.engine.SegmentMinBytes, "the engine's default follows --segment-bytes")
}

func TestFlushIntervalSuitsTheStore(t *testing.T) {
	for _, test := range []struct {
		args []string
		want time.Duration
	}{
		{[]string{"--store", "mem:"}, 2 * time.Millisecond},
		{[]string{"--store", "file:x"}, 2 * time.Millisecond},
		{[]string{"--store", "s3://some-bucket"}, 100 * time.Millisecond},
		{[]string{"--store", "s3://some-bucket", "--flush-interval", "20ms"}, 20 * time.Millisecond},
	} {
		c, faults := parseServe(t, nil, test.args...)
		require.Empty(t, faults)
		require.Equal(t, test.want, c.engine.FlushInterval, test.args)
	}
}

func TestVariables(t *testing.T) {
	environ := []string{"ANNALS_ACK=memory", "ANNALS_SEGMENT_BYTES=1MiB", "ANNALS_LISTEN=", "ANNALS_TEST_S3=s3://x", "OTHER=x"}
	c, faults := parseServe(t, environ, "--segment-bytes", "2MiB")
	require.Empty(t, faults)
	require.Equal(t, engine.Memory, c.engine.Ack)
	require.Equal(t, int64(2<<20), c.engine.SegmentBytes, "the flag wins")
	require.Equal(t, "127.0.0.1:8080", c.listen, "an empty variable is unset")

	_, faults = parseServe(t, []string{"ANNALS_ACK=no"})
	require.Equal(t, []string{`ANNALS_ACK: "no" is not one of: durable, memory`}, faults)
}

func TestServeFaults(t *testing.T) {
	for _, test := range []struct {
		args []string
		want []string
	}{
		{[]string{"-x"}, []string{"unknown flag -x"}},
		{[]string{"--ack"}, []string{"--ack needs a value"}},
		{[]string{"--ack", "--listen=:80"}, []string{"--ack needs a value"}},
		{[]string{"--listen=:http"}, []string{`--listen: ":http": the port must be a number from 0 to 65535`}},
		{[]string{"--listen=:65536"}, []string{`--listen: ":65536": the port must be a number from 0 to 65535`}},
		{[]string{"--store=data"}, []string{"--store: want mem:, file:PATH or s3://BUCKET/PREFIX?endpoint=URL&region=R&path_style=true"}},
		{[]string{"--store=mem:x"}, []string{"--store: mem: takes nothing behind the colon"}},
		{[]string{"--store=file:"}, []string{"--store: file: needs a path"}},
		{[]string{"--store=file://data"}, []string{"--store: file: with two slashes names a host; write file:data or file:///PATH"}},
		{[]string{"--max-key-bytes", "1MiB"}, []string{"--max-key-bytes is 1048576; it must be from 1 to 65536"}},
		{[]string{"--flush-interval", "2m"}, []string{"--flush-interval is 2m0s; it must be above 0 and at most 1m"}},
		{[]string{"--cache-bytes", "-1"}, []string{`--cache-bytes: "-1" is not a size such as 64MiB`}},
		{[]string{"--log-level", "loud"}, []string{`--log-level: "loud" is not one of: debug, info, warn, error`}},
		{[]string{"--replica", "--store=mem:"}, []string{"--replica cannot read the store mem:, which is of one process alone"}},
		{[]string{"--replica=maybe"}, []string{`--replica: "maybe" is not one of: true, false`}},
		{[]string{"--key-range=a..b", "--poll-interval=1s", "--tail-bytes=1MiB"},
			[]string{"--key-range needs --replica", "--poll-interval needs --replica", "--tail-bytes needs --replica"}},
		{[]string{"--replica", "--key-range=a"}, []string{`--key-range: range of keys "a" is not FROM..TO; write FROM..TO, such as ..n, b64:/wA=.. or a..n`}},
		{[]string{"--replica", "--key-range=b..a"}, []string{"--key-range: range of keys b..a is empty; write FROM..TO, such as ..n, b64:/wA=.. or a..n"}},
		{[]string{"--replica", "--key-range=b64:!.."}, []string{`--key-range: bound "b64:!" of a range of keys: illegal base64 data at input byte 0; write FROM..TO, such as ..n, b64:/wA=.. or a..n`}},
		{[]string{"--replica", "--poll-interval=2m"}, []string{"--poll-interval is 2m0s; it must be from 1ms to 1m0s"}},
		{[]string{"--max-producers=0"}, []string{"--max-producers: 0 is out of range: it must be from 1 to 2147483647"}},
		{[]string{"--max-followers=0"}, []string{"--max-followers: 0 is out of range: it must be from 1 to 2147483647"}},
		{[]string{"--max-state-bytes=0"}, []string{`--max-state-bytes: "0" is out of range: a size is above 0 and below 4EiB`}},
		{[]string{"--replica", "--retention=7d", "--ack=memory", "--compaction=off", "--max-producers=5", "--read-visibility=memory"}, []string{
			"--ack cannot be combined with --replica: a replica appends nothing",
			"--read-visibility cannot be combined with --replica: a replica sees only what is durable",
			"--compaction cannot be combined with --replica: that is the work of the log's writer",
			"--retention cannot be combined with --replica: that is the work of the log's writer",
			"--max-producers cannot be combined with --replica: the log's writer keeps cursors and producers",
		}},
		{[]string{"a", "--", "--b"}, []string{`unexpected argument "a"`, `unexpected argument "--b"`}},
	} {
		_, faults := parseServe(t, nil, test.args...)
		require.Equal(t, test.want, faults, "%v", test.args)
	}
	_, faults := parseServe(t, nil, "--store=s3://?region=a b&nonsense=1")
	require.Len(t, faults, 1)
	require.NotContains(t, faults[0], "\n")
}

func TestReplicaFlags(t *testing.T) {
	c, faults := parseServe(t, []string{"ANNALS_REPLICA=true", "ANNALS_KEY_RANGE=b64:/w==.."}, "--poll-interval", "20ms",
		"--cache-bytes=1MiB", "--disk-cache", "some-folder", "--max-key-bytes=10", "--max-value-bytes=20")
	require.Empty(t, faults)
	require.Equal(t, engine.ReaderOptions{
		Keys: engine.KeyRange{Start: []byte{0xff}}, PollInterval: 20 * time.Millisecond, TailBytes: engine.DefaultTailBytes,
		CacheBytes: 1 << 20, DiskCacheDir: "some-folder",
	}, c.readerOptions())
	require.Equal(t, 20, c.serverOptions(nil).MaxValueBytes)
	require.Equal(t, server.DefaultMaxFollowers, c.serverOptions(nil).MaxFollowers)
	c, faults = parseServe(t, nil)
	require.Empty(t, faults)
	require.False(t, c.replica.on)
	require.Equal(t, engine.DefaultMaxProducers, c.engine.MaxProducers)
	require.Equal(t, int64(engine.DefaultMaxStateBytes), c.engine.MaxStateBytes)
}

// A flag is of a writer or of replicas, or of both: none is forgotten.
func TestFlagsOfReplicas(t *testing.T) {
	both := []string{"listen", "store", "cache-bytes", "disk-cache", "disk-cache-bytes", "disk-cache-required", "max-key-bytes", "max-value-bytes", "max-followers",
		"tokens", "tls-cert", "tls-key", "tls-client-ca", "admin-listen", "max-connections",
		"replica", "slow-log", "shutdown-timeout", "log-level", "log-format", "config", "print-config"}
	all := append(append([]string{}, both...), ofReplicas...)
	for _, f := range notOfReplicas {
		all = append(all, f.flag)
	}
	s := newSettings(pflag.NewFlagSet("serve", pflag.ContinueOnError))
	new(serveConfig).define(s)
	require.ElementsMatch(t, s.names(), all)
}

// Every fault that the engine reports about an option of a flag carries the
// flag's name.
func TestEngineFaultsNameFlags(t *testing.T) {
	_, faults := parseServe(t, nil, "--wal-object-bytes=1GiB", "--max-value-bytes=1GiB", "--max-key-bytes=1MiB", "--max-unflushed-bytes=1KiB",
		"--segment-bytes=1KiB", "--segment-min-bytes=2KiB", "--flush-interval=5m")
	require.Len(t, faults, 6)
	for _, fault := range faults {
		require.True(t, strings.HasPrefix(fault, "--"), fault)
	}
}

func TestSizes(t *testing.T) {
	for text, want := range map[string]int64{"1": 1, "64MiB": 64 << 20, "1.5KiB": 1536, "10MB": 10_000_000, "2 GiB": 2 << 30, "16k": 16_000} {
		got, err := parseSize[int64](text)
		require.NoError(t, err, text)
		require.Equal(t, want, got, text)
	}
	for _, text := range []string{"", "0", "-1", "x", "1XB", "9EiB", "99999999999999999999"} {
		_, err := parseSize[int64](text)
		require.Error(t, err, text)
	}
	for n, want := range map[int64]string{0: "0", 1: "1", 1023: "1023", 4096: "4KiB", 16 << 30: "16GiB", 1<<20 + 1: "1048577"} {
		require.Equal(t, want, formatSize(n))
	}
}

func TestServerURL(t *testing.T) {
	for text, want := range map[string]string{
		"http://127.0.0.1:8080": "http://127.0.0.1:8080", "https://annals.example/": "https://annals.example", "http://host/prefix": "http://host/prefix",
	} {
		got, err := parseServer(text)
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	for _, text := range []string{"", "127.0.0.1:8080", "ftp://host", "http://", "http://host?x", "http://user@host", "http://host#x", "http://host?", "http://host#"} {
		_, err := parseServer(text)
		require.Error(t, err, text)
	}
}

// runIn runs a command line in this process.
func runIn(args ...string) (status int, stdout, stderr string) {
	var out, errs bytes.Buffer
	status = run(&process{args: args, stdin: strings.NewReader(""), stdout: &out, stderr: &errs})
	return status, out.String(), errs.String()
}

func TestHelpSaysEverything(t *testing.T) {
	status, help, stderr := runIn("serve", "--nonsense", "--help")
	require.Equal(t, exitOK, status)
	require.Empty(t, stderr)
	for _, flag := range []string{"listen", "store", "ack", "read-visibility", "flush-interval", "wal-object-bytes", "memtable-bytes",
		"max-unflushed-bytes", "cache-bytes", "segment-interval", "segment-bytes", "segment-min-bytes", "max-key-bytes",
		"max-value-bytes", "max-followers", "max-producers", "max-state-bytes", "forget-lost-state", "replica", "key-range", "poll-interval", "tail-bytes", "compaction", "retention", "retention-bytes", "retention-check-interval", "gc-interval", "gc-grace",
		"disk-cache", "disk-cache-bytes", "body-limit", "append-timeout", "shutdown-timeout", "log-level", "log-format"} {
		_, rest, found := strings.Cut(help, "\n      --"+flag+" ")
		require.True(t, found, flag)
		text, _, _ := strings.Cut(rest, "\n      --")
		require.Contains(t, strings.Join(strings.Fields(text), " "), "(default ", flag) // wherever its lines are broken
	}
	require.Contains(t, help, "(default 64MiB)")
	require.Contains(t, help, "ANNALS_FLUSH_INTERVAL")
}

func TestUsageErrors(t *testing.T) {
	for _, test := range []struct {
		args []string
		want string
	}{
		{[]string{"nonsense"}, `annals: unknown command "nonsense" for "annals"`},
		{[]string{"serv"}, `annals: unknown command "serv" for "annals"; do you mean serve?`},
		{[]string{"--nonsense"}, "annals: unknown flag: --nonsense"},
		{[]string{"scan"}, "annals scan: KEY is missing"},
		{[]string{"scan", "a", "b"}, `annals scan: unexpected argument "b"`},
		{[]string{"scan", "--last", "0", "k"}, "annals scan: --last: 0 is out of range: it must be from 1 to 10000"},
		{[]string{"scan", "--last", "1", "--limit", "1", "--from", "3", "--to", "2", "k"},
			"annals scan: 2 faults:\n  --from 3 is above --to 2\n  --last and --limit exclude each other"},
		{[]string{"scan", "--follow", "--to", "2", "k"}, "annals scan: --follow and --to exclude each other"},
		{[]string{"append", "--skip", "-1"}, `annals append: --skip: "-1" is not a whole number`},
		{[]string{"append", "--producer", "p"}, "annals append: --producer and --producer-seq need each other"},
		{[]string{"append", "--producer", "", "--producer-seq", "0"}, "annals append: --producer: a producer's name has 1 to 128 bytes of UTF-8"},
		{[]string{"append", "--expect-next", "-1"}, `annals append: --expect-next: "-1" is not a whole number`},
		{[]string{"append", "file"}, `annals append: unexpected argument "file"`},
		{[]string{"append", "--server", "nowhere"}, `annals append: --server: "nowhere" is not a URL such as http://127.0.0.1:8080`},
		{[]string{"version", "x"}, `annals version: unexpected argument "x"`},
	} {
		status, stdout, stderr := runIn(test.args...)
		require.Equal(t, exitUsage, status, "%v", test.args)
		require.Empty(t, stdout)
		require.True(t, strings.HasPrefix(stderr, test.want+"\n"), stderr)
	}
}

func TestVersion(t *testing.T) {
	status, stdout, _ := runIn("version")
	require.Equal(t, exitOK, status)
	require.True(t, strings.HasPrefix(stdout, "annals "), stdout)
	require.Contains(t, stdout, "go1.")
}

func TestAppendMissingFile(t *testing.T) {
	status, _, stderr := runIn("append", "--file", "does-not-exist")
	require.Equal(t, exitFailure, status)
	require.Equal(t, "annals append: open does-not-exist: no such file or directory\n", stderr)
}
