package server

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/auth"
	"github.com/annalsdb/annals/engine"
	"github.com/annalsdb/annals/objstore/mem"
	"github.com/annalsdb/annals/wire"
)

// openapi.yaml has every route of the server, and the server every one of openapi.yaml.
func TestOpenAPIHasTheRoutes(t *testing.T) {
	s, err := New(Options{DB: openDB(t, mem.New(mem.Options{}), engine.Options{})})
	require.NoError(t, err)
	served, open := map[string][]string{}, map[string]bool{}
	for endpoint, rt := range s.routes {
		for method := range strings.SplitSeq(rt.allow, ", ") {
			if method != http.MethodHead { // it goes with GET
				served[endpoint] = append(served[endpoint], method)
			}
		}
		slices.Sort(served[endpoint])
		open[endpoint] = rt.scope == scopeOpen
	}
	doc := description(t)
	have := map[string][]string{}
	for path, item := range doc.Paths.Map() {
		have[path] = slices.Sorted(maps.Keys(item.Operations()))
		for method, op := range item.Operations() {
			require.Equal(t, open[path], op.Security != nil && len(*op.Security) == 0, "%s %s: security", method, path)
		}
	}
	require.Equal(t, served, have)
}

func TestOpenAPIIsServed(t *testing.T) {
	r := start(t, Options{})
	got := r.get(openAPIPath)
	require.Equal(t, 200, got.status)
	require.Equal(t, "application/yaml", got.header.Get("Content-Type"))
	require.Equal(t, string(openAPI), got.body)
	tag := got.header.Get("ETag")
	for _, has := range []string{tag, "W/" + tag, `"x", ` + tag, "*"} {
		again := r.get(openAPIPath, "If-None-Match", has)
		require.Equal(t, 304, again.status, has)
		require.Empty(t, again.body)
		require.Equal(t, tag, again.header.Get("ETag"))
	}
	require.Equal(t, 200, r.get(openAPIPath, "If-None-Match", `"x"`).status)
	head := r.do("HEAD", openAPIPath, nil)
	require.Equal(t, strconv.Itoa(len(openAPI)), head.header.Get("Content-Length"))
}

// request is a request of one operation of openapi.yaml, as good as its examples, that a test breaks.
type request struct {
	op     *openapi3.Operation
	method string
	path   string // of the document
	target url.URL
	header http.Header
	body   io.Reader
	leaves bool // the client, when the answer begins
}

// operations returns a good request for each operation.
func operations(t *testing.T) (list []*request) {
	t.Helper()
	doc := description(t)
	for _, path := range slices.Sorted(maps.Keys(doc.Paths.Map())) {
		item := doc.Paths.Value(path)
		for _, method := range slices.Sorted(maps.Keys(item.Operations())) {
			q := &request{op: item.GetOperation(method), method: method, path: path, header: http.Header{}}
			q.target.Path = strings.Replace(path, "{consumer}", "c", 1)
			if required := map[string]bool{"scan": true, "count": true}; required[q.op.OperationID] {
				q.target.RawQuery = "key=k"
			}
			if q.op.RequestBody != nil {
				examples := q.op.RequestBody.Value.Content[wire.TypeJSON].Examples
				q.body = example(t, examples["one"])
			}
			list = append(list, q)
		}
	}
	return list
}

// example returns a body.
func example(t *testing.T, e *openapi3.ExampleRef) io.Reader {
	t.Helper()
	require.NotNil(t, e)
	data, err := json.Marshal(e.Value.Value)
	require.NoError(t, err)
	return bytes.NewReader(data)
}

// firstWrite is an answer whose client goes away when it has the first piece, or the header: streams have no end.
type firstWrite struct {
	*httptest.ResponseRecorder
	gone   context.CancelFunc
	leaves bool
}

func (w *firstWrite) WriteHeader(status int) {
	w.ResponseRecorder.WriteHeader(status)
	if w.leaves {
		w.gone()
	}
}

func (w *firstWrite) Write(p []byte) (int, error) {
	defer w.gone()
	return w.ResponseRecorder.Write(p)
}

// send sends the request, wants the answer to be described, and returns its status.
func (q *request) send(t *testing.T, h http.Handler) int {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	req := httptest.NewRequestWithContext(ctx, q.method, q.target.String(), q.body)
	req.Header = q.header
	w := &firstWrite{httptest.NewRecorder(), cancel, q.leaves}
	h.ServeHTTP(w, req)
	requireDescribed(t, said{q.method, req.URL.EscapedPath(), w.Code, w.Header(), w.Body.Bytes()})
	return w.Code
}

// brokenDB is a log whose operations fail: appends, setting and deleting of cursors, and reads, each in its way. What is
// nil works.
type brokenDB struct {
	*engine.DB
	appends, sets, deletes, reads error
}

func (d *brokenDB) Append(ctx context.Context, recs []engine.Record, o engine.AppendOptions) (engine.AppendResult, error) {
	if d.appends == nil {
		return d.DB.Append(ctx, recs, o)
	}
	return engine.AppendResult{}, &engine.AppendError{Outcome: engine.Unknown, Err: d.appends}
}

func (d *brokenDB) SetCursors(ctx context.Context, consumer string, cursors []engine.Cursor, o engine.CursorOptions) ([]engine.Cursor, error) {
	if d.sets == nil {
		return d.DB.SetCursors(ctx, consumer, cursors, o)
	}
	return nil, d.sets
}

func (d *brokenDB) DeleteCursors(ctx context.Context, consumer string, keys ...[]byte) error {
	if d.deletes == nil {
		return d.DB.DeleteCursors(ctx, consumer, keys...)
	}
	return d.deletes
}

func (d *brokenDB) Count(ctx context.Context, key []byte, r engine.Range) (uint64, error) {
	if d.reads == nil {
		return d.DB.Count(ctx, key, r)
	}
	return 0, d.reads
}

func (d *brokenDB) Keys(ctx context.Context, o engine.KeysOptions) (engine.KeysPage, error) {
	if d.reads == nil {
		return d.DB.Keys(ctx, o)
	}
	return engine.KeysPage{}, d.reads
}

func (d *brokenDB) Segments(ctx context.Context, o engine.SegmentsOptions) (engine.SegmentsPage, error) {
	if d.reads == nil {
		return d.DB.Segments(ctx, o)
	}
	return engine.SegmentsPage{}, d.reads
}

func (d *brokenDB) Wait(ctx context.Context, key []byte, r engine.Range) error {
	if d.reads == nil {
		return d.DB.Wait(ctx, key, r)
	}
	return d.reads
}

func (d *brokenDB) Follow(ctx context.Context, streams ...engine.Stream) (*engine.Follower, error) {
	if d.reads == nil {
		return d.DB.Follow(ctx, streams...)
	}
	return nil, d.reads
}

func (d *brokenDB) Cursors(ctx context.Context, consumer string, o engine.CursorsOptions) (engine.CursorsPage, error) {
	if d.reads == nil {
		return d.DB.Cursors(ctx, consumer, o)
	}
	return engine.CursorsPage{}, d.reads
}

func (d *brokenDB) Consumers(ctx context.Context, after string, limit int) (engine.ConsumersPage, error) {
	if d.reads == nil {
		return d.DB.Consumers(ctx, after, limit)
	}
	return engine.ConsumersPage{}, d.reads
}

// broken fails in all that it does.
func broken(db *engine.DB, why error) *brokenDB { return &brokenDB{db, why, why, why, why} }

// stuckBody is a request's body that does not arrive.
type stuckBody struct{}

func (stuckBody) Read([]byte) (int, error) { return 0, os.ErrDeadlineExceeded }

// provoked are ways to make a server answer with each status. Whatever the server answers has to be described; and
// an operation that has the status has to give it.
func provoked(t *testing.T) map[int]func(*request) http.Handler {
	store := mem.New(mem.Options{})
	db := openDB(t, store, engine.Options{})
	for _, key := range []string{"k", "user/42"} {
		_, err := db.Append(t.Context(), []engine.Record{{Key: []byte(key), Value: []byte("v")}}, engine.AppendOptions{})
		require.NoError(t, err)
	}
	serving := func(o Options) *Server {
		s, err := New(o)
		require.NoError(t, err)
		t.Cleanup(s.drain)
		return s
	}
	good := serving(Options{DB: db})
	small := serving(Options{DB: db, BodyLimit: 16, InFlightBytes: 32})
	full := serving(Options{DB: &brokenDB{DB: db, deletes: engine.ErrOverloaded}})
	full.bodies.take(full.bodies.total)
	replicaOf := func(keys engine.KeyRange) *Server {
		reader, err := engine.OpenReader(t.Context(), store, engine.ReaderOptions{Keys: keys})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, reader.Close(context.Background())) })
		return serving(Options{DB: reader, Admin: NewAdmin(AdminOptions{})})
	}
	replica, elsewhere := replicaOf(engine.KeyRange{}), replicaOf(engine.KeyRange{Start: []byte("z")})
	failing := func(db *brokenDB) func(*request) http.Handler {
		s := serving(Options{DB: db})
		return func(q *request) http.Handler {
			if q.op.OperationID == "scan" {
				q.target.RawQuery += "&min_sequence=99&timeout_ms=1" // it waits, or fails to
			}
			return s
		}
	}
	var tokens bearers
	tokens.add("data", auth.Read|auth.Append)
	tokens.add("process", auth.Admin)
	guarded := serving(Options{DB: db, Tokens: tokens.tokens(t)})
	return map[int]func(*request) http.Handler{
		http.StatusOK: func(*request) http.Handler { return good },
		http.StatusNotModified: func(q *request) http.Handler {
			q.header.Set("If-None-Match", "*")
			return good
		},
		http.StatusBadRequest: func(q *request) http.Handler {
			if q.body != nil {
				q.body = strings.NewReader("{")
			}
			q.target.RawQuery = "key_b64=!&limit=0&replicas=no"
			return good
		},
		http.StatusUnauthorized: func(*request) http.Handler { return guarded },
		http.StatusForbidden: func(q *request) http.Handler {
			other := "process"
			if q.op.OperationID == "metrics" {
				other = "data"
			}
			q.header.Set("Authorization", tokens.header(other)[1])
			return guarded
		},
		http.StatusNotFound:         func(*request) http.Handler { return replica },
		http.StatusMethodNotAllowed: func(*request) http.Handler { return replica },
		http.StatusRequestTimeout: func(q *request) http.Handler {
			q.body = stuckBody{}
			return good
		},
		http.StatusConflict:              failing(&brokenDB{DB: db, appends: &engine.ConditionError{Key: []byte("k"), Last: 7}}),
		http.StatusRequestEntityTooLarge: func(*request) http.Handler { return small },
		http.StatusUnsupportedMediaType: func(q *request) http.Handler {
			q.header.Set("Content-Encoding", "gzip")
			return good
		},
		http.StatusMisdirectedRequest: func(q *request) http.Handler {
			if q.path == consumerPath || q.op.OperationID == "keys" {
				q.target.RawQuery = "key=k&prefix=k"
			}
			return elsewhere
		},
		http.StatusTooManyRequests:     func(*request) http.Handler { return full },
		http.StatusInternalServerError: failing(broken(db, engine.ErrCorrupt)),
		http.StatusServiceUnavailable:  func(*request) http.Handler { return NewFront(FrontOptions{}) }, // the log is opening
		http.StatusGatewayTimeout:      failing(broken(db, context.DeadlineExceeded)),
		http.StatusInsufficientStorage: failing(&brokenDB{DB: db, sets: engine.ErrStateFull}),
	}
}

// Each operation is asked in each way, and gives the statuses that it has in openapi.yaml, and no other.
func TestOpenAPIHasTheStatuses(t *testing.T) {
	ways := provoked(t)
	for _, op := range operations(t) {
		for _, code := range slices.Sorted(maps.Keys(op.op.Responses.Map())) {
			status, err := strconv.Atoi(code)
			require.NoError(t, err)
			require.Contains(t, ways, status, "%s %s", op.method, op.path)
		}
	}
	for _, status := range slices.Sorted(maps.Keys(ways)) {
		for _, q := range operations(t) {
			t.Run(fmt.Sprint(status, " ", q.op.OperationID), func(t *testing.T) {
				got := q.send(t, ways[status](q)) // which also requires that it is described
				if q.op.Responses.Status(status) != nil {
					require.Equal(t, status, got)
				}
			})
		}
	}
	db := openDB(t, mem.New(mem.Options{}), engine.Options{})
	for name, db := range map[string]*brokenDB{
		"fenced": broken(db, engine.ErrFenced), "stale": broken(db, engine.ErrStale), "invalid": broken(db, engine.ErrInvalid),
		"too large": {DB: db, appends: engine.ErrTooLarge, sets: engine.ErrTooLarge},
		"producer":  {DB: db, appends: &engine.ProducerError{Producer: "p", Sequence: 9, Last: 7}},
		"overload":  {DB: db, appends: engine.ErrOverloaded, sets: engine.ErrOverloaded, deletes: engine.ErrOverloaded},
	} {
		s, err := New(Options{DB: db})
		require.NoError(t, err)
		for _, q := range operations(t) {
			q.leaves = true // what works has nothing to follow
			t.Run(name+" "+q.op.OperationID, func(t *testing.T) { q.send(t, s) })
		}
	}
}

// parametersRead returns the names of the parameters that the server reads, whatever the route.
func parametersRead(t *testing.T) (names []string) {
	t.Helper()
	files, err := filepath.Glob("query*.go")
	require.NoError(t, err)
	reading := regexp.MustCompile(`q\.(get|number|bounded|positive|boolean|base64|bytes)\("([a-z0-9_]+)"`)
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		for _, m := range reading.FindAllStringSubmatch(string(text), -1) {
			names = append(names, m[2])
			if m[1] == "bytes" {
				names = append(names, m[2]+"_b64")
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// Each operation reads the parameters that it has in openapi.yaml, and no other: what is no percent-encoded text is
// an error in a parameter that is read, and nothing in one that is not.
func TestOpenAPIHasTheParameters(t *testing.T) {
	names := parametersRead(t)
	require.Contains(t, names, "min_sequence")
	require.Contains(t, names, "prefix_b64")
	good := provoked(t)[http.StatusOK]
	used := map[string]bool{}
	for _, name := range names {
		for _, q := range operations(t) {
			want := http.StatusOK
			if q.op.Parameters.GetByInAndName(openapi3.ParameterInQuery, name) != nil {
				used[name], want = true, http.StatusBadRequest
			} else if q.method == http.MethodDelete {
				q.target.RawQuery = "key=k" // with a key it ignores all else, without one it refuses all else
			}
			q.target.RawQuery += "&" + name + "=%zz"
			require.Equal(t, want, q.send(t, good(q)), "%s %s", q.op.OperationID, q.target.RawQuery)
		}
	}
	require.ElementsMatch(t, names, slices.Collect(maps.Keys(used)))
	for _, q := range operations(t) {
		for _, p := range q.op.Parameters {
			if p.Value.In == openapi3.ParameterInQuery {
				require.Contains(t, names, p.Value.Name, q.op.OperationID)
			}
		}
	}
}

// valuesOf returns values that a parameter takes, and some that it does not.
func valuesOf(p *openapi3.Parameter) (good, bad []string) {
	schema := p.Schema.Value
	if schema.Type.Is(openapi3.TypeArray) {
		schema = schema.Items.Value
	}
	whole := func(n float64) string { return strconv.FormatFloat(n, 'f', -1, 64) }
	switch {
	case schema.Type.Is(openapi3.TypeInteger):
		bad = []string{"", "x", "-1", "1.5", "+1", "1e3", "18446744073709551616"}
		good = []string{whole(*schema.Min)}
		if *schema.Min > 0 {
			bad = append(bad, whole(*schema.Min-1))
		}
		switch most := schema.Max; {
		case most == nil: // what is above a limit is lowered to it
			good = append(good, "18446744073709551615")
		case *most < 1<<53:
			good, bad = append(good, whole(*most)), append(bad, whole(*most+1))
		default:
			good = append(good, "18446744073709551615")
		}
	case schema.Type.Is(openapi3.TypeBoolean):
		good, bad = []string{"true", "false"}, []string{"", "1", "True"}
	case schema.Pattern != "" && schema.MaxLength != nil:
		good, bad = []string{"mailer"}, []string{"a%2Fb", strings.Repeat("x", int(*schema.MaxLength)+1)}
	case schema.Pattern != "":
		good, bad = []string{"aw==", "aw", "_-8", ""}, []string{"!", "a", "aw=", "YR=="}
	default:
		good = []string{"", "%FF", "a+b"}
	}
	return good, bad
}

// The values of parameters are as openapi.yaml says.
func TestOpenAPIHasTheValuesOfParameters(t *testing.T) {
	good := provoked(t)[http.StatusOK]
	try := func(i int, name, value string, want int) {
		q := operations(t)[i]
		switch {
		case name == "key" || name == "key_b64":
			q.target.RawQuery = ""
		case name == "min_sequence" && value != "0" && want == http.StatusOK:
			want = http.StatusGatewayTimeout
			q.target.RawQuery += "&timeout_ms=0"
		}
		q.target.RawQuery += "&" + name + "=" + value
		require.Equal(t, want, q.send(t, good(q)), "%s %s", q.op.OperationID, q.target.RawQuery)
	}
	for i, q := range operations(t) {
		for _, p := range q.op.Parameters {
			if p.Value.In != openapi3.ParameterInQuery {
				continue
			}
			right, wrong := valuesOf(p.Value)
			for _, v := range right {
				try(i, p.Value.Name, v, http.StatusOK)
			}
			for _, v := range wrong {
				try(i, p.Value.Name, v, http.StatusBadRequest)
			}
		}
	}
}

// Every example of a request works.
func TestOpenAPIExamplesWork(t *testing.T) {
	for i, q := range operations(t) {
		t.Run(q.op.OperationID, func(t *testing.T) {
			for _, p := range q.op.Parameters {
				if p.Value.Example == nil || p.Value.In != openapi3.ParameterInQuery {
					continue
				}
				q := operations(t)[i]
				if p.Value.Name == "key" {
					q.target.RawQuery = ""
				}
				q.target.RawQuery += "&" + p.Value.Name + "=" + queryText(p.Value.Example)
				require.Equal(t, http.StatusOK, q.send(t, provoked(t)[http.StatusOK](q)), q.target.RawQuery)
			}
			if q.op.RequestBody == nil {
				return
			}
			for name, e := range q.op.RequestBody.Value.Content[wire.TypeJSON].Examples {
				q := operations(t)[i]
				q.body, q.leaves = example(t, e), name == "now" // nothing comes
				require.Equal(t, http.StatusOK, q.send(t, provoked(t)[http.StatusOK](q)), name)
			}
		})
	}
}

// queryText returns an example as it is written in a query.
func queryText(v any) string {
	switch v := v.(type) {
	case []any:
		return queryText(v[0])
	case float64:
		return strconv.FormatFloat(v, 'f', -1, 64)
	}
	return url.QueryEscape(fmt.Sprint(v))
}
