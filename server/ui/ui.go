// Package ui is the page of a server, GET /ui: one document with its style and its script in it, which asks the
// API of the server that it came from and nothing else. docs/UI.md says what it shows.
//
// All functions may be called from any goroutine.
package ui

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"net/http"
	"strings"
	"sync"
)

// ContentType is the type of the document.
const ContentType = "text/html; charset=utf-8"

//go:embed page
var files embed.FS

// scripts are the parts of the script, in their order: one module.
var scripts = []string{"dom.js", "net.js", "charts.js", "now.js", "segments.js", "keys.js", "stream.js", "main.js"}

// document is the page and what goes with it.
type document struct {
	body   []byte
	etag   string
	policy string
}

var page = sync.OnceValue(build)

// build joins the page's files. Its policy allows the style and the script that are in it, by their hashes,
// and requests to its own server: nothing of what the log holds could run, or send anything elsewhere.
func build() document {
	style := read("page.css")
	var script []byte
	for _, name := range scripts {
		script = append(script, read(name)...)
	}
	body := read("page.html")
	body = bytes.Replace(body, []byte("{{style}}"), style, 1)
	body = bytes.Replace(body, []byte("{{script}}"), script, 1)
	return document{
		body: body,
		etag: `"` + hash(body) + `"`,
		policy: strings.Join([]string{
			"default-src 'none'",
			"style-src 'sha256-" + hash(style) + "'",
			"script-src 'sha256-" + hash(script) + "'",
			"connect-src 'self'",
			"img-src data:", // its icon
			"base-uri 'none'",
			"form-action 'none'",
			"frame-ancestors 'none'",
			"require-trusted-types-for 'script'", // text never becomes markup
			"trusted-types 'none'",
		}, "; "),
	}
}

// read returns an embedded file, which is there.
func read(name string) []byte {
	data, err := files.ReadFile("page/" + name)
	if err != nil {
		panic("ui: " + err.Error())
	}
	return data
}

func hash(data []byte) string {
	sum := sha256.Sum256(data)
	return base64.StdEncoding.EncodeToString(sum[:])
}

// Document returns the page. It is shared: nobody may change it.
func Document() []byte { return page().body }

// ETag returns the document's tag, in its quotes, which changes with it.
func ETag() string { return page().etag }

// SetHeaders sets what goes with the document, but for its type and length: how it is kept, what it may do.
func SetHeaders(h http.Header) {
	h.Set("ETag", ETag())
	h.Set("Cache-Control", "no-cache") // kept, and asked for again each time: a new server has a new page
	h.Set("Content-Security-Policy", page().policy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
}
