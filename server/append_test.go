package server

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/annalsdb/annals/engine"
	"github.com/annalsdb/annals/internal/base"
	"github.com/annalsdb/annals/objstore"
	"github.com/annalsdb/annals/objstore/mem"
	"github.com/annalsdb/annals/wire"
)

const (
	appendPath = "/api/v1/log/append"
	protoType  = "application/protobuf"
)

func TestAppendFormats(t *testing.T) {
	request, err := proto.Marshal(&wire.AppendRequest{Records: []*wire.Record{{Key: []byte("k"), Value: []byte("v")}}})
	require.NoError(t, err)
	jsonRequest := `{"records":[{"key":"aw==","value":"dg=="}]}`
	overBoth(t, func(t *testing.T, http2 bool) {
		r := start(t, Options{}).speak(http2)
		for i, c := range []struct {
			contentType, accept string
			body                string
			protobuf            bool
		}{
			{"", "", jsonRequest, false},
			{"application/json", "*/*", jsonRequest, false},
			{"application/protobuf+json", "application/protobuf+json", jsonRequest, false},
			{"text/plain", "application/protobuf", jsonRequest, true},
			{protoType, "", string(request), false},
			{protoType, "text/html, application/protobuf;q=0.9", string(request), true},
		} {
			got := r.post(appendPath, c.body, "Content-Type", c.contentType, "Accept", c.accept)
			require.Equal(t, 200, got.status, got.body)
			if !c.protobuf {
				require.Equal(t, "application/json", got.header.Get("Content-Type"))
				require.Equal(t, fmt.Sprintf(`{"status":"success","recordsAppended":1,"startSequence":%d,"timestampMs":%d}`, i, testTime), got.body)
				continue
			}
			require.Equal(t, protoType, got.header.Get("Content-Type"))
			var resp wire.AppendResponse
			require.NoError(t, proto.Unmarshal([]byte(got.body), &resp))
			require.True(t, proto.Equal(&wire.AppendResponse{Status: "success", RecordsAppended: 1, StartSequence: uint64(i), TimestampMs: testTime}, &resp))
		}
		got := r.get("/api/v1/log/scan?key=k&limit=1", "Accept", protoType)
		var resp wire.ScanResponse
		require.NoError(t, proto.Unmarshal([]byte(got.body), &resp))
		require.True(t, proto.Equal(&wire.ScanResponse{
			Status: "success", Key: []byte("k"), NextSequence: 1, FirstSequence: proto.Uint64(0),
			Values: []*wire.Value{{Value: []byte("v"), TimestampMs: testTime}},
		}, &resp))
	})
}

func TestAppendRefusals(t *testing.T) {
	limits := Options{MaxKeyBytes: 4, MaxValueBytes: 6, BodyLimit: 1000}
	for _, c := range []struct {
		name, contentType, body string
		status                  int
		want                    string
	}{
		{"no body", "", "", 400, "Invalid input: Invalid JSON: the body is empty"},
		{"not JSON", "", "hello", 400, "Invalid input: Invalid JSON: at byte 0: invalid character 'h' at start of value"},
		{"an array", "", "[]", 400, "Invalid input: Invalid JSON: an object is expected, not an array"},
		{"a record that is an array", "", `{"records":[[]]}`, 400, "Invalid input: Invalid JSON: /records/0: an object is expected, not an array"},
		{"a repeated field", "", `{"records":[],"records":[]}`, 400, "Invalid input: Invalid JSON: at byte 14 (/records): repeated field"},
		{"not base64", "", `{"records":[{"key":"a b"}]}`, 400, "Invalid input: Invalid JSON: /records/0/key: not base64"},
		{"base64 with a line break", "", `{"records":[{"key":"YQ==\n"}]}`, 400, "Invalid input: Invalid JSON: /records/0/key: base64 with line breaks"},
		{"base64 with stray bits", "", `{"records":[{"key":"YR=="}]}`, 400, "Invalid input: Invalid JSON: /records/0/key: not base64"},
		{"protobuf as JSON", "", "\x0a\x04\x0a\x00\x12\x00", 400, "Invalid input: Invalid JSON: "},
		{"JSON as protobuf", protoType, `{"records":[]}`, 400, "Invalid input: Invalid protobuf: "},
		{"cut protobuf", protoType, "\x0a\x80", 400, "Invalid input: Invalid protobuf: "},
		{"cut record", protoType, "\x0a\x02\x0a\x05", 400, "Invalid input: Invalid protobuf: record[0]: unexpected EOF"},
		{"no key", "", `{"records":[{"key":"","value":""},{"value":""}]}`, 400, "Invalid input: record[1]: key is required"},
		{"null key", "", `{"records":[{"key":null,"value":""}]}`, 400, "Invalid input: record[0]: key is required"},
		{"no value", "", `{"records":[{"key":"","value":null}]}`, 400, "Invalid input: record[0]: value is required"},
		{"no key in protobuf", protoType, "\x0a\x02\x12\x00", 400, "Invalid input: record[0]: key is required"},
		{"no value in protobuf", protoType, "\x0a\x02\x0a\x00", 400, "Invalid input: record[0]: value is required"},
		{"long key", "", `{"records":[{"key":"YWJjZGU=","value":""}]}`, 400, "Invalid input: record[0]: key has 5 bytes; at most 4 are allowed"},
		{"long value", "", `{"records":[{"key":"","value":"YWJjZGVmZw"}]}`, 400, "Invalid input: record[0]: value has 7 bytes; at most 6 are allowed"},
		{"awaitDurable", "", `{"awaitDurable":1}`, 400, "Invalid input: Invalid JSON: /awaitDurable: true or false is expected, not a number"},
		{"half a condition", "", `{"expectedNext":[{"key":""}]}`, 400, "Invalid input: Invalid JSON: /expectedNext/0: key and sequence are required"},
		{"a condition of a long key", "", `{"expectedNext":[{"key":"YWJjZGU=","sequence":0}]}`, 400, "Invalid input: expectedNext[0]: key has 5 bytes; at most 4 are allowed"},
		{"a producer without a number", "", `{"producerId":"p"}`, 400, "Invalid input: producerId without producerSeq"},
		{"a number without a producer", "", `{"producerSeq":0}`, 400, "Invalid input: producerSeq without producerId"},
		{"an empty producer", "", `{"producerId":"","producerSeq":0}`, 400, "Invalid input: producerId has 0 bytes; it must have 1 to 128"},
		{"a long producer", protoType, "\xaa\x06\x81\x01" + strings.Repeat("p", 129) + "\xb0\x06\x00", 400, "Invalid input: producerId has 129 bytes; it must have 1 to 128"},
		{"a producer that is not text", protoType, "\xaa\x06\x01\xff\xb0\x06\x00", 400, "Invalid input: Invalid protobuf: producer_id is not UTF-8"},
		{"a large body", "", `{"x":"` + strings.Repeat("x", 1000) + `"}`, 413, "the body is larger than the limit of 1000 bytes"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := start(t, limits)
			got := r.post(appendPath, c.body, "Content-Type", c.contentType)
			require.Equal(t, c.status, got.status, got.body)
			require.Contains(t, got.body, `{"status":"error","message":`)
			body, err := wire.ParseErrorBody([]byte(got.body))
			require.NoError(t, err)
			require.Contains(t, body.Message, c.want)
			require.Empty(t, body.Outcome)
			require.Zero(t, r.db.Status().AppendedRecords)
			r.holdsNothing()
		})
	}
}

func TestTooManyRecordsAre413(t *testing.T) {
	r := start(t, Options{})
	got := r.post(appendPath, strings.Repeat("\x0a\x04\x0a\x00\x12\x00", wire.MaxRecords+1), "Content-Type", protoType)
	require.Equal(t, 413, got.status)
	require.Equal(t, `{"status":"error","message":"the batch has more than 1048576 records"}`, got.body)
}

func TestBodyLimits(t *testing.T) {
	const limit = 8 << 20
	value := strings.Repeat("v", limit)
	request := func(n int) []byte {
		m := &wire.AppendRequest{Records: []*wire.Record{{Key: []byte("k"), Value: []byte(value[:n])}}}
		data, err := proto.Marshal(m)
		require.NoError(t, err)
		return data
	}
	overhead := len(request(1<<20)) - 1<<20
	exact := limit - overhead - 2 // two lengths take one byte more above 2 MiB
	require.Len(t, request(exact), limit)
	overBoth(t, func(t *testing.T, http2 bool) {
		r := start(t, Options{BodyLimit: limit}).speak(http2)
		for _, chunked := range []bool{false, true} {
			for _, c := range []struct{ bytes, status int }{{exact, 200}, {exact + 1, 413}, {100, 200}} {
				var body io.Reader = bytes.NewReader(request(c.bytes))
				if chunked {
					body = io.MultiReader(body) // hides the length
				}
				got := r.do("POST", appendPath, body, "Content-Type", protoType)
				require.Equal(t, c.status, got.status, "chunked %v, %d bytes: %s", chunked, c.bytes, got.body)
			}
		}
		require.Equal(t, uint64(4), r.db.Status().AppendedRecords)
		r.holdsNothing()
	})
}

func TestBodiesAreBounded(t *testing.T) {
	r := start(t, Options{BodyLimit: 1000, InFlightBytes: 1000})
	require.True(t, r.bodies.take(900)) // what other requests hold
	body := `{"records":[],"x":"` + strings.Repeat("x", 200) + `"}`
	got := r.post(appendPath, body)
	require.Equal(t, 429, got.status)
	require.Equal(t, "1", got.header.Get("Retry-After"))
	require.Equal(t, `{"status":"error","message":"too many bytes of requests are under way"}`, got.body)
	r.bodies.give(900)
	require.Equal(t, 200, r.post(appendPath, body).status)
	r.holdsNothing()
}

func TestAppendFailures(t *testing.T) {
	timeUp := context.DeadlineExceeded
	corrupt := base.Corruptf("trees/00000000/MANIFEST", 12, "checksum")
	for _, c := range []struct {
		err        error
		status     int
		want       string
		retryAfter string
	}{
		{&engine.AppendError{Outcome: engine.NotAppended, Err: fmt.Errorf("%w: waited: %w", engine.ErrOverloaded, timeUp)}, 429,
			`"message":"append: write path is full: waited: context deadline exceeded (nothing was appended)"}`, "1"},
		{&engine.AppendError{Outcome: engine.NotAppended, Err: engine.ErrTooLarge}, 413, `"message":"append: too large (nothing was appended)"}`, ""},
		{&engine.AppendError{Outcome: engine.Unknown, Err: timeUp}, 504,
			`"message":"append: context deadline exceeded (the outcome is unknown)","outcome":"unknown"}`, ""},
		{&engine.AppendError{Outcome: engine.NotAppended, Err: timeUp}, 504, `"outcome":"not_appended"}`, ""},
		{&engine.AppendError{Outcome: engine.Unknown, Err: engine.ErrFenced}, 503, `"outcome":"unknown"}`, ""},
		{&engine.AppendError{Outcome: engine.NotAppended, Err: engine.ErrFenced}, 503, `"outcome":"not_appended"}`, ""},
		{&engine.AppendError{Outcome: engine.NotAppended, Err: engine.ErrClosed}, 503, `"outcome":"not_appended"}`, ""},
		{&engine.AppendError{Outcome: engine.Unknown, Err: corrupt}, 500,
			`"message":"Storage error: append: corrupt object trees/00000000/MANIFEST at offset 12: checksum (the outcome is unknown)","outcome":"unknown"}`, ""},
		{&engine.AppendError{Outcome: engine.NotAppended, Err: engine.ErrInvalid}, 400, `"message":"Invalid input: append: invalid argument (nothing was appended)"}`, ""},
		{errors.New("disk on fire"), 500, `"message":"Storage error: disk on fire"}`, ""},
		{engine.ErrStale, 503, `"message":"view of the log is stale"}`, "1"},
		{&engine.AppendError{Outcome: engine.NotAppended, Err: objstore.ErrCredentials}, 503,
			`"message":"Storage error: append: no valid credentials (nothing was appended)","outcome":"not_appended"}`, "1"},
		{&engine.AppendError{Outcome: engine.Unknown, Err: fmt.Errorf("%w (the store's last answer: %w)", timeUp, objstore.ErrDenied)}, 504, `"outcome":"unknown"}`, ""},
		{objstore.ErrUnavailable, 503, `"message":"Storage error: store unavailable"}`, "1"},
		{fmt.Errorf("%w: %w", corrupt, objstore.ErrDenied), 500, `"message":"Storage error: corrupt object trees/00000000/MANIFEST at offset 12: checksum: access denied"}`, ""},
	} {
		db := &testDB{DB: openDB(t, mem.New(mem.Options{}), engine.Options{})}
		db.append = func(context.Context, []engine.Record, engine.AppendOptions) (engine.AppendResult, error) {
			return engine.AppendResult{}, c.err
		}
		r := start(t, Options{DB: db})
		got := r.post(appendPath, `{"records":[{"key":"","value":""}]}`)
		require.Equal(t, c.status, got.status, "%v", c.err)
		require.True(t, strings.HasSuffix(got.body, c.want), got.body)
		require.Equal(t, c.retryAfter, got.header.Get("Retry-After"))
	}
}

func TestAckAndTimeoutReachTheLog(t *testing.T) {
	db := &testDB{DB: openDB(t, mem.New(mem.Options{}), engine.Options{})}
	var ack engine.Durability
	var left time.Duration
	db.append = func(ctx context.Context, _ []engine.Record, o engine.AppendOptions) (engine.AppendResult, error) {
		deadline, ok := ctx.Deadline()
		require.True(t, ok)
		ack, left = o.Ack, time.Until(deadline)
		return engine.AppendResult{}, nil
	}
	for _, c := range []struct {
		server engine.Durability
		field  string
		want   engine.Durability
	}{
		{engine.Default, ``, engine.Default},
		{engine.Memory, ``, engine.Memory},
		{engine.Memory, `,"awaitDurable":null`, engine.Memory},
		{engine.Memory, `,"awaitDurable":true`, engine.Durable},
		{engine.Durable, `,"awaitDurable":false`, engine.Memory},
	} {
		r := start(t, Options{DB: db, Ack: c.server, AppendTimeout: time.Hour})
		require.Equal(t, 200, r.post(appendPath, `{"records":[]`+c.field+`}`).status)
		require.Equal(t, c.want, ack)
		require.InDelta(t, time.Hour, left, float64(time.Minute))
	}
}

func TestAppendTimesOut(t *testing.T) {
	db := &testDB{DB: openDB(t, mem.New(mem.Options{}), engine.Options{})}
	db.append = func(ctx context.Context, _ []engine.Record, _ engine.AppendOptions) (engine.AppendResult, error) {
		<-ctx.Done()
		return engine.AppendResult{}, &engine.AppendError{Outcome: engine.Unknown, Err: ctx.Err()}
	}
	r := start(t, Options{DB: db, AppendTimeout: time.Millisecond})
	got := r.post(appendPath, `{"records":[]}`)
	require.Equal(t, 504, got.status)
	require.Contains(t, got.body, `"outcome":"unknown"`)
}

func TestLargeBatchIs413(t *testing.T) {
	db := openDB(t, mem.New(mem.Options{}), engine.Options{MaxUnflushedBytes: 1000, MaxKeyBytes: 100, MaxValueBytes: 600})
	r := start(t, Options{DB: db, MaxKeyBytes: 100, MaxValueBytes: 600})
	value := strings.Repeat("dmFs", 150) // 450 bytes
	record := `{"key":"","value":"` + value + `"}`
	got := r.post(appendPath, `{"records":[`+record+","+record+","+record+`]}`)
	require.Equal(t, 413, got.status, got.body)
	require.Equal(t, 200, r.post(appendPath, `{"records":[`+record+`]}`).status)
}

func TestBodyThatIsCutAppendsNothing(t *testing.T) {
	for _, head := range []string{"Content-Length: 50\r\n", "Transfer-Encoding: chunked\r\n"} {
		r := start(t, Options{})
		conn, err := net.Dial("tcp", r.url[len("http://"):])
		require.NoError(t, err)
		_, err = io.WriteString(conn, "POST "+appendPath+" HTTP/1.1\r\nHost: x\r\n"+head+"\r\n2\r\n{}\r\n")
		require.NoError(t, err)
		require.NoError(t, conn.(*net.TCPConn).CloseWrite())
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		require.NoError(t, err)
		body, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		require.NoError(t, conn.Close())
		require.Contains(t, []int{400, statusClientGone}, resp.StatusCode, "%s", body)
		require.Zero(t, r.db.Status().AppendedRecords)
		r.holdsNothing()
	}
}

// Many clients at once, each of which reads back what it wrote: the pooled
// bodies of requests must not mix.
func TestBodiesDoNotMix(t *testing.T) {
	overBoth(t, func(t *testing.T, http2 bool) {
		r := start(t, Options{}).speak(http2)
		const clients, batches = 8, 10
		failed := make(chan error, clients)
		for c := range clients {
			go func() {
				failed <- func() error {
					for i := range batches {
						value := bytes.Repeat([]byte{byte('a' + c)}, 1000*(i+1))
						body, err := proto.Marshal(&wire.AppendRequest{Records: []*wire.Record{{Key: []byte{byte(c)}, Value: value}}})
						if err != nil {
							return err
						}
						if got := r.post(appendPath, string(body), "Content-Type", protoType); got.status != 200 {
							return errors.New(got.body)
						}
					}
					return nil
				}()
			}()
		}
		for range clients {
			require.NoError(t, <-failed)
		}
		for c := range clients {
			it := r.db.Scan(t.Context(), []byte{byte(c)}, engine.All(), engine.ScanOptions{})
			n := 0
			for rec := range it.All() {
				n++
				require.Equal(t, bytes.Repeat([]byte{byte('a' + c)}, 1000*n), rec.Value)
			}
			require.NoError(t, it.Err())
			require.Equal(t, batches, n)
		}
	})
}

func FuzzAppend(f *testing.F) {
	for _, s := range []string{
		`{"records":[{"key":"aw==","value":"dg=="}],"awaitDurable":true}`, `{"records":[{"key":null}]}`, `[]`, `{}{}`, ``,
		"\x0a\x04\x0a\x00\x12\x00", "\x0a\x02\x0a\x05", "\xaa\x06\x01p", "\x10\x01",
	} {
		f.Add([]byte(s), true)
		f.Add([]byte(s), false)
	}
	db := openDB(f, mem.New(mem.Options{}), engine.Options{})
	s, err := New(Options{DB: db, Ack: engine.Memory})
	require.NoError(f, err)
	f.Fuzz(func(t *testing.T, body []byte, protobuf bool) {
		before := db.Status().AppendedRecords
		req := httptest.NewRequest(http.MethodPost, appendPath, bytes.NewReader(body))
		if protobuf {
			req.Header.Set("Content-Type", protoType)
		}
		req.Header.Set("Accept", protoType)
		w := httptest.NewRecorder()
		s.ServeHTTP(w, req)
		require.Zero(t, s.bodies.used())
		var resp wire.AppendResponse
		switch w.Code {
		case 200:
			require.NoError(t, proto.Unmarshal(w.Body.Bytes(), &resp))
		case 400:
			e, err := wire.ParseErrorBody(w.Body.Bytes())
			require.NoError(t, err)
			require.Contains(t, e.Message, "Invalid input: ")
		default:
			t.Fatalf("status %d: %s", w.Code, w.Body)
		}
		require.Equal(t, before+uint64(resp.RecordsAppended), db.Status().AppendedRecords)
	})
}

// slowBody is a body that stops in the middle until the read deadline.
type slowBody struct{ sent bool }

func (b *slowBody) Read(p []byte) (int, error) {
	if !b.sent {
		b.sent = true
		return copy(p, "{"), nil
	}
	return 0, fmt.Errorf("read tcp: %w", os.ErrDeadlineExceeded)
}

func TestBodyThatDoesNotArriveIs408(t *testing.T) {
	s, err := New(Options{DB: openDB(t, mem.New(mem.Options{}), engine.Options{})})
	require.NoError(t, err)
	w := httptest.NewRecorder()
	s.ServeHTTP(w, httptest.NewRequest("POST", appendPath, &slowBody{}))
	require.Equal(t, http.StatusRequestTimeout, w.Code)
	require.Equal(t, `{"status":"error","message":"the body did not arrive in time"}`, w.Body.String())
	require.Equal(t, "close", w.Header().Get("Connection"))
	require.Zero(t, s.bodies.used())
}
