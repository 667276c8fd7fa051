package s3server_test

import (
	"context"
	"errors"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/objstore"
	"github.com/annalsdb/annals/objstore/s3"
	"github.com/annalsdb/annals/objstore/s3/s3server"
)

// A server of the test's own is killed, started again and paused, and keeps what it acknowledged.
func TestKilledAndPaused(t *testing.T) {
	s := s3server.Start(t)
	if s.Given() {
		t.Skip("the server is not ours to kill")
	}
	options, err := s3.ParseURL(s.URL("p"))
	require.NoError(t, err)
	options.MaxAttempts = 1
	store, err := s3.Open(t.Context(), options)
	require.NoError(t, err)
	put := func(name string) error {
		_, err := store.Put(t.Context(), name, []byte("body of "+name), objstore.PutOptions{IfAbsent: true})
		return err
	}
	require.NoError(t, put("a"))

	s.Kill()
	require.ErrorIs(t, put("b"), objstore.ErrUnavailable)
	_, err = net.DialTimeout("tcp", s.Address(), time.Second)
	require.Error(t, err)
	require.NoError(t, s.Restart())
	require.ErrorIs(t, put("a"), objstore.ErrPrecondition)
	object, err := store.Get(t.Context(), "a", objstore.GetOptions{})
	require.NoError(t, err)
	require.Equal(t, "body of a", string(object.Body))

	// A process stops within moments of the signal.
	require.NoError(t, s.Process().Pause())
	require.Eventually(t, func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		_, err := store.Get(ctx, "a", objstore.GetOptions{})
		return errors.Is(err, context.DeadlineExceeded)
	}, 2*time.Minute, time.Millisecond)
	require.NoError(t, s.Process().Resume())
	require.NoError(t, put("c"))
}
