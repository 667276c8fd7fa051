package s3

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/objstore"
	"github.com/annalsdb/annals/objstore/s3/s3fake"
	"github.com/annalsdb/annals/objstore/storetest"
)

func TestBroken(t *testing.T) {
	isolate(t)
	all := []string{"put", "get", "list", "delete", "time"}
	answers := func(name string, status int, code string, want error, fails []string, ops ...s3fake.Op) storetest.Breakage {
		return storetest.Breakage{Name: name, Want: want, Fails: fails,
			Open: func(t *testing.T) (objstore.Store, func() func()) {
				srv := s3fake.New(t)
				o := testOptions(srv)
				o.Sleep = (&waits{}).sleep
				s, err := Open(t.Context(), o)
				require.NoError(t, err)
				return s, func() func() {
					srv.SetHook(func(r *s3fake.Request) s3fake.Action {
						for _, op := range ops {
							if r.Op == op {
								return s3fake.Fail(status, code)
							}
						}
						return s3fake.Action{}
					})
					return func() { srv.SetHook(nil) }
				}
			}}
	}
	every := []s3fake.Op{s3fake.PutObject, s3fake.GetObject, s3fake.ListObjects, s3fake.DeleteObjects}
	storetest.RunBroken(t, []storetest.Breakage{
		answers("no permission to put", 403, "AccessDenied", objstore.ErrDenied, []string{"put"}, s3fake.PutObject),
		answers("no permission to get", 403, "AccessDenied", objstore.ErrDenied, []string{"get"}, s3fake.GetObject),
		answers("no permission to list", 403, "AccessDenied", objstore.ErrDenied, []string{"list", "time"}, s3fake.ListObjects),
		answers("no permission to delete", 403, "AccessDenied", objstore.ErrDenied, []string{"delete"}, s3fake.DeleteObjects),
		answers("no permission", 403, "AccessDenied", objstore.ErrDenied, all, every...),
		answers("expired", 400, "ExpiredToken", objstore.ErrCredentials, all, every...),
		answers("revoked", 403, "InvalidAccessKeyId", objstore.ErrCredentials, all, every...),
		answers("wrong", 403, "SignatureDoesNotMatch", objstore.ErrCredentials, all, every...),
		answers("no bucket", 404, "NoSuchBucket", objstore.ErrNoBucket, all, every...),
		answers("quota", 403, "QuotaExceeded", objstore.ErrFull, []string{"put"}, s3fake.PutObject),
		answers("full", 507, "XMinioStorageFull", objstore.ErrFull, []string{"put"}, s3fake.PutObject),
		answers("full, in another's words", 507, "Whatever", objstore.ErrFull, []string{"put"}, s3fake.PutObject),
		answers("throttled", 503, "SlowDown", objstore.ErrUnavailable, all, every...),
		answers("clock", 403, "RequestTimeTooSkewed", objstore.ErrUnavailable, all, every...),
	})
}
