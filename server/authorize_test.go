package server

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/annalsdb/annals/auth"
	"github.com/annalsdb/annals/engine"
	"github.com/annalsdb/annals/objstore/mem"
	"github.com/annalsdb/annals/wire"
)

// bearers makes tokens, and remembers their secrets by name.
type bearers struct {
	entries []auth.Entry
	secrets map[string]string
}

func (b *bearers) add(name string, scopes auth.Scope, prefixes ...string) {
	if b.secrets == nil {
		b.secrets = make(map[string]string)
	}
	secret := auth.Generate()
	e := auth.Entry{Name: name, Hash: auth.HashOf(secret), Scopes: scopes}
	for _, p := range prefixes {
		e.Prefixes = append(e.Prefixes, []byte(p))
	}
	b.entries = append(b.entries, e)
	b.secrets[name] = secret
}

func (b *bearers) tokens(t testing.TB) *auth.Tokens {
	tokens, err := auth.NewTokens(b.entries)
	require.NoError(t, err)
	return tokens
}

// header is the one that the bearer of a token sends.
func (b *bearers) header(name string) []string {
	return []string{"Authorization", "Bearer " + b.secrets[name]}
}

// ask sends a request without a network.
func ask(s http.Handler, method, target, body string, headers ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, target, strings.NewReader(body))
	for i := 0; i < len(headers); i += 2 {
		r.Header.Add(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	s.ServeHTTP(w, r)
	return w
}

// newServer returns a server of a log of its own that does not listen.
func newServer(t testing.TB, o Options) *Server {
	if o.DB == nil {
		o.DB = openDB(t, mem.New(mem.Options{}), engine.Options{})
	}
	s, err := New(o)
	require.NoError(t, err)
	return s
}

// What each route answers to whom. A route that is not here fails the test.
func TestEveryRouteAsksForItsScope(t *testing.T) {
	var b bearers
	b.add("read", auth.Read)
	b.add("append", auth.Append)
	b.add("admin", auth.Admin)
	b.add("all", auth.Read|auth.Append|auth.Admin)
	b.add("in", auth.Read|auth.Append, "k")
	b.add("out", auth.Read|auth.Append, "z")
	s := newServer(t, Options{Tokens: b.tokens(t)})
	appended := `{"records":[{"key":"a2V5","value":""}],"expectedNext":[{"key":"a2V5","sequence":1000000}]}`
	cursors := `{"cursors":[{"key":"a2V5","nextSequence":1}]}`
	all := "read append admin all in out"
	// Who is answered 200; everybody else is refused.
	cases := []struct {
		method, path, body string
		allowed            string
	}{
		{"POST", appendEndpoint, appended, "append all in"},
		{"GET", apiPrefix + "/scan?key=key", "", "read all in"},
		{"HEAD", apiPrefix + "/scan?key=key", "", "read all in"},
		{"HEAD", apiPrefix + "/scan?key=key&follow=true", "", "read all in"},
		{"GET", apiPrefix + "/count?key=key", "", "read all in"},
		{"GET", apiPrefix + "/keys", "", "read all in out"},
		{"GET", apiPrefix + "/keys?prefix=ke", "", "read all in"},
		{"GET", apiPrefix + "/segments", "", "read all"},
		{"GET", statusPath, "", "read all"},
		{"POST", apiPrefix + "/follow", `{"streams":[{"key":"a2V5"}]}`, "read all in"},
		{"POST", apiPrefix + "/follow", `{"prefixes":[{"prefix":"a2V5"}]}`, "read all in"},
		{"POST", apiPrefix + "/follow", `{"prefixes":[{"prefix":""}]}`, "read all in out"},
		{"GET", cursorsPath, "", "read all in out"},
		{"GET", cursorsPath + "/c", "", "read all in out"},
		{"GET", cursorsPath + "/c?key=key", "", "read all in"},
		{"PUT", cursorsPath + "/c", cursors, "read all in"},
		{"DELETE", cursorsPath + "/c?key=key", "", "read all in"},
		{"DELETE", cursorsPath + "/c", "", "read all"},
		{"GET", "/metrics", "", "admin all"},
		{"GET", healthyPath, "", all},
		{"GET", readyPath, "", all},
	}
	tried := make(map[string]bool)
	for _, c := range cases {
		path, _, _ := strings.Cut(c.path, "?")
		if rt, _ := s.consumerRoute(path); rt != nil {
			path = rt.endpoint
		}
		tried[path] = true
		for _, name := range strings.Fields(all) {
			got := askBriefly(s, c.method, c.path, c.body, b.header(name)...)
			want := 403
			if slices.Contains(strings.Fields(c.allowed), name) {
				want = 200
			}
			require.Equal(t, want, got.Code, "%s %s as %s: %s", c.method, c.path, name, got.Body)
			if want == 403 {
				require.Empty(t, got.Header().Get("WWW-Authenticate"))
			}
		}
		for _, headers := range [][]string{{}, {"Authorization", "Bearer " + auth.Generate()}} {
			got := askBriefly(s, c.method, c.path, c.body, headers...)
			if c.allowed == all {
				require.Equal(t, 200, got.Code)
				continue
			}
			require.Equal(t, 401, got.Code, "%s %s", c.method, c.path)
			require.Equal(t, "Bearer", got.Header().Get("WWW-Authenticate"))
			require.Equal(t, "application/json", got.Header().Get("Content-Type"))
		}
	}
	for path, rt := range s.routes {
		require.True(t, tried[path] || rt.scope == scopeOpen, "%s is in none of the cases", path)
	}
	require.Equal(t, 404, ask(s, "GET", "/other", "").Code, "what is not there is no secret")
	require.Equal(t, 405, ask(s, "POST", cursorsPath, "").Code)
}

// askBriefly is ask, of a client that goes away from answers without end once they began.
func askBriefly(s http.Handler, method, target, body string, headers ...string) *httptest.ResponseRecorder {
	if !strings.HasSuffix(target, "/follow") {
		return ask(s, method, target, body, headers...)
	}
	r := httptest.NewRequest(method, target, strings.NewReader(body))
	r.Header.Set(headerOf(headers))
	w := &briefly{ResponseRecorder: httptest.NewRecorder()}
	var request *http.Request
	request, w.gone = withCancel(r)
	s.ServeHTTP(w, request)
	return w.ResponseRecorder
}

func headerOf(headers []string) (name, value string) {
	if len(headers) == 0 {
		return "X-None", ""
	}
	return headers[0], headers[1]
}

func TestAuthorizationHeader(t *testing.T) {
	var b bearers
	b.add("t", auth.Read)
	s := newServer(t, Options{Tokens: b.tokens(t)})
	secret := b.secrets["t"]
	for header, want := range map[string]int{
		"Bearer " + secret:          200,
		"bearer " + secret:          200,
		"BEARER   " + secret:        200,
		"Bearer " + secret + " x":   401,
		"Bearer":                    401,
		"Bearer ":                   401,
		secret:                      401,
		"Basic " + b64("a:"+secret): 401,
		"":                          401,
	} {
		require.Equal(t, want, ask(s, "GET", apiPrefix+"/keys", "", "Authorization", header).Code, "%q", header)
	}
	twice := ask(s, "GET", apiPrefix+"/keys", "", "Authorization", "Bearer "+secret, "Authorization", "Bearer "+secret)
	require.Equal(t, 401, twice.Code)
	require.Contains(t, twice.Body.String(), "must be one")
	// A URL ends in logs and histories: there is no token in it.
	require.Equal(t, 401, ask(s, "GET", apiPrefix+"/keys?token="+secret+"&access_token="+secret, "").Code)

	open := newServer(t, Options{})
	require.Equal(t, 200, ask(open, "GET", apiPrefix+"/keys", "", "Authorization", "Basic x").Code, "without tokens nobody looks")
}

// Each key that a request names counts, and the refusal says which; nothing is done.
func TestEveryNamedKeyIsLookedAt(t *testing.T) {
	var b bearers
	b.add("t", auth.Read|auth.Append, "user/42/")
	s := newServer(t, Options{Tokens: b.tokens(t)})
	in, out := b64("user/42/a"), b64("user/421")
	h := b.header("t")
	for _, c := range []struct{ method, path, body, want string }{
		{"POST", appendEndpoint, `{"records":[{"key":"` + in + `","value":""},{"key":"` + out + `","value":""}]}`, "record[1]: the token does not cover the key"},
		{"POST", appendEndpoint, `{"records":[],"expectedNext":[{"key":"` + out + `","sequence":1}]}`, "expectedNext[0]: the token"},
		{"POST", appendEndpoint, `{"records":[{"key":"","value":""}]}`, "record[0]: the token"},
		{"POST", apiPrefix + "/follow", `{"streams":[{"key":"` + in + `"},{"key":"` + out + `"}]}`, "streams[1]: the token"},
		{"POST", apiPrefix + "/follow", `{"streams":[{"key":"` + in + `"}],"prefixes":[{"prefix":"` + in + `"},{"prefix":"` + out + `"}]}`, "no key with this prefix"},
		{"GET", apiPrefix + "/scan?key=user/42", "", "does not cover the key"},
		{"GET", apiPrefix + "/scan?key_b64=" + out, "", "does not cover the key"},
		{"GET", apiPrefix + "/count?key=user/43", "", "does not cover the key"},
		{"GET", apiPrefix + "/keys?prefix=user/43", "", "no key with this prefix"},
		{"GET", cursorsPath + "/c?key=user/42/a&key=user/4", "", "does not cover the key"},
		{"PUT", cursorsPath + "/c", `{"cursors":[{"key":"` + in + `","nextSequence":1},{"key":"` + out + `","nextSequence":1}]}`, "does not cover"},
		{"DELETE", cursorsPath + "/c?key=user/42/a&key=x", "", "does not cover the key"},
		{"DELETE", cursorsPath + "/c", "", "name the keys"},
	} {
		got := ask(s, c.method, c.path, c.body, h...)
		require.Equal(t, 403, got.Code, "%s: %s", c.path, got.Body)
		require.Contains(t, got.Body.String(), c.want, c.path)
	}
	require.Zero(t, s.db.Status().Next, "nothing was appended")
	require.Zero(t, s.db.Status().Cursors)
}

// What the bearer of a limited token sees is what is left of all that there is, page by page, whatever the
// pages and prefixes are.
func TestLimitedTokensSeeAFilterOfEverything(t *testing.T) {
	db := openDB(t, mem.New(mem.Options{}), engine.Options{})
	letters := []string{"a", "b", "\x00", "\xff"}
	var keys []string
	for _, x := range letters {
		for _, y := range append([]string{""}, letters...) {
			keys = append(keys, x+y, x+y+"a")
		}
	}
	keys = append(keys, "")
	slices.Sort(keys)
	keys = slices.Compact(keys)
	open := newServer(t, Options{DB: db})
	for i, key := range keys {
		body := fmt.Sprintf(`{"records":[{"key":%q,"value":%q}],"awaitDurable":false}`, b64(key), b64("v"+key))
		require.Equal(t, 200, ask(open, "POST", appendEndpoint, body).Code)
		for c := range 4 {
			if i%(c+2) == 0 {
				body := fmt.Sprintf(`{"cursors":[{"key":%q,"nextSequence":%d}]}`, b64(key), i)
				require.Equal(t, 200, ask(open, "PUT", fmt.Sprintf("%s/c%d", cursorsPath, c), body).Code)
			}
		}
	}
	require.NoError(t, db.Flush(t.Context()))
	rapid.Check(t, func(rt *rapid.T) {
		prefixes := rapid.SliceOfN(rapid.SampledFrom(keys[1:]), 1, 5).Draw(rt, "prefixes")
		limit := rapid.IntRange(1, len(keys)+1).Draw(rt, "limit")
		asked := rapid.SampledFrom(append([]string{"", "", "ab", "aba"}, keys...)).Draw(rt, "asked")
		var b bearers
		b.add("t", auth.Read, prefixes...)
		s := newServer(t, Options{DB: db, Tokens: b.tokens(t)})
		covered := func(key string) bool {
			return slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(key, p) })
		}
		filter := func(list []string, with string) (left []string) {
			for _, key := range list {
				if covered(key) && strings.HasPrefix(key, with) {
					left = append(left, key)
				}
			}
			return left
		}
		h := b.header("t")
		got, refused := pagesOf(rt, s, apiPrefix+"/keys?prefix_b64="+urlB64(asked), limit, h)
		overlap := covered(asked) || slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(p, asked) })
		require.Equal(rt, !overlap, refused)
		require.Equal(rt, filter(keys, asked), got)
		var consumers []string
		for c := range 4 {
			path := fmt.Sprintf("%s/c%d", cursorsPath, c)
			everything, _ := pagesOf(rt, open, path+"?", limit, nil)
			got, _ := pagesOf(rt, s, path+"?", limit, h)
			require.Equal(rt, filter(everything, ""), got)
			if len(got) > 0 {
				consumers = append(consumers, fmt.Sprintf("c%d", c))
			}
		}
		got, _ = pagesOf(rt, s, cursorsPath+"?", limit, h)
		require.Equal(rt, consumers, got)
		key := rapid.SampledFrom(keys).Draw(rt, "key")
		for _, path := range []string{"/scan?key_b64=", "/count?key_b64="} {
			want, answer := ask(open, "GET", apiPrefix+path+urlB64(key), ""), ask(s, "GET", apiPrefix+path+urlB64(key), "", h...)
			if covered(key) {
				require.Equal(rt, want.Body.String(), answer.Body.String())
			} else {
				require.Equal(rt, 403, answer.Code)
			}
		}
	})
}

func urlB64(s string) string { return base64.URLEncoding.EncodeToString([]byte(s)) }

// pagesOf reads a whole listing of keys, cursors or consumers, by pages that are full but for the last. It
// reports whether it is refused.
func pagesOf(t *rapid.T, s http.Handler, path string, limit int, headers []string) (all []string, refused bool) {
	after := ""
	for {
		got := ask(s, "GET", fmt.Sprintf("%s&limit=%d%s", path, limit, after), "", headers...)
		if got.Code == 403 {
			return nil, true
		}
		require.Equal(t, 200, got.Code, got.Body)
		var page struct {
			Keys, Cursors []struct{ Key []byte }
			Consumers     []struct{ Consumer string }
			NextKey       *[]byte
			NextConsumer  *string
		}
		require.NoError(t, json.Unmarshal(got.Body.Bytes(), &page))
		n := len(all)
		for _, k := range append(page.Keys, page.Cursors...) {
			all = append(all, string(k.Key))
		}
		for _, c := range page.Consumers {
			all = append(all, c.Consumer)
		}
		switch {
		case page.NextKey != nil:
			require.Equal(t, limit, len(all)-n, "a page that is not the last is full")
			require.Equal(t, all[len(all)-1], string(*page.NextKey))
			after = "&after_b64=" + urlB64(string(*page.NextKey))
		case page.NextConsumer != nil:
			require.Equal(t, limit, len(all)-n)
			require.Equal(t, all[len(all)-1], *page.NextConsumer)
			after = "&after=" + *page.NextConsumer
		default:
			if n > 0 {
				require.NotEqual(t, n, len(all), "a page says that there are more only where there are")
			}
			return all, false
		}
	}
}

// For each key, prefixes that were narrowed to a token's give the start that the asked ones give, and
// none where the token does not cover it.
func TestNarrowedPrefixesProperty(t *testing.T) {
	text := rapid.SliceOfN(rapid.SampledFrom([]byte{0, 'a', 'b', 0xff}), 0, 3)
	rapid.Check(t, func(t *rapid.T) {
		var e auth.Entry
		e.Name, e.Hash, e.Scopes = "t", auth.HashOf("t"), auth.Read
		e.Prefixes = rapid.SliceOfN(rapid.SliceOfN(rapid.SampledFrom([]byte{0, 'a', 'b', 0xff}), 1, 3), 1, 5).Draw(t, "prefixes")
		token := tokenOf(t, e)
		var asked []wire.FollowStream
		for range rapid.IntRange(1, 4).Draw(t, "n") {
			asked = append(asked, wire.FollowStream{Key: text.Draw(t, "asked"), Start: rapid.Uint64Range(0, 9).Draw(t, "start")})
		}
		startOf := func(list []wire.FollowStream, key []byte) (start uint64, ok bool) {
			for _, s := range list {
				if bytes.HasPrefix(key, s.Key) && (!ok || s.Start < start) {
					start, ok = s.Start, true
				}
			}
			return start, ok
		}
		x := &exchange{token: token}
		narrowed, err := x.narrowPrefixes(slices.Clone(asked))
		none := slices.ContainsFunc(asked, func(s wire.FollowStream) bool { return len(token.Within(s.Key)) == 0 })
		require.Equal(t, none, err != nil)
		if err != nil {
			return
		}
		require.LessOrEqual(t, len(narrowed), len(asked)+len(e.Prefixes))
		for range 20 {
			key := text.Draw(t, "key")
			want, there := startOf(asked, key)
			if there = there && token.Covers(key); !there {
				want = 0
			}
			got, ok := startOf(narrowed, key)
			require.Equal(t, there, ok, "%q", key)
			require.Equal(t, want, got, "%q", key)
		}
	})
}

// tokenOf puts one entry in force.
func tokenOf(t require.TestingT, e auth.Entry) *auth.Token {
	secret := auth.Generate()
	e.Hash = auth.HashOf(secret)
	tokens, err := auth.NewTokens([]auth.Entry{e})
	require.NoError(t, err)
	token, err := tokens.Lookup(secret)
	require.NoError(t, err)
	return token
}

// Two bearers of other prefixes may give their producers the same name; two of the same are one.
func TestProducersOfTokensDoNotMeet(t *testing.T) {
	var b bearers
	b.add("a", auth.Append, "a")
	b.add("a2", auth.Append, "a", "ab")
	b.add("b", auth.Append, "b")
	b.add("all", auth.Append)
	s := newServer(t, Options{Tokens: b.tokens(t)})
	send := func(name, key string, seq int) *httptest.ResponseRecorder {
		body := fmt.Sprintf(`{"records":[{"key":%q,"value":""}],"producerId":"p","producerSeq":%d}`, b64(key), seq)
		return ask(s, "POST", appendEndpoint, body, b.header(name)...)
	}
	first := send("a", "a", 7).Body.String()
	require.Contains(t, first, `"startSequence":0`)
	require.Contains(t, send("b", "b", 100).Body.String(), `"startSequence":1`)
	require.Contains(t, send("all", "c", 5000).Body.String(), `"startSequence":2`)
	require.Equal(t, first, send("a2", "a", 7).Body.String(), "after a rotation the producer goes on")
	conflict := send("a", "a", 9)
	require.Equal(t, 409, conflict.Code)
	require.Contains(t, conflict.Body.String(), "the last one of the producer is 7")
}

// Errors of the log may name what the bearer must not know.
func TestErrorsTellLimitedTokensNothingOfOthers(t *testing.T) {
	var b bearers
	b.add("all", auth.Read)
	b.add("some", auth.Read, "k")
	fail := fmt.Errorf("table of secret-key..zzz: %w", io.ErrUnexpectedEOF)
	db := &testDB{DB: openDB(t, mem.New(mem.Options{}), engine.Options{})}
	db.keys = func(engine.KeysOptions) (engine.KeysPage, error) { return engine.KeysPage{}, fail }
	s := newServer(t, Options{DB: db, Tokens: b.tokens(t)})
	keys := func(name string) *httptest.ResponseRecorder {
		return ask(s, "GET", apiPrefix+"/keys", "", b.header(name)...)
	}
	require.Equal(t, 500, keys("all").Code)
	require.Contains(t, keys("all").Body.String(), "secret-key")
	require.Equal(t, 500, keys("some").Code)
	require.Contains(t, keys("some").Body.String(), "Internal Server Error; the server's log says why")
	fail = fmt.Errorf("list keys: %w: secret-a..secret-b", engine.ErrOutOfRange)
	require.Equal(t, 421, keys("some").Code)
	require.NotContains(t, keys("some").Body.String(), "secret")
	require.Contains(t, keys("all").Body.String(), "secret-a..secret-b")
}

// Whoever has no token learns that the server is not ready, but not of what.
func TestReadinessTellsStrangersNoReason(t *testing.T) {
	var b bearers
	b.add("all", auth.Append)
	b.add("some", auth.Read, "k")
	db := &testDB{DB: openDB(t, mem.New(mem.Options{}), engine.Options{}), notOK: errors.New("bucket secret-bucket is gone")}
	s := newServer(t, Options{DB: db, Tokens: b.tokens(t)})
	for _, headers := range [][]string{nil, b.header("some"), {"Authorization", "Bearer x"}} {
		got := ask(s, "GET", readyPath, "", headers...)
		require.Equal(t, 503, got.Code)
		require.NotContains(t, got.Body.String(), "secret")
	}
	require.Contains(t, ask(s, "GET", readyPath, "", b.header("all")...).Body.String(), "secret-bucket")
	require.Contains(t, ask(newServer(t, Options{DB: db}), "GET", readyPath, "").Body.String(), "secret-bucket")

	db.err = errors.New("table secret-table is damaged")
	got := ask(s, "GET", apiPrefix+"/keys", "", b.header("some")...)
	require.Equal(t, 503, got.Code)
	require.NotContains(t, got.Body.String(), "secret")
	require.Contains(t, ask(s, "POST", appendEndpoint, "", b.header("all")...).Body.String(), "secret-table")
}

// A replica of some keys lists what both its range and the token have.
func TestLimitedTokensAtReplicas(t *testing.T) {
	store := mem.New(mem.Options{})
	db := openDB(t, store, engine.Options{})
	for _, key := range []string{"a", "b", "m", "z"} {
		_, err := db.Append(t.Context(), []engine.Record{{Key: []byte(key)}}, engine.AppendOptions{})
		require.NoError(t, err)
	}
	require.NoError(t, db.Flush(t.Context()))
	reader, err := engine.OpenReader(t.Context(), store, engine.ReaderOptions{Keys: engine.KeyRange{Start: []byte("b"), End: []byte("n")}})
	require.NoError(t, err)
	defer func() { require.NoError(t, reader.Close(context.Background())) }()
	var b bearers
	b.add("both", auth.Read, "a", "b", "m", "z")
	b.add("outside", auth.Read, "a", "z")
	s := newServer(t, Options{DB: reader, Tokens: b.tokens(t)})
	require.Equal(t, `{"status":"success","keys":[{"key":"Yg=="},{"key":"bQ=="}]}`, ask(s, "GET", apiPrefix+"/keys", "", b.header("both")...).Body.String())
	for _, path := range []string{"/keys", "/scan?key=a", "/count?key=z", "/keys?prefix=zz"} {
		got := ask(s, "GET", apiPrefix+path, "", b.header("outside")...)
		require.Equal(t, 421, got.Code, path)
		require.NotContains(t, got.Body.String(), "b..n")
	}
	require.Contains(t, ask(newServer(t, Options{DB: reader}), "GET", apiPrefix+"/scan?key=a", "").Body.String(), "b..n")
}

// What comes on a stream of all prefixes is what the token covers, from the lowest start, old and new.
func TestLimitedTokensFollowWhatTheyCover(t *testing.T) {
	overBoth(t, func(t *testing.T, http2 bool) {
		var b bearers
		b.add("t", auth.Read, "a", "ab", "c")
		r := start(t, Options{Tokens: b.tokens(t)}).speak(http2)
		send := func() {
			for _, key := range []string{"a", "ab", "b", "c1", "", "abc"} {
				r.mustAppend(key, "v")
			}
		}
		send()
		body := `{"prefixes":[{"prefix":"","startSeq":1},{"prefix":"` + b64("ab") + `","startSeq":6}]}`
		o := r.open("POST", followPath, body, append(b.header("t"), "Accept", "application/x-ndjson")...)
		var got []string
		next := func(n int) {
			for n += len(got); len(got) < n; {
				var rec struct {
					Key      *[]byte
					Sequence uint64
				}
				require.NoError(t, json.Unmarshal([]byte(o.line()), &rec))
				if rec.Key != nil { // else it is a cursor
					got = append(got, fmt.Sprint(string(*rec.Key), rec.Sequence))
				}
			}
		}
		next(3)
		send()
		next(4)
		require.ElementsMatch(t, []string{"ab1", "c13", "abc5", "a6", "ab7", "c19", "abc11"}, got)
	})
}

// A page of another site can make a browser send what needs no leave: a POST with any text as its body.
func TestPagesOfOtherSitesChangeNothing(t *testing.T) {
	for name, c := range map[string]struct {
		headers []string
		want    int
	}{
		"no browser":       {nil, 200},
		"this server's":    {[]string{"Sec-Fetch-Site", "same-origin", "Origin", "http://example.com"}, 200},
		"typed by a user":  {[]string{"Sec-Fetch-Site", "none"}, 200},
		"another site":     {[]string{"Sec-Fetch-Site", "cross-site", "Origin", "http://evil.example"}, 403},
		"an old browser":   {[]string{"Origin", "http://evil.example"}, 403},
		"a page in a file": {[]string{"Origin", "null"}, 403},
	} {
		s := newServer(t, Options{})
		body := `{"records":[{"key":"","value":""}]}`
		got := ask(s, "POST", appendEndpoint, body, append(c.headers, "Content-Type", "text/plain")...)
		require.Equal(t, c.want, got.Code, name)
		require.Equal(t, c.want == 200, s.db.Status().Next == 1, name)
		for _, method := range []string{"PUT", "DELETE"} {
			require.Equal(t, c.want, ask(s, method, cursorsPath+"/c", `{"cursors":[]}`, c.headers...).Code, "%s: %s", method, name)
		}
		require.Equal(t, 200, ask(s, "GET", apiPrefix+"/keys", "", c.headers...).Code, "the browser keeps the answer from it")
	}
}
