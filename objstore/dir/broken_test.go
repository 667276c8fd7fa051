//go:build linux || darwin

package dir

import (
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/objstore"
	"github.com/annalsdb/annals/objstore/storetest"
)

// What the file system says is what the contract says: a full disk, a quota, a permission that was lost, a disk that went
// read-only, a folder that is gone.
func TestBroken(t *testing.T) {
	answers := func(name string, errno syscall.Errno, want error, fails []string, ops ...string) storetest.Breakage {
		return storetest.Breakage{Name: name, Want: want, Fails: fails,
			Open: func(t *testing.T) (objstore.Store, func() func()) {
				var broken atomic.Bool
				r := &recorder{root: t.TempDir()}
				r.fail = func(_ int, c call) error {
					if broken.Load() && slices.Contains(ops, c.op) {
						return &os.PathError{Op: c.op, Path: c.path, Err: errno}
					}
					return nil
				}
				s, err := open(r, r.root)
				require.NoError(t, err)
				return s, func() func() {
					broken.Store(true)
					return func() { broken.Store(false) }
				}
			}}
	}
	writes := []string{"put", "time"}
	storetest.RunBroken(t, []storetest.Breakage{
		answers("full", syscall.ENOSPC, objstore.ErrFull, writes, "write"),
		answers("full for names", syscall.ENOSPC, objstore.ErrFull, writes, "create"),
		answers("quota", syscall.EDQUOT, objstore.ErrFull, writes, "write"),
		answers("no permission to write", syscall.EACCES, objstore.ErrDenied, writes, "create"),
		answers("read-only", syscall.EROFS, objstore.ErrDenied, []string{"put", "time", "delete"}, "create", "unlink"),
		{Name: "folder is gone", Want: objstore.ErrNoBucket, Fails: []string{"put", "get", "list", "delete", "time"},
			Open: func(t *testing.T) (objstore.Store, func() func()) {
				root := filepath.Join(t.TempDir(), "log")
				s, err := Open(root)
				require.NoError(t, err)
				return s, func() func() {
					require.NoError(t, os.Rename(root, root+"-away"))
					return func() { require.NoError(t, os.Rename(root+"-away", root)) }
				}
			}},
	})
}
