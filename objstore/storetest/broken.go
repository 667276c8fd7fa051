package storetest

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/objstore"
)

// Breakage is something that goes wrong around a store while it is open: a permission, the credentials, the bucket or
// space is gone.
type Breakage struct {
	Name string
	// Open returns an empty store, and what breaks it, which returns what mends it.
	Open func(t *testing.T) (store objstore.Store, breakIt func() (mend func()))
	// Fails names what fails meanwhile, of "put", "get", "list", "delete" and "time". The rest goes on.
	Fails []string
	// Want is the error, one of package objstore's.
	Want error
}

// RunBroken checks that what fails meanwhile says so by the contract's error, that nothing that was there suffers, and that the
// same store works again once it is mended.
func RunBroken(t *testing.T, breakages []Breakage) {
	for _, b := range breakages {
		t.Run(b.Name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			store, breakIt := b.Open(t)
			s := &suite{T: t, Assertions: require.New(t), ctx: ctx, store: store}
			s.broken(b, breakIt)
		})
	}
}

// broken runs one breakage.
func (s *suite) broken(b Breakage, breakIt func() (mend func())) {
	const kept, head, gone, fresh = "a/kept", "a/head", "a/gone", "b/fresh"
	body := stamped(1, 1000)
	s.put(kept, body)
	s.put(gone, []byte("gone"))
	etag := s.put(head, []byte("first")).ETag

	calls := map[string][]func() error{
		"put": {
			func() error {
				_, err := s.store.Put(s.ctx, fresh, body, objstore.PutOptions{IfAbsent: true})
				return err
			},
			func() error {
				res, err := s.store.Put(s.ctx, head, []byte("second"), objstore.PutOptions{IfMatch: etag})
				if err == nil {
					etag = res.ETag
				}
				return err
			},
		},
		"get": {func() error {
			_, err := s.store.Get(s.ctx, kept, objstore.GetOptions{Offset: 10, Length: 10})
			return err
		}},
		"list": {func() error {
			_, err := s.store.List(s.ctx, "a/", "", 0)
			return err
		}},
		"delete": {func() error { return s.store.Delete(s.ctx, []string{gone}) }},
		"time": {func() error {
			_, err := s.store.ServerTime(s.ctx)
			return err
		}},
	}
	for _, op := range b.Fails {
		s.NotEmpty(calls[op], "unknown operation %q", op)
	}
	mend := breakIt()
	for op, list := range calls {
		for i, call := range list {
			err := call()
			if !slices.Contains(b.Fails, op) {
				s.NoError(err, "%s %d", op, i)
				continue
			}
			s.ErrorIs(err, b.Want, "%s %d", op, i)
			s.Equal(objstore.Lasting(b.Want), objstore.Lasting(err), "%s %d: %v", op, i, err)
			s.NotErrorIs(err, objstore.ErrPrecondition, "it would say that somebody else was first")
			s.NotErrorIs(err, objstore.ErrNotFound, "it would say that nothing is there")
		}
	}
	mend()
	s.holds(kept, body, "")
	for op, list := range calls {
		if !slices.Contains(b.Fails, op) {
			continue
		}
		for i, call := range list {
			s.NoError(call(), "%s %d, mended", op, i)
		}
	}
	s.holds(fresh, body, "")
	s.holds(head, []byte("second"), etag)
	_, err := s.store.Get(s.ctx, gone, objstore.GetOptions{})
	s.ErrorIs(err, objstore.ErrNotFound)
}
