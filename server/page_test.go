package server

import (
	"net"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/auth"
	"github.com/annalsdb/annals/server/ui"
)

func TestPage(t *testing.T) {
	tokens, err := auth.NewTokens([]auth.Entry{{Name: "t", Hash: auth.HashOf(auth.Generate()), Scopes: auth.Read}})
	require.NoError(t, err)
	s := start(t, Options{Tokens: tokens}) // the page needs none
	got := s.get(uiPath)
	require.Equal(t, http.StatusOK, got.status)
	require.Equal(t, ui.ContentType, got.header.Get("Content-Type"))
	require.Equal(t, string(ui.Document()), got.body)
	for name, want := range map[string]string{
		"Cache-Control": "no-cache", "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer",
	} {
		require.Equal(t, want, got.header.Get(name), name)
	}
	require.NotEmpty(t, got.header.Get("Content-Security-Policy"))

	head := s.do(http.MethodHead, uiPath, nil)
	require.Equal(t, http.StatusOK, head.status)
	require.Equal(t, got.header.Get("Content-Length"), head.header.Get("Content-Length"))

	again := s.get(uiPath, "If-None-Match", got.header.Get("ETag"))
	require.Equal(t, http.StatusNotModified, again.status)
	require.Empty(t, again.body)
	require.Equal(t, got.header.Get("Content-Security-Policy"), again.header.Get("Content-Security-Policy"))

	require.Equal(t, http.StatusMethodNotAllowed, s.post(uiPath, "").status)
	require.Equal(t, http.StatusNotFound, s.get(uiPath+"/").status)
}

// TestPageWhileOpening has the page show that the log is opening.
func TestPageWhileOpening(t *testing.T) {
	front := NewFront(FrontOptions{})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	go func() { _ = front.Serve(l) }()
	t.Cleanup(front.Close)
	r := &running{t: t, url: "http://" + l.Addr().String(), client: newClient(t, false)}
	got := r.get(uiPath)
	require.Equal(t, http.StatusOK, got.status)
	require.Equal(t, string(ui.Document()), got.body)
	require.NotEmpty(t, got.header.Get("Content-Security-Policy"))
}
