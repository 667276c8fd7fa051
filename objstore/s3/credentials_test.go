package s3

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/objstore"
	"github.com/annalsdb/annals/objstore/s3/s3fake"
)

// knows makes a server accept one key only, whose id it returns a setter of.
func knows(srv *s3fake.Server, id string) (set func(string)) {
	var known atomic.Value
	known.Store(id)
	srv.SetHook(func(r *s3fake.Request) s3fake.Action {
		if strings.Contains(r.Header.Get("Authorization"), "Credential="+known.Load().(string)+"/") {
			return s3fake.Action{}
		}
		return s3fake.Fail(400, "ExpiredToken")
	})
	return func(id string) { known.Store(id) }
}

// Whoever renews credentials at their source needs not restart anybody.
func TestCredentialsAreRenewed(t *testing.T) {
	const keyFile = "[default]\naws_access_key_id = %s\naws_secret_access_key = secret\n"
	const process = `{"Version":1,"AccessKeyId":"%s","SecretAccessKey":"secret"}`
	for _, test := range []struct {
		name    string
		content string
		setup   func(t *testing.T, file string)
	}{
		{"a file of keys", keyFile, func(t *testing.T, file string) { t.Setenv("AWS_SHARED_CREDENTIALS_FILE", file) }},
		{"a process", process, func(t *testing.T, file string) {
			config := file + ".config"
			require.NoError(t, os.WriteFile(config, []byte("[default]\ncredential_process = cat "+file+"\n"), 0o600))
			t.Setenv("AWS_CONFIG_FILE", config)
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			isolate(t)
			file := filepath.Join(t.TempDir(), "keys")
			write := func(id string) {
				require.NoError(t, os.WriteFile(file, fmt.Appendf(nil, test.content, id), 0o600))
			}
			write("first")
			test.setup(t, file)
			srv := s3fake.New(t)
			setKnown := knows(srv, "first")
			o := testOptions(srv)
			o.Credentials = nil
			s, err := Open(t.Context(), o)
			require.NoError(t, err)
			put := func() error {
				_, err := s.Put(t.Context(), "n", nil, objstore.PutOptions{})
				return err
			}
			require.NoError(t, put())

			// Renewed before the old ones are refused: nobody notices.
			write("second")
			setKnown("second")
			require.NoError(t, put())

			// Renewed afterwards: refused until then, and looked for now and then only.
			setKnown("third")
			before := srv.Count(s3fake.PutObject)
			require.ErrorIs(t, put(), objstore.ErrCredentials)
			require.ErrorIs(t, put(), objstore.ErrCredentials)
			require.Equal(t, before+2, srv.Count(s3fake.PutObject), "a try that cannot do better is not repeated")
			write("third")
			require.Eventually(t, func() bool { return put() == nil }, time.Minute, 20*time.Millisecond)
		})
	}
}

// Keys that were given are used, and no others.
func TestGivenCredentialsStay(t *testing.T) {
	s, srv, _ := open(t, nil)
	file := filepath.Join(t.TempDir(), "keys")
	require.NoError(t, os.WriteFile(file, []byte("[default]\naws_access_key_id = other\naws_secret_access_key = s\n"), 0o600))
	t.Setenv("AWS_SHARED_CREDENTIALS_FILE", file)
	knows(srv, "other")
	_, err := s.Put(t.Context(), "n", nil, objstore.PutOptions{})
	require.ErrorIs(t, err, objstore.ErrCredentials)
	require.Equal(t, 1, srv.Count(s3fake.PutObject))
}
