package prometheus

import (
	"fmt"
	"log/slog"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/stretchr/testify/require"
)

// rules reads a rule file as Prometheus does, templates of annotations included.
func rules(t *testing.T, file string) (all []rulefmt.Rule) {
	t.Helper()
	groups, errs := rulefmt.ParseFile(file, false, model.UTF8Validation, language, slog.New(slog.DiscardHandler))
	require.Empty(t, errs)
	for _, g := range groups.Groups {
		all = append(all, g.Rules...)
	}
	require.NotEmpty(t, all)
	return all
}

func recorded(t *testing.T) map[string]bool {
	t.Helper()
	names := make(map[string]bool)
	for _, r := range rules(t, "recording.yaml") {
		require.NotEmpty(t, r.Record)
		names[r.Record] = true
	}
	return names
}

// Rules name what the real servers tell. What is recorded says something; nothing of servers that are well alerts.
func TestRulesOfRealServers(t *testing.T) {
	d := live(t)
	for _, r := range rules(t, "recording.yaml") {
		require.Empty(t, d.unknown(r.Expr, recorded(t)), r.Record)
		require.NotZero(t, numbers(d.query(newest, r.Expr)), "%s records nothing", r.Record)
	}
	for _, r := range rules(t, "alerts.yaml") {
		require.Empty(t, d.unknown(r.Expr, recorded(t)), r.Alert)
		if r.For == 0 { // the others need a longer history: TestAlerts
			require.Empty(t, d.query(newest, r.Expr), "%s fires though all is well", r.Alert)
		}
	}
}

// Each alert has a name, a severity, and a runbook that exists.
func TestAlertsHaveRunbooks(t *testing.T) {
	names := make(map[string]bool)
	for _, r := range rules(t, "alerts.yaml") {
		require.Regexp(t, "^Annals[A-Z]", r.Alert)
		require.False(t, names[r.Alert], "two alerts are called %s", r.Alert)
		names[r.Alert] = true
		require.Contains(t, []string{"critical", "warning"}, r.Labels["severity"], r.Alert)
		require.NotEmpty(t, r.Annotations["summary"], r.Alert)
		file, heading, ok := strings.Cut(r.Annotations["runbook"], "#")
		require.True(t, ok, r.Alert)
		text, err := os.ReadFile("../../" + file)
		require.NoError(t, err, r.Alert)
		require.Contains(t, anchors(string(text)), heading, "%s: %s has no such heading", r.Alert, file)
	}
	for name := range names {
		require.Contains(t, histories, name, "no history says when the alert fires")
	}
}

// anchors are those that GitHub makes of headings.
func anchors(markdown string) (all []string) {
	for _, heading := range regexp.MustCompile(`(?m)^#+ +(.*)$`).FindAllStringSubmatch(markdown, -1) {
		words := regexp.MustCompile(`[^\p{L}\p{N} _-]`).ReplaceAllString(strings.ToLower(heading[1]), "")
		all = append(all, strings.ReplaceAll(words, " ", "-"))
	}
	return all
}

// What docs/METRICS.md says to alert on is alerted on, in the same words.
func TestAlertsOfTheDocs(t *testing.T) {
	text, err := os.ReadFile("../../docs/METRICS.md")
	require.NoError(t, err)
	_, section, ok := strings.Cut(string(text), "## What to alert on")
	require.True(t, ok)
	exprs := make(map[string]bool)
	for _, r := range rules(t, "alerts.yaml") {
		exprs[r.Expr] = true
	}
	rows := regexp.MustCompile("(?m)^\\| [^|]+ \\| `((?:[^`])+)`").FindAllStringSubmatch(section, -1)
	require.NotEmpty(t, rows)
	for _, row := range rows {
		expr := strings.ReplaceAll(row[1], `\|`, "|")
		require.True(t, exprs[expr], "alerts.yaml has no alert with %s", expr)
	}
}

// A history is series, a value a minute, that an alert must notice, and some that it must not. Both go on for long enough.
type history struct {
	bad, good []string
}

const (
	server = `{job="annals",instance="one"}`
	of     = `job="annals",instance="one",`
)

var histories = map[string]history{
	"AnnalsGone": {bad: []string{`up{job="annals"} 1x200`}, good: []string{`annals_ready` + server + ` 1x200`}},
	"AnnalsDown": {bad: []string{`up{job="annals",instance="one"} 0x200`, `annals_ready{job="annals",instance="two"} 1x200`}, good: []string{`up{job="annals",instance="one"} 1x195 0 1 0 1 1 1`, `up{job="node",instance="one"} 0x200`}},
	"AnnalsNoWriter": {
		bad:  []string{`annals_ready` + server + ` 1x200`, `annals_replica_manifest_polls_total` + server + ` 1+60x200`},
		good: []string{`annals_ready` + server + ` 0x200`, `annals_replica_manifest_polls_total` + server + ` 0x200`, `annals_ready{job="annals",instance="two"} 1x200`, `annals_replica_manifest_polls_total{job="annals",instance="two"} 1+60x200`},
	},
	"AnnalsNotReady":       {bad: []string{`annals_ready` + server + ` 0x200`}, good: []string{`annals_ready` + server + ` 1x195 0 1 0 1 1 1`}},
	"AnnalsStoreRefuses":   ofStore("credentials", "not_found"),
	"AnnalsStoreSilent":    {bad: []string{`annals_store_answer_age_seconds{` + of + `op="get"} 31x200`}, good: []string{`annals_store_answer_age_seconds{` + of + `op="get"} 1x200`, `annals_store_answer_age_seconds{` + of + `op="put"} 600x200`}},
	"AnnalsTracesLost":     {bad: []string{`annals_traces_spans_total{` + of + `result="dropped"} 0+1x200`}, good: []string{`annals_traces_spans_total{` + of + `result="dropped"} 7x200`, `annals_traces_spans_total{` + of + `result="exported"} 0+100x200`}},
	"AnnalsStoreFails":     ofStore("unavailable", "canceled"),
	"AnnalsStoreThrottles": {bad: []string{`annals_store_http_requests_total{` + of + `operation="PutObject",answer="throttled"} 0+100x200`}, good: []string{`annals_store_http_requests_total{` + of + `operation="PutObject",answer="throttled"} 0+30x200`, `annals_store_http_requests_total{` + of + `operation="PutObject",answer="ok"} 0+6000x200`}},
	"AnnalsPutsSlow": {
		bad:  buckets("put", "0+90x200", "0+100x200"),
		good: append(buckets("put", "0+100x200", "0+100x200"), buckets("get", "0+0x200", "0+100x200")...),
	},
	"AnnalsAppendsNotDurable": {
		bad:  []string{`annals_next_sequence` + server + ` 500x200`, `annals_durable_sequence` + server + ` 400x200`, `annals_wal_objects_total` + server + ` 9x200`},
		good: []string{`annals_next_sequence` + server + ` 500+10x200`, `annals_durable_sequence` + server + ` 400+10x200`, `annals_wal_objects_total` + server + ` 9+5x200`},
	},
	"AnnalsAppendsRefused":   counter("annals_appends_overloaded_total", "0+5x200", "7x200"),
	"AnnalsFlushesFail":      counter("annals_flush_failures_total", "0+1x200", "7x190 8 9 9 9 9 9 9 9 9 9"),
	"AnnalsFollowersRefused": counter("annals_http_followers_refused_total", "0+5x200", "7x200"),
	"AnnalsReplicaBehind":    counter("annals_replica_lag_seconds", "60x200", "1x197 60 1 60"),
	"AnnalsViewOld":          counter("annals_head_age_seconds", "61x200", "3x200"),
	"AnnalsCompactionBehind": counter("annals_compaction_debt_bytes", "70e9x200", "70e9x55 1e9 70e9x55 1e9 70e9x55 1e9 70e9x30"),
	"AnnalsCompactionsFail":  counter("annals_compaction_failures_total", "0+1x200", "0x190 1x10"),
	"AnnalsRetentionFails":   counter("annals_retention_failures_total", "0+1x200", "0x190 1x10"),
	"AnnalsGarbageStays": {
		bad: []string{`annals_gc_rounds_total` + server + ` 7x200`, `annals_gc_failures_total` + server + ` 0x200`},
		good: []string{`annals_gc_rounds_total` + server + ` 0+1x200`, `annals_gc_failures_total` + server + ` 0x200`, `annals_replica_manifest_polls_total` + server + ` 0x200`,
			`annals_gc_rounds_total{job="annals",instance="replica"} 0x200`, `annals_replica_manifest_polls_total{job="annals",instance="replica"} 0+60x200`},
	},
	"AnnalsLocalDiskBad":       counter("annals_disk_cache_errors_total", "0+1x200", "7x200"),
	"AnnalsTrouble":            {bad: []string{`annals_trouble{` + of + `kind="wal_write"} 1x200`}, good: []string{`annals_trouble{` + of + `kind="wal_write"} 0x190 1 1 0x9`}},
	"AnnalsReloadFails":        {bad: []string{`annals_auth_reload_failing` + server + ` 0x200`, `annals_tls_reload_failing` + server + ` 1x200`}, good: []string{`annals_auth_reload_failing` + server + ` 0x200`, `annals_tls_reload_failing` + server + ` 0x200`}},
	"AnnalsCertificateEnds":    counter("annals_tls_certificate_expiry_timestamp_seconds", fmt.Sprintf("%dx200", epoch.Unix()+6*86400), fmt.Sprintf("%dx200", epoch.Unix()+8*86400)),
	"AnnalsConnectionsRefused": counter("annals_http_connections_refused_total", "0+5x200", "7x200"),
	"AnnalsRefusesClients": {
		bad:  []string{`annals_auth_refused_total{` + of + `reason="unknown"} 0+100x200`},
		good: []string{`annals_auth_refused_total{` + of + `reason="missing"} 0+100x200`, `annals_auth_refused_total{` + of + `reason="unknown"} 0+1x200`},
	},
}

func counter(name, bad, good string) history {
	return history{[]string{name + server + " " + bad}, []string{name + server + " " + good}}
}

func ofStore(bad, good string) history {
	line := func(result string) []string {
		return []string{`annals_store_requests_total{` + of + `op="get",result="` + result + `"} 0+30x200`}
	}
	return history{line(bad), line(good)}
}

// buckets are a histogram with what took at most a second, and what took longer.
func buckets(op, fast, all string) []string {
	return []string{
		`annals_store_request_seconds_bucket{` + of + `op="` + op + `",le="1"} ` + fast,
		`annals_store_request_seconds_bucket{` + of + `op="` + op + `",le="8"} ` + all,
		`annals_store_request_seconds_bucket{` + of + `op="` + op + `",le="+Inf"} ` + all,
	}
}

// Each alert fires at the end of a bad history, and at no time of a good one.
func TestAlerts(t *testing.T) {
	const end = 195 * time.Minute
	for _, r := range rules(t, "alerts.yaml") {
		t.Run(r.Alert, func(t *testing.T) {
			d := newDatabase(t)
			for _, s := range histories[r.Alert].bad {
				d.series(s)
			}
			require.True(t, d.fires(r, end), "it does not fire")
			d = newDatabase(t)
			for _, s := range histories[r.Alert].good {
				d.series(s)
			}
			for at := time.Duration(r.For); at <= end; at += time.Minute {
				require.False(t, d.fires(r, at), "it fires after %v", at)
			}
		})
	}
}

// fires reports whether an alert has been true for as long as it says.
func (d *database) fires(r rulefmt.Rule, at time.Duration) bool {
	d.t.Helper()
	for back := time.Duration(0); back <= time.Duration(r.For); back += time.Minute {
		if len(d.query(at-back, r.Expr)) == 0 {
			return false
		}
	}
	return true
}
