package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"mime"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/wire"
)

// What holds every answer of the server against openapi.yaml. The tests of this package pass their
// exchanges through it, those that are about something else too.

// described is openapi.yaml, with every object of it closed: a field that it does not have is an error.
var described = sync.OnceValues(func() (*openapi3.T, error) {
	doc, err := openapi3.NewLoader().LoadFromData(openAPI)
	if err != nil {
		return nil, err
	}
	closed := false
	err = doc.WalkSchemas(func(_ string, s *openapi3.SchemaRef) error {
		if s.Value.Type.Is(openapi3.TypeObject) {
			s.Value.AdditionalProperties.Has = &closed
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return doc, doc.Validate(context.Background(), openapi3.EnableExamplesValidation(), openapi3.EnableSchemaFormatValidation())
})

func description(t testing.TB) *openapi3.T {
	t.Helper()
	doc, err := described()
	require.NoError(t, err)
	return doc
}

// said is one answer, whose body was read to its end.
type said struct {
	method, path string // the path as it was sent, without the query
	status       int
	header       http.Header
	body         []byte
}

// maxChecked is the size up to which answers are held against their schemas: some tests read many megabytes.
const maxChecked = 1 << 20

// requireDescribed wants the answer to be one that the document has.
func requireDescribed(t testing.TB, a said) {
	t.Helper()
	if _, measured := t.(*testing.B); measured {
		return
	}
	if err := check(description(t), a); err != nil {
		require.NoError(t, err, "%s %s %d: %.300s", a.method, a.path, a.status, a.body)
	}
}

// check returns how the answer differs from what the document says.
func check(doc *openapi3.T, a said) error {
	item := doc.Paths.Value(documented(a.path))
	if item == nil {
		return checkOther(doc, a, http.StatusNotFound)
	}
	op := item.GetOperation(a.method)
	if a.method == http.MethodHead {
		op = item.Get
	}
	if op == nil {
		if op = item.Get; a.status == http.StatusServiceUnavailable && op != nil {
			return checkResponse(op.Responses.Status(a.status), a) // the log is opening, whatever is asked
		}
		if a.status == http.StatusNotFound && item.Post != nil && item.Post.Responses.Status(a.status) != nil {
			return checkOther(doc, a, a.status) // a replica does not have the path, whatever the method
		}
		return checkOther(doc, a, http.StatusMethodNotAllowed)
	}
	response := op.Responses.Status(a.status)
	if response == nil {
		return errors.New("the document does not have this status")
	}
	return checkResponse(response, a)
}

// documented returns the path as the document names it.
func documented(path string) string {
	if name, ok := strings.CutPrefix(path, cursorsPath+"/"); ok && name != "" && name != "." && name != ".." && !strings.Contains(name, "/") {
		return consumerPath
	}
	return path
}

// checkOther wants the answer of what the document does not have.
func checkOther(doc *openapi3.T, a said, status int) error {
	if a.status != status && a.status != http.StatusServiceUnavailable { // the log is opening, whatever is asked
		return errors.New("the document does not have this path or method")
	}
	if a.method == http.MethodHead {
		return nil
	}
	return checkJSON(doc.Components.Schemas["Error"].Value, a.body)
}

func checkResponse(response *openapi3.ResponseRef, a said) error {
	for name, h := range response.Value.Headers {
		text := a.header.Get(name)
		if text == "" && !h.Value.Required {
			continue
		}
		if err := checkText(h.Value.Schema.Value, text); err != nil {
			return fmt.Errorf("header %s: %w", name, err)
		}
	}
	if len(response.Value.Content) == 0 || a.method == http.MethodHead {
		if len(a.body) > 0 {
			return errors.New("it has a body")
		}
		return nil
	}
	kind, _, err := mime.ParseMediaType(a.header.Get("Content-Type"))
	if err != nil {
		return fmt.Errorf("content type: %w", err)
	}
	media := response.Value.Content[kind]
	switch {
	case media == nil:
		return fmt.Errorf("the document does not have the type %s", kind)
	case len(a.body) > maxChecked:
		return nil
	case kind == wire.TypeJSON:
		return checkJSON(media.Schema.Value, a.body)
	case kind == wire.TypeEvents, kind == wire.TypeLines:
		return checkStream(media, string(a.body))
	}
	return media.Schema.Value.VisitJSON(string(a.body))
}

// checkText holds the text of a header or a parameter against its schema.
func checkText(schema *openapi3.Schema, text string) error {
	if schema.Type.Is(openapi3.TypeInteger) {
		n, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			return err
		}
		return schema.VisitJSON(float64(n))
	}
	if text == "" {
		return errors.New("it is missing")
	}
	return schema.VisitJSON(text)
}

func checkJSON(schema *openapi3.Schema, body []byte) error {
	var v any
	if err := json.Unmarshal(body, &v); err != nil {
		return err
	}
	return schema.VisitJSON(v, openapi3.EnableFormatValidation())
}

// checkStream holds the items of a stream against what the document says of them, which OpenAPI cannot: their
// schemas are named in x-events, by the name of the event, and in x-lines.
func checkStream(media *openapi3.MediaType, body string) error {
	doc, err := described()
	if err != nil {
		return err
	}
	if lines, ok := media.Extensions["x-lines"].([]any); ok {
		for line := range strings.Lines(body) {
			one := func(name any) bool {
				return checkJSON(doc.Components.Schemas[name.(string)].Value, []byte(line)) == nil
			}
			if !slices.ContainsFunc(lines, one) {
				return fmt.Errorf("the line %s is not described", line)
			}
		}
		return nil
	}
	events := media.Extensions["x-events"].(map[string]any)
	for event := range strings.SplitSeq(body, "\n\n") {
		name, data := "message", ""
		for line := range strings.SplitSeq(event, "\n") {
			if rest, ok := strings.CutPrefix(line, "event: "); ok {
				name = rest
			}
			if rest, ok := strings.CutPrefix(line, "data: "); ok {
				data = rest
			}
		}
		if data == "" {
			continue // a comment, with or without an id
		}
		schema, ok := events[name].(string)
		if !ok {
			return fmt.Errorf("the event %s is not described", name)
		}
		if err := checkJSON(doc.Components.Schemas[schema].Value, []byte(data)); err != nil {
			return fmt.Errorf("event %s: %w", name, err)
		}
	}
	return nil
}
