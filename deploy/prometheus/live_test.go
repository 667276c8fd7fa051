// Package prometheus holds the alert and recording rules, and the tests that hold them and the dashboard of Grafana
// against the metrics of real servers. There is no other code in it.
package prometheus

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/auth"
	"github.com/annalsdb/annals/deploy/internal/binary"
	"github.com/annalsdb/annals/objstore/s3/s3fake"
)

var program string

func TestMain(m *testing.M) { binary.Main(m, &program) }

const (
	scrapes  = 4
	interval = time.Minute
	// rateInterval stands for Grafana's $__rate_interval.
	rateInterval = "4m"
)

// newest is when the last scrape was.
const newest = (scrapes - 1) * interval

// live is what a Prometheus knows of a writer and a replica on S3 that were used.
func live(t *testing.T) *database {
	s3 := s3fake.New(t)
	collector := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	t.Cleanup(collector.Close)
	environ := []string{"AWS_ACCESS_KEY_ID=key", "AWS_SECRET_ACCESS_KEY=secret", "AWS_EC2_METADATA_DISABLED=true",
		"OTEL_EXPORTER_OTLP_ENDPOINT=" + collector.URL,
		"ANNALS_STORE=s3://" + s3fake.Bucket + "/log?endpoint=" + s3.URL + "&region=us-east-1&path_style=true"}
	tokens := t.TempDir() + "/tokens.yaml"
	require.NoError(t, os.WriteFile(tokens, []byte(tokenFile()), 0o600))
	flags := func(admin string, more ...string) []string {
		return append([]string{"--tokens", tokens, "--admin-listen", admin, "--disk-cache", t.TempDir(), "--cache-bytes", "1MiB"}, more...)
	}
	// What is read below lies in tables, not in memory.
	before := binary.Start(t, program, environ, "--segment-bytes", "64KiB", "--segment-min-bytes", "1KiB", "--flush-interval", "1ms")
	for range 20 {
		for i := range scrapes {
			before.Post(t, "/api/v1/log/append", strings.NewReader(record(oldKey(i))))
		}
	}
	before.Stop(t)
	d := newDatabase(t)
	admins := map[string]string{"writer": binary.FreeAddress(t), "replica": binary.FreeAddress(t)}
	writer := binary.Start(t, program, environ, flags(admins["writer"], "--segment-bytes", "64KiB", "--segment-min-bytes", "1KiB", "--gc-interval", "1s", "--flush-interval", "1ms")...)
	replica := binary.Start(t, program, environ, flags(admins["replica"], "--replica", "--poll-interval", "10ms")...)
	writer.Token, replica.Token = token, token
	for i := range scrapes {
		use(t, writer, replica, oldKey(i))
		for name, admin := range admins {
			text := (&binary.Server{URL: "http://" + admin}).Get(t, "/metrics")
			text = append(text, "up 1\n"...) // as Prometheus adds it
			d.scrape(time.Duration(i)*interval, text, "job", "annals", "instance", name)
		}
	}
	return d
}

// token is that of the tests.
var token = auth.Generate()

// tokenFile lets it in.
func tokenFile() string {
	return fmt.Sprintf("tokens:\n  - name: test\n    hash: %s\n    scopes: [read, append, admin]\n", auth.HashOf(token))
}

func oldKey(i int) string { return fmt.Sprint("old", i) }

// record is the body of an append of one record of a few kilobytes.
func record(key string) string {
	return fmt.Sprintf(`{"records":[{"key":%q,"value":%q}]}`, base64.StdEncoding.EncodeToString([]byte(key)), strings.Repeat("AAAA", 2000))
}

// use appends, and reads what is new and what is old.
func use(t *testing.T, writer, replica *binary.Server, old string) {
	t.Helper()
	var last struct {
		StartSequence uint64 `json:"startSequence"`
	}
	for range 20 {
		writer.PostInto(t, "/api/v1/log/append", record("new"), &last)
	}
	for _, s := range []*binary.Server{writer, replica} {
		s.Get(t, fmt.Sprintf("/api/v1/log/scan?key=new&min_sequence=%d", last.StartSequence))
		s.Get(t, fmt.Sprintf("/api/v1/log/scan?key=new&start_seq=%d&follow=true", last.StartSequence))
		s.Get(t, "/api/v1/log/scan?key="+old)
		s.Get(t, "/api/v1/log/count?key=new")
		s.Get(t, "/api/v1/log/keys")
	}
}

// unknown says what is wrong with an expression's names, or nothing: every metric must be there, with the labels that are asked for
// or grouped by, and some series must have such values. Recorded metrics are those of recording.yaml.
func (d *database) unknown(expr string, recorded map[string]bool) (faults []string) {
	d.t.Helper()
	selectors(d.t, expr, func(s *parser.VectorSelector) {
		if !recorded[s.Name] {
			faults = append(faults, d.unknownOf(s)...)
		}
	})
	parsed, err := language.ParseExpr(expr)
	require.NoError(d.t, err)
	parser.Inspect(parsed, func(n parser.Node, _ []parser.Node) error {
		a, ok := n.(*parser.AggregateExpr)
		if !ok {
			return nil
		}
		selectors(d.t, a.Expr.String(), func(s *parser.VectorSelector) {
			for _, label := range a.Grouping {
				if all := d.query(newest, s.Name); len(all) > 0 && !ownLabel(label) && !all[0].Metric.Has(label) {
					faults = append(faults, fmt.Sprintf("%s has no label %s to group by", s.Name, label))
				}
			}
		})
		return nil
	})
	return faults
}

func (d *database) unknownOf(s *parser.VectorSelector) (faults []string) {
	all := d.query(newest, s.Name)
	if len(all) == 0 {
		return []string{"there is no metric " + s.Name}
	}
	for _, m := range s.LabelMatchers {
		switch {
		case ownLabel(m.Name):
		case !all[0].Metric.Has(m.Name):
			faults = append(faults, fmt.Sprintf("%s has no label %s", s.Name, m.Name))
		case s.Name == "http_requests_total" && m.Name == "status":
			// It gets a series when a status was answered for the first time.
		case !slices.ContainsFunc(all, func(series promql.Sample) bool { return m.Matches(series.Metric.Get(m.Name)) }):
			faults = append(faults, fmt.Sprintf("no series of %s has %s", s.Name, m))
		}
	}
	return faults
}

// A test of the test: what does not exist is noticed.
func TestUnknownNamesAreNoticed(t *testing.T) {
	d := newDatabase(t)
	d.scrape(newest, []byte("a_total{op=\"put\"} 1\n"), "job", "annals")
	require.Empty(t, d.unknown(`sum by (op) (a_total{op="put",job="annals"})`, nil))
	for expr, fault := range map[string]string{
		`b_total`:                 "there is no metric b_total",
		`a_total{what="x"}`:       "a_total has no label what",
		`a_total{op=~"get|list"}`: "no series of a_total has op",
		`sum by (what) (a_total)`: "a_total has no label what to group by",
	} {
		require.Contains(t, strings.Join(d.unknown(expr, nil), "; "), fault, expr)
	}
}
