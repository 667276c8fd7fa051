package telemetry

import (
	"bytes"
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	common "go.opentelemetry.io/proto/otlp/common/v1"
	"google.golang.org/protobuf/proto"
)

// collected is a span as a collector gets it.
type collected struct {
	trace, id, parent string
	name, kind        string
	failed            string // why; "": it did not
	attributes        map[string]any
	resource          map[string]any
}

// receiver is a collector that keeps what it gets, and can be broken.
type receiver struct {
	*httptest.Server
	mu      sync.Mutex
	spans   []collected
	headers http.Header
	answer  func(http.ResponseWriter, *http.Request) bool // reports whether it answered; nil: it does not
}

func newReceiver(t *testing.T) *receiver {
	r := &receiver{}
	r.Server = httptest.NewServer(r)
	t.Cleanup(r.Close)
	return r
}

func (r *receiver) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	if r.answer != nil && r.answer(w, q) {
		return
	}
	body, err := io.ReadAll(q.Body)
	var request collector.ExportTraceServiceRequest
	if err == nil {
		err = proto.Unmarshal(body, &request)
	}
	if err != nil || q.URL.Path != "/v1/traces" {
		http.Error(w, fmt.Sprint(q.URL.Path, err), http.StatusBadRequest)
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.headers = q.Header
	for _, of := range request.GetResourceSpans() {
		for _, scope := range of.GetScopeSpans() {
			for _, s := range scope.GetSpans() {
				r.spans = append(r.spans, collected{
					trace: hex.EncodeToString(s.GetTraceId()), id: hex.EncodeToString(s.GetSpanId()), parent: hex.EncodeToString(s.GetParentSpanId()),
					name: s.GetName(), kind: s.GetKind().String(), failed: s.GetStatus().GetMessage(),
					attributes: values(s.GetAttributes()), resource: values(of.GetResource().GetAttributes()),
				})
			}
		}
	}
}

func values(attributes []*common.KeyValue) map[string]any {
	m := map[string]any{}
	for _, a := range attributes {
		switch v := a.GetValue().GetValue().(type) {
		case *common.AnyValue_StringValue:
			m[a.GetKey()] = v.StringValue
		case *common.AnyValue_IntValue:
			m[a.GetKey()] = v.IntValue
		case *common.AnyValue_DoubleValue:
			m[a.GetKey()] = v.DoubleValue
		}
	}
	return m
}

// named returns the spans with a name, in the order in which they came.
func (r *receiver) named(name string) (found []collected) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range r.spans {
		if s.name == name {
			found = append(found, s)
		}
	}
	return found
}

// under returns those of the spans that are parts of one.
func under(parent collected, spans []collected) (found []collected) {
	for _, s := range spans {
		if s.parent == parent.id && s.trace == parent.trace {
			found = append(found, s)
		}
	}
	return found
}

// lines is a log.
type lines struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lines) all() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Split(strings.TrimSpace(l.text.String()), "\n")
}

// begin starts to send to a collector, with some variables beside its address.
func begin(t *testing.T, url string, variables map[string]string) (*Traces, *lines) {
	t.Helper()
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
	for name, value := range variables {
		t.Setenv(name, value)
	}
	c, faults := Read(os.Getenv)
	require.Empty(t, faults)
	log := &lines{}
	traces, err := Start(t.Context(), c, Options{Version: "v1", Role: "writer", Logger: slog.New(slog.NewTextHandler(log, nil))})
	require.NoError(t, err)
	t.Cleanup(func() {
		ended, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		_ = traces.Shutdown(ended) // most tests have done so
	})
	return traces, log
}
