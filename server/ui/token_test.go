package ui_test

import (
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/auth"
	"github.com/annalsdb/annals/server"
)

// secrets are tokens of a server, by name.
func secrets(t *testing.T, entries ...auth.Entry) (map[string]string, *auth.Tokens) {
	all := make(map[string]string)
	for i := range entries {
		secret := auth.Generate()
		entries[i].Hash = auth.HashOf(secret)
		all[entries[i].Name] = secret
	}
	tokens, err := auth.NewTokens(entries)
	require.NoError(t, err)
	return all, tokens
}

func TestTokens(t *testing.T) {
	secret, tokens := secrets(t,
		auth.Entry{Name: "full", Scopes: auth.Read},
		auth.Entry{Name: "limited", Scopes: auth.Read, Prefixes: [][]byte{[]byte("user/")}},
		auth.Entry{Name: "writer", Scopes: auth.Append})
	s := serve(t, server.Options{Tokens: tokens})
	s.append("user/1", "of the user", "other", "of others")
	b := newTab(t, s.origin())
	give := func(token string) {
		b.wait("!document.getElementById('token').hidden")
		b.write("#token-value", token)
		b.press("\r")
	}

	// Without one, and with a wrong one, the page asks for one and shows nothing else.
	b.open("#key=user%2F1")
	b.waitText("token-why", "This server answers only who has a token")
	b.wait("document.activeElement.id === 'token-value'")
	require.True(t, eval[bool](b, "document.getElementById('log').hidden && document.getElementById('now').hidden"))
	give(auth.Generate())
	b.waitText("token-why", "The server does not take this token")
	give("annals_€") // which no header can hold
	b.waitText("token-why", "This is no token")
	give("not a token at all")
	b.waitText("token-why", "The server does not take this token")

	give(secret["full"])
	b.waitText("records", "of the user")
	b.waitText("facts", "Segments 1")
	b.waitText("key-list", "other")
	b.wait("document.getElementById('token').hidden")
	require.Empty(t, eval[string](b, "document.getElementById('token-value').value"))

	// The tab keeps it, and the address does not have it. It goes with event streams too.
	run(b, chromedp.Reload())
	b.waitText("records", "of the user")
	b.click("#live")
	b.waitText("stream-note", "Live")
	s.append("user/1", "to the tail")
	b.waitText("records", "to the tail")
	for _, u := range append(b.requests(), eval[string](b, "location.href")) {
		require.NotContains(t, u, secret["full"])
	}
	require.Zero(t, eval[int](b, "localStorage.length"))
	require.Empty(t, eval[string](b, "document.cookie"))

	b.click("#forget")
	b.waitText("token-why", "This server answers only who has a token")
	require.Zero(t, eval[int](b, "sessionStorage.length"))
	require.Empty(t, eval[string](b, "document.getElementById('records').textContent"))

	// A limited one sees its keys and streams, and why there is nothing else.
	give(secret["limited"])
	b.waitText("now-refused", "the token is limited to some")
	b.waitText("segments-refused", "the token is limited to some")
	b.waitText("state", "Ready")
	b.waitText("records", "to the tail")
	b.wait("document.getElementById('key-list').innerText === 'user/1'")
	require.True(t, eval[bool](b, "document.getElementById('tiles').hidden"))
	b.write("#prefix", "other")
	b.press("\r")
	b.waitText("keys-note", "No keys: the token covers no key with this prefix.")
	b.click("#open")
	b.waitText("stream-note", "No records: the token does not cover the key.")

	// Another one shows what it may at once.
	b.click("#forget")
	give(secret["writer"])
	b.waitText("now-refused", "the token does not have the scope read")
	b.waitText("keys-note", "the token does not have the scope read")
	b.click("#forget")
	give(secret["full"])
	b.waitText("facts", "Segments 1")
	b.waitText("records", "of others")
}
