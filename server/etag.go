package server

import (
	"net/http"
	"strings"
)

// unchanged answers a client that has the content of the tag already, and reports whether it did.
func (x *exchange) unchanged(tag string) bool {
	if !hasTag(x.r, tag) {
		return false
	}
	x.status = http.StatusNotModified
	x.extendWrite()
	x.w.WriteHeader(http.StatusNotModified)
	return true
}

// hasTag reports whether the client has the content of the tag.
func hasTag(r *http.Request, tag string) bool {
	for _, line := range r.Header["If-None-Match"] {
		for one := range strings.SplitSeq(line, ",") {
			if one = strings.TrimSpace(one); one == "*" || strings.TrimPrefix(one, "W/") == tag {
				return true
			}
		}
	}
	return false
}
