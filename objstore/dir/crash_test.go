//go:build linux || darwin

package dir

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/objstore"
)

// A recordedPut is one Put with the objects that are there before it.
type recordedPut struct {
	what   string
	before map[string][]byte
	name   string
	opts   objstore.PutOptions
	future bool // the old object's modification time is ahead of the clock
	match  bool // with the old object's etag
	want   []string
}

var newBody = bytes.Repeat([]byte("new"), 100)

var recordedPuts = []recordedPut{
	{
		what: "if absent, new folders", name: "a/b/n", opts: objstore.PutOptions{IfAbsent: true},
		before: map[string][]byte{"other": []byte("kept")},
		want: []string{
			"create .tmp/*", "write .tmp/*", "sync .tmp/*", // the body is durable
			"mkdir a", "syncDir .", "mkdir a/b", "syncDir a", // its folders are durable
			"link .tmp/* a/b/n", "unlink .tmp/*", // it is visible
			"syncDir a/b", // its entry is durable
		},
	},
	{
		what: "if absent, in the root", name: "n", opts: objstore.PutOptions{IfAbsent: true},
		want: []string{"create .tmp/*", "write .tmp/*", "sync .tmp/*", "link .tmp/* n", "unlink .tmp/*", "syncDir ."},
	},
	{
		what: "without conditions, new", name: "a/n",
		want: []string{
			"create .tmp/*", "write .tmp/*", "sync .tmp/*", "mkdir a", "syncDir .",
			"lock .lock", "link .tmp/* a/n", "unlock .lock", "unlink .tmp/*", "syncDir a",
		},
	},
	{
		what: "without conditions, replacing", name: "a/n",
		before: map[string][]byte{"a/n": []byte("old"), "a/m": []byte("kept")},
		want: []string{
			"create .tmp/*", "write .tmp/*", "sync .tmp/*", "mkdir a", "syncDir .",
			"lock .lock", "rename .tmp/* a/n", "unlock .lock", "syncDir a",
		},
	},
	{
		what: "if match", name: "n", match: true,
		before: map[string][]byte{"n": []byte("old")},
		want: []string{
			"create .tmp/*", "write .tmp/*", "sync .tmp/*",
			"lock .lock", "rename .tmp/* n", "unlock .lock", "syncDir .",
		},
	},
	{
		what: "if match, with the clock behind", name: "n", match: true, future: true,
		before: map[string][]byte{"n": []byte("old")},
		want: []string{
			"create .tmp/*", "write .tmp/*", "sync .tmp/*",
			"lock .lock", "setModified .tmp/*", "rename .tmp/* n", "unlock .lock", "syncDir .",
		},
	},
}

// start prepares a store with the objects that are there before the Put.
func (p recordedPut) start(t *testing.T) (*Store, *recorder, objstore.PutOptions) {
	t.Helper()
	root, err := filepath.EvalSymlinks(t.TempDir())
	require.NoError(t, err)
	plain, err := Open(root)
	require.NoError(t, err)
	mtime := time.Now().Add(-time.Hour)
	if p.future {
		mtime = time.Now().Add(time.Hour)
	}
	for name, body := range p.before {
		_, err := plain.Put(t.Context(), name, body, objstore.PutOptions{})
		require.NoError(t, err)
		require.NoError(t, os.Chtimes(plain.path(name), mtime, mtime))
	}
	opts := p.opts
	if p.match {
		attrs, err := plain.Head(t.Context(), p.name)
		require.NoError(t, err)
		opts.IfMatch = attrs.ETag
	}
	fs := &recorder{root: root}
	s, err := open(fs, root)
	require.NoError(t, err)
	fs.take()
	return s, fs, opts
}

// TestPutOrderF13 pins the order of a Put's steps: write, fsync, publish, fsync
// of the folder.
func TestPutOrderF13(t *testing.T) {
	for _, p := range recordedPuts {
		t.Run(p.what, func(t *testing.T) {
			s, fs, opts := p.start(t)
			_, err := s.Put(t.Context(), p.name, newBody, opts)
			require.NoError(t, err)
			var got []string
			for _, c := range fs.take() {
				got = append(got, c.String())
			}
			require.Equal(t, p.want, got)
		})
	}
}

// TestPowerLossF13 cuts the power after each of a Put's steps. Whatever part of
// the unsynced changes survives, the old object or the new one is there, whole,
// and all others are; once the Put has returned it is the new one.
func TestPowerLossF13(t *testing.T) {
	for _, p := range recordedPuts {
		t.Run(p.what, func(t *testing.T) {
			s, fs, opts := p.start(t)
			_, err := s.Put(t.Context(), p.name, newBody, opts)
			require.NoError(t, err)
			calls := fs.take()
			after := maps.Clone(p.before)
			if after == nil {
				after = map[string][]byte{}
			}
			after[p.name] = newBody

			distinct := map[string]map[string][]byte{}
			for n := range len(calls) + 1 {
				d := newDisk(p.before)
				for _, c := range calls[:n] {
					d.apply(c)
				}
				for _, state := range d.after() {
					distinct[fmt.Sprint(state)] = state
					isNew, isOld := sameObjects(state, after), sameObjects(state, p.before)
					require.True(t, isNew || isOld && n < len(calls), "after %d calls (%v) the disk may hold %q", n, calls[:n], state)
				}
			}
			require.Len(t, distinct, 2, "both states were met")
			for _, state := range distinct {
				requireReadable(t, state)
			}
		})
	}
}

func sameObjects(a, b map[string][]byte) bool { return maps.EqualFunc(a, b, bytes.Equal) }

// requireReadable writes the files of a state and reads them through a store.
func requireReadable(t *testing.T, state map[string][]byte) {
	t.Helper()
	root := t.TempDir()
	for name, body := range state {
		path := filepath.Join(root, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o777))
		require.NoError(t, os.WriteFile(path, body, 0o666))
	}
	s, err := Open(root)
	require.NoError(t, err)
	require.True(t, sameObjects(state, allObjects(t, s)))
}

// allObjects reads everything in a store.
func allObjects(t *testing.T, s *Store) map[string][]byte {
	t.Helper()
	all := map[string][]byte{}
	require.NoError(t, objstore.ListAll(t.Context(), s, "", "", func(e objstore.Entry) (bool, error) {
		o, err := s.Get(t.Context(), e.Name, objstore.GetOptions{})
		all[e.Name] = o.Body
		return true, err
	}))
	return all
}

// TestDiskModelSeesMistakes: the model of power loss would find a Put that leaves
// out a sync.
func TestDiskModelSeesMistakes(t *testing.T) {
	for _, p := range recordedPuts {
		s, fs, opts := p.start(t)
		_, err := s.Put(t.Context(), p.name, newBody, opts)
		require.NoError(t, err)
		calls := fs.take()
		for _, left := range []string{"sync", "syncDir"} {
			d := newDisk(p.before)
			for _, c := range calls {
				if c.op != left {
					d.apply(c)
				}
			}
			whole := 0
			states := d.after()
			for _, state := range states {
				if bytes.Equal(state[p.name], newBody) {
					whole++
				}
			}
			require.Less(t, whole, len(states), "%s without %s", p.what, left)
		}
	}
}

// TestRefusedPutMakesDurable: a process died after it published an object and
// before it synced the folder. Another one is refused because of that object, reads it
// and builds on it: then it must be durable.
func TestRefusedPutMakesDurable(t *testing.T) {
	tests := map[string]func(*Store) error{
		"if absent": func(s *Store) error {
			_, err := s.Put(t.Context(), "n", []byte("other"), objstore.PutOptions{IfAbsent: true})
			return err
		},
		"if match": func(s *Store) error {
			_, err := s.Put(t.Context(), "n", []byte("other"), objstore.PutOptions{IfMatch: "another"})
			return err
		},
	}
	for what, refused := range tests {
		t.Run(what, func(t *testing.T) {
			p := recordedPut{name: "n"}
			s, fs, _ := p.start(t)
			died := errors.New("died")
			fs.fail = func(_ int, c call) error {
				if c.op == "syncDir" {
					return died
				}
				return nil
			}
			_, err := s.Put(t.Context(), "n", newBody, objstore.PutOptions{IfAbsent: true})
			require.ErrorIs(t, err, died)
			fs.fail = nil
			require.ErrorIs(t, refused(s), objstore.ErrPrecondition)
			d := newDisk(nil)
			for _, c := range fs.take() {
				d.apply(c)
			}
			for _, state := range d.after() {
				require.Equal(t, newBody, state["n"])
			}
		})
	}
}

// TestFailedCalls fails each of a Put's calls in turn. The Put returns that
// error, the object is the old or the new one, no temporary file is left (unless its
// removal is what failed), and the Put can be repeated.
func TestFailedCalls(t *testing.T) {
	broken := errors.New("broken")
	for _, p := range recordedPuts {
		t.Run(p.what, func(t *testing.T) {
			for i := 0; ; i++ {
				s, fs, opts := p.start(t)
				var failed *call
				fs.fail = func(n int, c call) error {
					if n == i && failed == nil && c.op != "unlock" { // which cannot fail
						failed = &c
						return broken
					}
					return nil
				}
				_, err := s.Put(t.Context(), p.name, newBody, opts)
				if failed == nil {
					require.NoError(t, err)
					if i < len(p.want) {
						continue // it was an unlock
					}
					require.Equal(t, len(p.want), i)
					return
				}
				fs.fail = nil
				now := allObjects(t, s)
				if body, ok := now[p.name]; ok && !bytes.Equal(body, newBody) {
					require.Equal(t, p.before[p.name], body)
				}
				leftovers, rerr := os.ReadDir(s.path(tempFolder))
				require.NoError(t, rerr)
				if failed.op == "unlink" {
					require.NoError(t, err)
					require.Len(t, leftovers, 1)
				} else {
					require.ErrorIs(t, err, broken, "%s", failed)
					require.Empty(t, leftovers, "%s", failed)
				}

				_, err = s.Put(t.Context(), p.name, newBody, opts)
				if err != nil { // the first one was applied
					require.ErrorIs(t, err, objstore.ErrPrecondition, "%s", failed)
				}
				o, err := s.Get(t.Context(), p.name, objstore.GetOptions{})
				require.NoError(t, err)
				require.Equal(t, newBody, o.Body)
			}
		})
	}
}

// TestKnownFolderIsNotSyncedAgain pins the cost of a Put into a folder that the
// store knows: one fsync of the file and one of the folder.
func TestKnownFolderIsNotSyncedAgain(t *testing.T) {
	s, fs, _ := recordedPut{}.start(t)
	_, err := s.Put(t.Context(), "a/b/1", nil, objstore.PutOptions{IfAbsent: true})
	require.NoError(t, err)
	fs.take()
	_, err = s.Put(t.Context(), "a/b/2", newBody, objstore.PutOptions{IfAbsent: true})
	require.NoError(t, err)
	var got []string
	for _, c := range fs.take() {
		got = append(got, c.String())
	}
	require.Equal(t, []string{"create .tmp/*", "write .tmp/*", "sync .tmp/*", "link .tmp/* a/b/2", "unlink .tmp/*", "syncDir a/b"}, got)
}
