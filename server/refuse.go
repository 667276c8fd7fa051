package server

import "net/http"

// refuse counts and logs a 401 or 403, and says what the client has to send.
func (x *exchange) refuse(e *apiError) {
	x.s.metrics.refused.WithLabelValues(string(e.refused)).Inc()
	if e.status == http.StatusUnauthorized {
		x.w.Header().Set("WWW-Authenticate", "Bearer")
	}
	x.logRefusal(e.refused)
}

// logRefusal logs who was refused. Not what for: keys may be long, and whoever has no token could write into the log.
func (x *exchange) logRefusal(why denial) {
	attrs := []any{"reason", string(why), "method", boundedMethod(x.r.Method), "endpoint", x.endpoint, "remote", x.r.RemoteAddr}
	switch {
	case x.token != nil:
		attrs = append(attrs, "token", x.token.Name())
	case x.unknown != "":
		attrs = append(attrs, "token_sha256", x.unknown)
	}
	x.s.refusals.write(attrs...)
}
