package compaction

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/annalsdb/annals/internal/base"
	"github.com/annalsdb/annals/objstore"
)

// Retries of one request (I9). When they end the job fails; whoever runs jobs backs
// off before the next try (F29).
const (
	maxAttempts  = 6
	backoffFirst = 100 * time.Millisecond
	backoffLimit = 5 * time.Second
)

// compareBytes is how much of an object is read at a time to see whether it is ours.
const compareBytes = 1 << 20

// get reads exactly the n bytes at offset of an object that has size bytes. Failed and
// short reads are repeated, a few times (F35).
func (t *task) get(ctx context.Context, name string, size, offset, n int64) ([]byte, error) {
	for attempt := 0; ; attempt++ {
		t.gets.Add(1)
		obj, err := t.r.Store.Get(ctx, name, objstore.GetOptions{Offset: offset, Length: n, MaxBytes: n})
		switch {
		case errors.Is(err, objstore.ErrRange):
			return nil, base.Corruptf(name, offset, "the object ends before here, the manifest says at %d", size)
		case err != nil:
			err = fmt.Errorf("read %s at offset %d: %w", name, offset, err)
		case obj.Size != size:
			return nil, base.Corruptf(name, min(size, obj.Size), "the object has %d bytes, the manifest says %d", obj.Size, size)
		case int64(len(obj.Body)) != n:
			err = base.Corruptf(name, offset+int64(len(obj.Body)), "a read of %d bytes gave %d", n, len(obj.Body))
		default:
			return obj.Body, nil
		}
		if err := t.retry(ctx, attempt, err); err != nil {
			return nil, err
		}
	}
}

// put uploads a table. Its name is new and this task's alone, so that a refused PUT
// means that an earlier try had landed; that is looked at. It is too before put gives up:
// a failed PUT may have been applied.
func (t *task) put(ctx context.Context, name string, body []byte) error {
	for attempt := 0; ; attempt++ {
		t.puts.Add(1)
		_, err := t.r.Store.Put(ctx, name, body, objstore.PutOptions{IfAbsent: true})
		if err == nil {
			return nil
		}
		err = fmt.Errorf("write %s: %w", name, err)
		if errors.Is(err, objstore.ErrPrecondition) || attempt+1 == maxAttempts {
			rerr := t.sameObject(ctx, name, body)
			if rerr == nil {
				return nil
			}
			if errors.Is(rerr, base.ErrCorrupt) {
				return rerr
			}
		}
		if err := t.retry(ctx, attempt, err); err != nil {
			return err
		}
	}
}

// sameObject returns nil if the object is there and has this body. It reads a part
// at a time: the body is in memory already.
func (t *task) sameObject(ctx context.Context, name string, body []byte) error {
	for off := 0; off < len(body); off += compareBytes {
		part := body[off:min(off+compareBytes, len(body))]
		got, err := t.get(ctx, name, int64(len(body)), int64(off), int64(len(part)))
		if err != nil {
			return err
		}
		if !bytes.Equal(got, part) {
			return base.Corruptf(name, int64(off), "another object has this name")
		}
	}
	return nil
}

// retry waits before the next try, or returns why there is none.
func (t *task) retry(ctx context.Context, attempt int, cause error) error {
	if err := ctx.Err(); err != nil {
		return cause
	}
	for _, final := range []error{
		objstore.ErrNotFound, objstore.ErrNoBucket, objstore.ErrDenied, objstore.ErrTooLarge, objstore.ErrName,
	} {
		if errors.Is(cause, final) {
			return cause
		}
	}
	if attempt+1 >= maxAttempts {
		return fmt.Errorf("gave up after %d tries: %w", maxAttempts, cause)
	}
	if err := t.r.Env.Sleep(ctx, t.r.Env.Backoff(backoffFirst, backoffLimit, attempt)); err != nil {
		return fmt.Errorf("%w (last failure: %w)", err, cause)
	}
	return nil
}
