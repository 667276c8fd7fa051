// Package storetest is the conformance suite of objstore.Store: one test for
// each sentence of the contract, run against every implementation.
//
//	func TestConformance(t *testing.T) {
//		storetest.Run(t, func(t *testing.T) objstore.Store { return mem.New(mem.Options{}) })
//	}
package storetest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/annalsdb/annals/objstore"
)

// Sizes of the suite. A racer is one goroutine; S3 clients keep about as many
// connections.
const (
	racers      = 100
	uploaders   = 16 // goroutines that fill a store before a test of listing or deleting
	manyObjects = objstore.MaxListPage + 50
	largeBody   = 20 << 20

	// clockSlack is how far two readings of a store's clock that follow one
	// another may seem to run backwards: its resolution may be a second, and the
	// nodes of a store may disagree a little.
	clockSlack = 2 * time.Second
)

// Run runs the whole suite. Open returns an empty store for each call, and
// registers with t whatever cleaning up it needs. The names that the suite uses
// are in no folder that package mem treats as written once, and no name continues another one
// with a slash.
func Run(t *testing.T, open func(t *testing.T) objstore.Store) { run(t, open, false) }

// RunServer is Run for a store whose server may answer a range of an object, while that
// is being replaced, with the ETag of one version and bytes of another: servers that keep
// objects in files do. annals reads ranges of objects that are written once only.
//
// Such a server may also refuse a condition without reading the body, and close the connection. With a large body its
// answer and the reset are under way at the same time, and which of them a busy client sees is chance: a Put
// that is refused may be ErrUnavailable then, at each try. Its callers must read back what became of it in any case.
func RunServer(t *testing.T, open func(t *testing.T) objstore.Store) { run(t, open, true) }

func run(t *testing.T, open func(t *testing.T) objstore.Store, server bool) {
	tests := []struct {
		name string
		run  func(*suite)
	}{
		{"put and get", (*suite).putAndGet},
		{"put replaces", (*suite).putReplaces},
		{"put if absent", (*suite).putIfAbsent},
		{"put if match", (*suite).putIfMatch},
		{"bodies of all sizes", (*suite).bodySizes},
		{"slices have one owner", (*suite).slices},
		{"invalid names", (*suite).invalidNames},
		{"unusual names", (*suite).unusualNames},
		{"programmer's errors panic", (*suite).panics},
		{"missing objects", (*suite).missing},
		{"context has ended", (*suite).cancelled},
		{"ranges", (*suite).ranges},
		{"ranges of an empty object", (*suite).emptyRanges},
		{"if none match", (*suite).ifNoneMatch},
		{"max bytes", (*suite).maxBytes},
		{"head", (*suite).head},
		{"server time", (*suite).serverTime},
		{"string", (*suite).describes},
		{"list in order", (*suite).listOrder},
		{"list against a model", (*suite).listModel},
		{"list more than a page F38", (*suite).listMany},
		{"list reflects what returned", (*suite).listReflects},
		{"delete", (*suite).deletes},
		{"delete a full batch", (*suite).deleteMany},
		{"race if absent", (*suite).raceIfAbsent},
		{"race if match", (*suite).raceIfMatch},
		{"counter by compare and swap", (*suite).raceCounter},
		{"readers during replacement", (*suite).raceReaders},
		{"readers of names that appear", (*suite).raceAppear},
		{"probe conditional writes", (*suite).probe},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			test.run(&suite{T: t, Assertions: require.New(t), ctx: ctx, store: open(t), server: server})
		})
	}
}

// suite is one test with its store.
type suite struct {
	*testing.T
	*require.Assertions
	ctx   context.Context
	store objstore.Store

	server bool // see RunServer
	races  int  // begun by race
}

// put writes an object without conditions; it must succeed.
func (s *suite) put(name string, body []byte) objstore.PutResult {
	s.Helper()
	res, err := s.store.Put(s.ctx, name, body, objstore.PutOptions{})
	s.NoError(err)
	s.NotEmpty(res.ETag)
	return res
}

// get reads a whole object; it must exist.
func (s *suite) get(name string) objstore.Object {
	s.Helper()
	o, err := s.store.Get(s.ctx, name, objstore.GetOptions{})
	s.NoError(err)
	return o
}

// holds checks that an object has this body and, if not empty, this etag.
func (s *suite) holds(name string, body []byte, etag string) {
	s.Helper()
	o := s.get(name)
	s.True(bytes.Equal(body, o.Body), "%s holds %d other bytes", name, len(o.Body))
	s.Equal(int64(len(body)), o.Size)
	if etag != "" {
		s.Equal(etag, o.ETag)
	}
}

// fill writes an object with its own name as the body under each of the names.
func (s *suite) fill(names []string) {
	s.Helper()
	g, ctx := errgroup.WithContext(s.ctx)
	g.SetLimit(uploaders)
	for _, name := range names {
		g.Go(func() error {
			_, err := s.store.Put(ctx, name, []byte(name), objstore.PutOptions{IfAbsent: true})
			return err
		})
	}
	s.NoError(g.Wait())
}

// list returns one page's names.
func (s *suite) list(prefix, startAfter string, limit int) (names []string, more bool) {
	s.Helper()
	page, err := s.store.List(s.ctx, prefix, startAfter, limit)
	s.NoError(err)
	for _, e := range page.Entries {
		names = append(names, e.Name)
	}
	return names, page.More
}

// Bodies that check themselves: a hash over the rest, so that any part, mixture or
// truncation shows.

const stampBytes = sha256.Size + 8

// stamped returns a body of size bytes (at least stampBytes) that carries id.
func stamped(id uint64, size int) []byte {
	b := make([]byte, size)
	var seed [32]byte
	binary.LittleEndian.PutUint64(seed[:], id)
	_, _ = rand.NewChaCha8(seed).Read(b[stampBytes:])
	binary.LittleEndian.PutUint64(b[sha256.Size:], id)
	sum := sha256.Sum256(b[sha256.Size:])
	copy(b, sum[:])
	return b
}

// stamp returns the id of a stamped body, or an error if it is not whole.
func stamp(b []byte) (uint64, error) {
	if len(b) < stampBytes {
		return 0, fmt.Errorf("a body of %d bytes is cut short", len(b))
	}
	if sha256.Sum256(b[sha256.Size:]) != [sha256.Size]byte(b[:sha256.Size]) {
		return 0, fmt.Errorf("a body of %d bytes is torn", len(b))
	}
	return binary.LittleEndian.Uint64(b[sha256.Size:]), nil
}
