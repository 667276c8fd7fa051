//go:build linux || darwin

package dir

import (
	"context"
	"fmt"

	"github.com/annalsdb/annals/objstore"
)

// Get implements objstore.Store. The file that it opens never changes, so that
// its body is whole even when the object is replaced or deleted meanwhile.
func (s *Store) Get(ctx context.Context, name string, opts objstore.GetOptions) (objstore.Object, error) {
	opts.Check()
	o, err := s.get(ctx, name, opts)
	if err != nil {
		return objstore.Object{}, fmt.Errorf("get %s: %w", name, err)
	}
	return o, nil
}

func (s *Store) get(ctx context.Context, name string, opts objstore.GetOptions) (objstore.Object, error) {
	if err := begin(ctx, name); err != nil {
		return objstore.Object{}, err
	}
	if err := s.acquireSlot(ctx); err != nil {
		return objstore.Object{}, err
	}
	defer s.releaseSlot()
	f, err := s.fs.open(s.path(name))
	if err != nil {
		if notThere(err) {
			err = s.absent()
		}
		return objstore.Object{}, describe(err)
	}
	defer func() { _ = f.Close() }() // nothing was written
	i, err := f.stat()
	if err != nil {
		return objstore.Object{}, err
	}
	if !i.mode.IsRegular() {
		return objstore.Object{}, objstore.ErrNotFound
	}
	if opts.IfNoneMatch == i.etag() {
		return objstore.Object{}, objstore.ErrNotModified
	}
	start, end, err := opts.Span(i.size)
	if err != nil {
		return objstore.Object{}, err
	}
	body := make([]byte, end-start)
	for done := 0; done < len(body); {
		if err := ctx.Err(); err != nil {
			return objstore.Object{}, err
		}
		// A ReadAt that is short returns an error.
		n, err := f.ReadAt(body[done:min(len(body), done+ioChunk)], start+int64(done))
		done += n
		if err != nil && done < len(body) {
			return objstore.Object{}, fmt.Errorf("read at %d of %d bytes: %w", start+int64(done), i.size, err)
		}
	}
	return objstore.Object{Body: body, Attributes: s.attributes(i)}, nil
}

// Head implements objstore.Store.
func (s *Store) Head(ctx context.Context, name string) (objstore.Attributes, error) {
	if err := begin(ctx, name); err != nil {
		return objstore.Attributes{}, fmt.Errorf("head %s: %w", name, err)
	}
	i, err := s.fs.stat(s.path(name))
	switch {
	case err == nil && i.mode.IsRegular():
		return s.attributes(i), nil
	case err == nil:
		err = objstore.ErrNotFound
	case notThere(err):
		err = s.absent()
	}
	return objstore.Attributes{}, fmt.Errorf("head %s: %w", name, describe(err))
}

func (s *Store) attributes(i info) objstore.Attributes {
	return objstore.Attributes{Size: i.size, ETag: i.etag(), Modified: i.modified, Time: s.now()}
}
