package server

import (
	"encoding/base64"
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// oneIn is true once in n times.
func oneIn(t *rapid.T, n int, label string) bool { return rapid.IntRange(1, n).Draw(t, label) == 1 }

// drawValue draws what a schema allows, and now and then something else.
func drawValue(t *rapid.T, schema *openapi3.Schema, label string) any {
	if oneIn(t, 40, label+" is wrong") {
		return rapid.SampledFrom([]any{nil, true, -1, 1.5, 7, "!", "", []any{1}, map[string]any{"x": 1}}).Draw(t, label)
	}
	switch {
	case schema.Type.Is(openapi3.TypeObject):
		o := map[string]any{}
		for _, name := range slices.Sorted(maps.Keys(schema.Properties)) {
			p := schema.Properties[name]
			if slices.Contains(schema.Required, name) && !oneIn(t, 40, label+" lacks "+name) || rapid.Bool().Draw(t, label+" has "+name) {
				o[name] = drawValue(t, p.Value, label+"."+name)
			}
		}
		return o
	case schema.Type.Is(openapi3.TypeArray):
		list := []any{}
		for range rapid.IntRange(0, 3).Draw(t, label+" items") {
			list = append(list, drawValue(t, schema.Items.Value, label))
		}
		return list
	case schema.Type.Is(openapi3.TypeInteger):
		return rapid.SampledFrom([]uint64{0, 1, 2, 3, 4, 5, 1 << 40, 1<<64 - 1}).Draw(t, label)
	case schema.Type.Is(openapi3.TypeBoolean):
		return rapid.Bool().Draw(t, label)
	case schema.Format == "byte":
		key := rapid.SampledFrom([]string{"k", "", "key/2", "z", "\xff"}).Draw(t, label)
		return base64.StdEncoding.EncodeToString([]byte(key))
	}
	return rapid.SampledFrom([]string{"c", "p", "", "a/b", "é"}).Draw(t, label)
}

// drawRequest draws a request of an operation as the document has it.
func drawRequest(t *rapid.T, q *request) surfaceRequest {
	r := surfaceRequest{chunked: rapid.Bool().Draw(t, "chunked"), replica: rapid.Bool().Draw(t, "replica")}
	r.method = byte(slices.Index(surfaceMethods, q.method))
	if q.method == http.MethodGet && oneIn(t, 10, "HEAD") {
		r.method = byte(slices.Index(surfaceMethods, http.MethodHead))
	}
	endpoint := q.path
	if q.path == consumerPath {
		endpoint = cursorsPath + "/"
		r.path = rapid.SampledFrom([]string{"c", "c%20d", "%2E", "a%2Fb"}).Draw(t, "consumer")
	}
	r.route = byte(slices.Index(surfaceRoutes, endpoint))
	for _, p := range q.op.Parameters {
		switch {
		case p.Value.In == openapi3.ParameterInHeader:
			if oneIn(t, 3, p.Value.Name) {
				r.headers += p.Value.Name + ": " + rapid.SampledFrom([]string{"0", "3", "x", "*"}).Draw(t, p.Value.Name) + "\n"
			}
		case p.Value.Name == "key" && !oneIn(t, 10, "no key"):
			r.query += "&key=" + rapid.SampledFrom([]string{"k", "", "key/2", "z"}).Draw(t, "key")
		case oneIn(t, 3, p.Value.Name):
			good, bad := valuesOf(p.Value)
			if !oneIn(t, 10, p.Value.Name+" is wrong") {
				bad = nil
			}
			r.query += "&" + p.Value.Name + "=" + rapid.SampledFrom(append(good, bad...)).Draw(t, p.Value.Name)
		}
	}
	if kinds := q.op.Responses.Status(http.StatusOK).Value.Content; rapid.Bool().Draw(t, "says what it accepts") {
		names := append(slices.Sorted(maps.Keys(kinds)), "*/*")
		r.headers += "Accept: " + rapid.SampledFrom(names).Draw(t, "accept") + "\n"
	}
	if q.op.RequestBody != nil {
		schema := q.op.RequestBody.Value.Content["application/json"].Schema.Value
		body, err := json.Marshal(drawValue(t, schema, "body"))
		require.NoError(t, err)
		r.body = body
	}
	return r
}

// Requests that are made of the document, good ones and others, get answers that it has.
func TestOpenAPIRandomRequests(t *testing.T) {
	list := operations(t)
	list = slices.DeleteFunc(list, func(q *request) bool { return len(q.op.Parameters) == 0 && q.op.RequestBody == nil })
	rapid.Check(t, func(rt *rapid.T) {
		drawn := drawRequest(rt, rapid.SampledFrom(list).Draw(rt, "operation"))
		req, ok := drawn.build()
		require.True(rt, ok, "%+v", drawn)
		rt.Logf("%s %s %q %s", req.Method, req.URL, drawn.headers, drawn.body)
		synctest.Test(t, func(t *testing.T) { requireAnswer(t, req, drawn.replica) })
	})
}
