package server

import (
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"net/http"
)

const (
	openAPIPath = "/openapi.yaml"
	typeYAML    = "application/yaml"
)

// openAPI describes the API for tools. It is the same for every server, so that it needs no token.
//
//go:embed openapi.yaml
var openAPI []byte

var openAPITag = tagOf(openAPI)

// tagOf returns an ETag, in its quotes, that changes with the content.
func tagOf(content []byte) string {
	sum := sha256.Sum256(content)
	return `"` + hex.EncodeToString(sum[:16]) + `"`
}

// describeAPI serves GET /openapi.yaml.
func (s *Server) describeAPI(x *exchange) error {
	h := x.w.Header()
	h.Set("ETag", openAPITag)
	h.Set("Cache-Control", "no-cache") // ask whether it is still the same
	if !x.unchanged(openAPITag) {
		x.respond(http.StatusOK, typeYAML, openAPI)
	}
	return nil
}
