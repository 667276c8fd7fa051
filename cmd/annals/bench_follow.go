package main

import (
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/annalsdb/annals/bench"
	"github.com/annalsdb/annals/bench/crowd"
)

const benchFollowLong = `Connects many followers, each to a key of its own, appends at a rate, and reports how long a record takes to its follower: from
when its append was due, from when it was acknowledged, and with --store from when the store had it. It checks that every follower gets
each record of its key once and in order; if not, the exit status is 1.

With --store the followers come through an HTTP server on a loopback port in this process, and records are appended to the engine itself, or with
--http through that server too. The followers are a process of their own, so that what the server takes can be told from what they
take; both share the machine's processors.`

// followClientsCommand is the hidden command that the followers' process runs.
const followClientsCommand = "follow-clients"

func newBenchFollow(p *process) *cobra.Command {
	o := bench.FollowOptions{FollowedShare: -1, Landings: new(bench.Landings), Settle: bench.FollowSettle}
	return newBenchCommand(p, benchCommand{
		use: "follow [flags]", short: "Measure followers", long: benchFollowLong,
		define: func(s *settings) { addFollowFlags(s, &o) },
		check: func(s *settings, c *benchConfig) {
			checkArrivals(s, o.Rate)
			checkForm(s, o.Form)
			if strings.HasPrefix(c.server.server, "https:") {
				s.fault("--server %s: the followers of this benchmark speak http:// only", c.server.server)
			}
			if o.Form == bench.FollowEngine && (c.server.server != "" || c.http) {
				s.fault("--form engine needs --store without --http: it follows the engine in this process")
			}
			if o.Form == bench.FollowEngine || o.ClientsInProcess {
				return
			}
			self, err := os.Executable()
			if err != nil {
				s.fault("the followers' process cannot be started: %v; use --clients-in-process", err)
				return
			}
			o.ClientProcess = []string{self, "bench", followClientsCommand}
		},
		workload: func() bench.Workload { return bench.NewFollow(o) },
		wrap:     o.Landings.Wrap,
	})
}

// ofForm are the flags that only one form of following has.
var ofForm = []struct {
	flag string
	form bench.FollowForm
}{{"streams-per-connection", bench.FollowForm(crowd.HTTP2)}, {"connections", bench.FollowForm(crowd.Shared)}}

// checkForm reports flags of another form.
func checkForm(s *settings, form bench.FollowForm) {
	for _, f := range ofForm {
		if s.changed(f.flag) && form != f.form {
			s.fault("--%s needs --form %s", f.flag, f.form)
		}
	}
	if s.changed("clients-in-process") && form == bench.FollowEngine {
		s.fault("--clients-in-process: --form engine has no other process")
	}
}

func addFollowFlags(s *settings, o *bench.FollowOptions) {
	addFlag(s, "followers", "count", "1000", &o.Followers, parseInt, "how many there are; the first of the keys are theirs")
	addFlag(s, "form", "h2|h1|shared|engine", "h2", &o.Form,
		parseChoice([]string{"h2", "h1", "shared", "engine"},
			[]bench.FollowForm{bench.FollowForm(crowd.HTTP2), bench.FollowForm(crowd.HTTP1), bench.FollowForm(crowd.Shared), bench.FollowEngine}),
		"an event stream each, many on one connection of HTTP/2; a connection of HTTP/1.1 each (two open files); all by few POST /follow; "+
			"or in this process without HTTP (only with --store)")
	addFlag(s, "streams-per-connection", "count", "100", &o.StreamsPerConnection, parseInt, "of h2; 100 is the most that annals takes")
	addFlag(s, "connections", "count", "1", &o.Connections, parseInt, "of shared: how many requests follow all keys")
	addFlag(s, "followed-share", "share", "", &o.FollowedShare, parseShare,
		"from 0 to 1: the share of the records whose key is followed (default: what comes of --keys and --key-distribution)")
	addBatchFlags(s, &o.BatchOptions, 1_000_000)
	addFlag(s, "appenders", "count", "256", &o.Appenders, parseInt, "how many appends may be under way at the same time")
	addRateFlags(s, "20MB", &o.Rate, &o.Arrivals)
	addFlag(s, "ack", "durable|memory", "durable", &o.Ack, durability, "what an append waits for")
	s.flags.BoolVar(&o.Idle, "idle", false, "append nothing: measure what followers take that wait")
	s.flags.BoolVar(&o.ClientsInProcess, "clients-in-process", false, "keep the followers in this process; its memory and time then have theirs too")
}

// newFollowClients is the followers' process.
func newFollowClients(p *process) *cobra.Command {
	cmd := &cobra.Command{Use: followClientsCommand, Short: "The followers of bench follow", Hidden: true}
	return newCommand(p, cmd, nil, func(*settings) {}, func(*settings) {}, func(*settings, []string) error {
		if crowd.Serve(p.stdin, p.stdout) != nil {
			return &exitError{exitFailure, nil} // the other side was told
		}
		return nil
	})
}
