package prometheus

import (
	"context"
	"errors"
	"io"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/textparse"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/util/teststorage"
	"github.com/stretchr/testify/require"
)

// language parses PromQL as Prometheus does without experimental features.
var language = parser.NewParser(parser.Options{})

// epoch is when the databases of the tests begin.
var epoch = time.Unix(1_800_000_000, 0)

// A database is a Prometheus without scraping.
type database struct {
	t      *testing.T
	store  *teststorage.TestStorage
	engine *promql.Engine
}

func newDatabase(t *testing.T) *database {
	return &database{t, teststorage.New(t), promql.NewEngine(promql.EngineOpts{
		MaxSamples: 1e7, Timeout: time.Minute, Parser: language, LookbackDelta: 5 * time.Minute,
		NoStepSubqueryIntervalFn: func(int64) int64 { return time.Minute.Milliseconds() },
	})}
}

// scrape takes a text of /metrics as scraped after a while, with more labels.
func (d *database) scrape(after time.Duration, text []byte, more ...string) {
	d.t.Helper()
	in, err := textparse.New(text, "text/plain; version=0.0.4", labels.NewSymbolTable(), textparse.ParserOptions{})
	require.NoError(d.t, err)
	out := d.store.Appender(d.t.Context())
	for {
		entry, err := in.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(d.t, err)
		if entry != textparse.EntrySeries {
			continue
		}
		var of labels.Labels
		in.Labels(&of)
		b := labels.NewBuilder(of)
		for i := 0; i < len(more); i += 2 {
			b.Set(more[i], more[i+1])
		}
		_, _, value := in.Series()
		_, err = out.Append(0, b.Labels(), epoch.Add(after).UnixMilli(), value)
		require.NoError(d.t, err)
	}
	require.NoError(d.t, out.Commit())
}

// series adds one in the notation of Prometheus's rule tests, such as `up{job="x"} 0+1x10`, a value a minute.
func (d *database) series(description string) {
	d.t.Helper()
	of, values, err := language.ParseSeriesDesc(description)
	require.NoError(d.t, err, description)
	out := d.store.Appender(d.t.Context())
	for i, v := range values {
		if v.Omitted {
			continue
		}
		_, err := out.Append(0, of, epoch.Add(time.Duration(i)*time.Minute).UnixMilli(), v.Value)
		require.NoError(d.t, err)
	}
	require.NoError(d.t, out.Commit())
}

// query evaluates an expression after a while.
func (d *database) query(after time.Duration, expr string) promql.Vector {
	d.t.Helper()
	q, err := d.engine.NewInstantQuery(context.Background(), d.store, nil, expr, epoch.Add(after))
	require.NoError(d.t, err, expr)
	defer q.Close()
	result := q.Exec(d.t.Context())
	require.NoError(d.t, result.Err, expr)
	v, err := result.Vector()
	require.NoError(d.t, err, expr)
	return append(promql.Vector(nil), v...) // which the engine uses again
}

// numbers are the samples that are not NaN.
func numbers(v promql.Vector) (n int) {
	for _, s := range v {
		if !math.IsNaN(s.F) {
			n++
		}
	}
	return n
}

// selectors calls f with every metric and its matchers in an expression.
func selectors(t *testing.T, expr string, f func(*parser.VectorSelector)) {
	t.Helper()
	parsed, err := language.ParseExpr(expr)
	require.NoError(t, err, expr)
	parser.Inspect(parsed, func(n parser.Node, _ []parser.Node) error {
		if s, ok := n.(*parser.VectorSelector); ok {
			f(s)
		}
		return nil
	})
}

// ownLabel tells the labels that Prometheus sets itself, in Kubernetes too.
func ownLabel(name string) bool {
	return name == model.MetricNameLabel || name == "job" || name == "instance" || name == "namespace" || strings.HasPrefix(name, "__")
}
