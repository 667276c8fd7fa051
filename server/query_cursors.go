package server

import (
	"net/url"
	"strings"

	"github.com/annalsdb/annals/engine"
	"github.com/annalsdb/annals/wire"
)

// defaultCursors is the page of cursors and of consumers.
const defaultCursors = 1000

// keys returns the keys that are given as key or key_b64, each as often as one
// likes, in their order.
func (q *query) keys(raw string) (keys [][]byte) {
	for pair := range strings.SplitSeq(raw, "&") {
		rawName, rawValue, _ := strings.Cut(pair, "=")
		name, err := url.QueryUnescape(rawName)
		if err != nil || name != "key" && name != "key_b64" {
			continue
		}
		if len(keys) == wire.MaxCursors {
			q.fail("more than %d keys", wire.MaxCursors)
			return nil
		}
		value, err := url.QueryUnescape(rawValue)
		if err != nil {
			q.fail("%s is not percent-encoded text: %v", name, err)
			return nil
		}
		key := []byte(value)
		if name == "key_b64" {
			if key, err = wire.DecodeQueryBase64(value); err != nil {
				q.fail("%s: %v", name, err)
				return nil
			}
		}
		keys = append(keys, key)
	}
	return keys
}

// parseCursors reads which cursors of a consumer are asked for: those of some
// keys, or a page of all.
func parseCursors(raw string) (engine.CursorsOptions, error) {
	q := parseQuery(raw, "limit", "after_b64")
	o := engine.CursorsOptions{
		Keys:  q.keys(raw),
		After: q.base64("after_b64"),
		Limit: int(q.positive("limit", defaultCursors, wire.MaxCursors)),
	}
	if len(o.Keys) > 0 {
		for _, name := range q.names {
			q.fail("%s cannot be combined with key or key_b64", name)
		}
		o.Limit = 0 // all of them
	}
	return o, q.err
}

// parseCursorKeys reads the keys whose cursors are to be deleted; none: all.
func parseCursorKeys(raw string) ([][]byte, error) {
	var q query
	keys := q.keys(raw)
	if len(keys) == 0 && raw != "" {
		// A misspelt key must not delete all.
		q.fail("there are parameters, but no key or key_b64: to delete all cursors of the consumer give none")
	}
	return keys, q.err
}

func parseConsumers(raw string) (after string, limit int, err error) {
	q := parseQuery(raw, "limit", "after")
	limit = int(q.positive("limit", defaultCursors, wire.MaxCursors))
	if after, _ = q.get("after"); after != "" {
		if err := wire.ValidateConsumer(after); err != nil {
			q.fail("after: %v", err)
		}
	}
	return after, limit, q.err
}
