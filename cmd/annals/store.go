package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/annalsdb/annals/engine"
	"github.com/annalsdb/annals/objstore"
	"github.com/annalsdb/annals/objstore/dir"
	"github.com/annalsdb/annals/objstore/mem"
	"github.com/annalsdb/annals/objstore/s3"
)

// localFlushInterval is the flush interval where a PUT costs no money and takes
// about a millisecond.
const localFlushInterval = 2 * time.Millisecond

// storeURL is a parsed --store: where the log's objects are, not yet opened.
type storeURL struct {
	flushInterval time.Duration // what suits this kind of store
	open          func(context.Context) (objstore.Store, error)
}

// parseStoreURL reads mem:, file:PATH or s3://BUCKET/PREFIX?... without
// touching the store. Its errors repeat nothing that could be a secret.
func parseStoreURL(text string) (storeURL, error) {
	scheme, rest, _ := strings.Cut(text, ":")
	switch scheme {
	case "mem":
		if rest != "" {
			return storeURL{}, errors.New("mem: takes nothing behind the colon")
		}
		return storeURL{localFlushInterval, func(context.Context) (objstore.Store, error) {
			return mem.New(mem.Options{}), nil
		}}, nil
	case "file":
		path, err := filePath(rest)
		if err != nil {
			return storeURL{}, err
		}
		return storeURL{localFlushInterval, func(context.Context) (objstore.Store, error) {
			return dir.Open(path)
		}}, nil
	case "s3":
		options, err := s3.ParseURL(text)
		if err != nil {
			return storeURL{}, err
		}
		return storeURL{engine.DefaultFlushInterval, func(ctx context.Context) (objstore.Store, error) {
			return s3.Open(ctx, options)
		}}, nil
	}
	return storeURL{}, errors.New("want mem:, file:PATH or s3://BUCKET/PREFIX?endpoint=URL&region=R&path_style=true")
}

// filePath returns the path of a file: URL: everything behind the colon, as it
// is, or behind the slashes of file:///ABSOLUTE.
func filePath(rest string) (string, error) {
	if behind, ok := strings.CutPrefix(rest, "//"); ok {
		if !strings.HasPrefix(behind, "/") {
			return "", fmt.Errorf("file: with two slashes names a host; write file:%s or file:///PATH", behind)
		}
		rest = behind
	}
	if rest == "" {
		return "", errors.New("file: needs a path")
	}
	if strings.ContainsRune(rest, 0) {
		return "", errors.New("file: the path holds a zero byte")
	}
	return rest, nil
}
