package objstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"
)

// Bounds of ProbeConditionalWrites: how often a write that meets ErrConflict is
// tried, and the wait before the first repetition (doubled each time).
const (
	probeTries = 5
	probeWait  = 50 * time.Millisecond
)

// maxProbeBody bounds what is read back; a probe's bodies are shorter.
const maxProbeBody = 4 << 10

// ProbeConditionalWrites finds out whether a store does what IfAbsent and
// IfMatch say, by writing a small object under a name that nobody else uses and
// deleting it again. A writer calls it before it trusts a store: some servers
// accept the conditions and ignore them, and then two writers overwrite each
// other without noticing (F20).
//
// It returns nil, an error that wraps ErrNoConditionalWrites and says which
// condition failed how, or the store's own error (wrapped) when an operation
// failed for another reason: then nothing is known. A refusal and the answer to
// a repeated request are both checked against what the object holds, because a
// refused write is ambiguous until read back. It takes four Puts, two Gets and a
// Delete on a good store, and a few more of each after conflicts.
func ProbeConditionalWrites(ctx context.Context, s Store, name string) error {
	p := &prober{store: s, name: name}
	err := p.run(ctx)
	if derr := s.Delete(ctx, []string{name}); derr != nil && err == nil {
		err = fmt.Errorf("delete the probe object: %w", derr)
	}
	if err != nil {
		return fmt.Errorf("probe conditional writes of %s: %w", s, err)
	}
	return nil
}

type prober struct {
	store Store
	name  string
}

func (p *prober) run(ctx context.Context) error {
	first, second, third := p.body(1), p.body(2), p.body(3)

	// Create it. Then creating it again must be refused.
	stale, ok, err := p.put(ctx, first, PutOptions{IfAbsent: true})
	if err != nil {
		return err
	}
	if !ok {
		return fmt.Errorf("%w: creating %s was refused though nobody else uses the name", ErrNoConditionalWrites, p.name)
	}
	if _, ok, err = p.put(ctx, second, PutOptions{IfAbsent: true}); err != nil {
		return err
	}
	if ok {
		return fmt.Errorf("%w: If-None-Match (IfAbsent) did not protect an object that exists", ErrNoConditionalWrites)
	}

	// Replace it, which makes its first etag stale. Then that must be refused.
	if _, ok, err = p.put(ctx, second, PutOptions{IfMatch: stale}); err != nil {
		return err
	}
	if !ok {
		return fmt.Errorf("%w: If-Match with the current etag was refused", ErrNoConditionalWrites)
	}
	if _, ok, err = p.put(ctx, third, PutOptions{IfMatch: stale}); err != nil {
		return err
	}
	if ok {
		return fmt.Errorf("%w: If-Match with a stale etag replaced the object", ErrNoConditionalWrites)
	}
	return nil
}

// put writes body under a condition and reports whether the object holds it
// afterwards, and then the object's etag.
func (p *prober) put(ctx context.Context, body []byte, opts PutOptions) (etag string, applied bool, err error) {
	wait := probeWait
	for try := 1; ; try++ {
		res, err := p.store.Put(ctx, p.name, body, opts)
		switch {
		case err == nil:
			return res.ETag, true, nil
		case errors.Is(err, ErrPrecondition), errors.Is(err, ErrConflict) && try < probeTries:
		default:
			return "", false, err
		}
		// Refused, perhaps because an earlier try of the same request was applied.
		obj, gerr := p.store.Get(ctx, p.name, GetOptions{MaxBytes: maxProbeBody})
		switch {
		case gerr == nil && bytes.Equal(obj.Body, body):
			return obj.ETag, true, nil
		case gerr != nil && !errors.Is(gerr, ErrNotFound):
			return "", false, fmt.Errorf("read back the probe object: %w", gerr)
		case errors.Is(err, ErrPrecondition):
			return "", false, nil
		}
		if err := pause(ctx, wait); err != nil {
			return "", false, err
		}
		wait *= 2
	}
}

// body returns the content for one step; it differs from every other step's.
func (p *prober) body(step int) []byte {
	return fmt.Appendf(nil, "annals: test of conditional writes, step %d\n%s\n", step, p.name)
}

// pause waits for d or until ctx ends.
func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
