package server

import (
	"net/http"

	"github.com/annalsdb/annals/server/ui"
)

const uiPath = "/ui"

// page serves GET /ui. It holds nothing of the log, so that it needs no token: what it asks for does.
func (s *Server) page(x *exchange) error {
	ui.SetHeaders(x.w.Header())
	if !x.unchanged(ui.ETag()) {
		x.respond(http.StatusOK, ui.ContentType, ui.Document())
	}
	return nil
}
