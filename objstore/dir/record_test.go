//go:build linux || darwin

package dir

import (
	"bytes"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

// call is one call of the file system that changes something. Paths are
// relative to the root.
type call struct {
	op   string
	path string
	to   string // link, rename
	data []byte // write
}

// String leaves out the random part of temporary names.
func (c call) String() string {
	short := func(p string) string {
		if strings.HasPrefix(p, tempFolder+"/") {
			return tempFolder + "/*"
		}
		return p
	}
	if c.to != "" {
		return fmt.Sprintf("%s %s %s", c.op, short(c.path), short(c.to))
	}
	return fmt.Sprintf("%s %s", c.op, short(c.path))
}

// recorder is a file system that records every call that changes something, and
// can fail calls instead of doing them.
type recorder struct {
	osFS
	root string

	mu    sync.Mutex
	calls []call
	fail  func(n int, c call) error // asked before each call; nil means never
}

func (r *recorder) did(op, path, to string, data []byte) error {
	rel := func(p string) string {
		if p == "" {
			return ""
		}
		p, err := filepath.Rel(r.root, p)
		if err != nil {
			panic(err)
		}
		return p
	}
	c := call{op: op, path: rel(path), to: rel(to), data: bytes.Clone(data)}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.fail != nil {
		if err := r.fail(len(r.calls), c); err != nil {
			return err
		}
	}
	r.calls = append(r.calls, c)
	return nil
}

// take returns the calls so far and starts again.
func (r *recorder) take() []call {
	r.mu.Lock()
	defer r.mu.Unlock()
	calls := r.calls
	r.calls = nil
	return calls
}

func (r *recorder) create(path string) (file, error) {
	if err := r.did("create", path, "", nil); err != nil {
		return nil, err
	}
	f, err := r.osFS.create(path)
	if err != nil {
		return nil, err
	}
	return recordedFile{f, r, path}, nil
}

func (r *recorder) link(old, name string) error {
	if err := r.did("link", old, name, nil); err != nil {
		return err
	}
	return r.osFS.link(old, name)
}

func (r *recorder) rename(old, name string) error {
	if err := r.did("rename", old, name, nil); err != nil {
		return err
	}
	return r.osFS.rename(old, name)
}

func (r *recorder) unlink(path string) error {
	if err := r.did("unlink", path, "", nil); err != nil {
		return err
	}
	return r.osFS.unlink(path)
}

func (r *recorder) mkdir(path string) error {
	if err := r.did("mkdir", path, "", nil); err != nil {
		return err
	}
	return r.osFS.mkdir(path)
}

func (r *recorder) setModified(path string, to time.Time) error {
	if err := r.did("setModified", path, "", nil); err != nil {
		return err
	}
	return r.osFS.setModified(path, to)
}

func (r *recorder) syncDir(path string) error {
	if err := r.did("syncDir", path, "", nil); err != nil {
		return err
	}
	return r.osFS.syncDir(path)
}

func (r *recorder) tryLock(path string) (func(), bool, error) {
	if err := r.did("lock", path, "", nil); err != nil {
		return nil, false, err
	}
	release, ok, err := r.osFS.tryLock(path)
	if !ok {
		return nil, false, err
	}
	return func() {
		release()
		_ = r.did("unlock", path, "", nil)
	}, true, nil
}

type recordedFile struct {
	file
	r    *recorder
	path string
}

func (f recordedFile) Write(p []byte) (int, error) {
	if err := f.r.did("write", f.path, "", p); err != nil {
		return 0, err
	}
	return f.file.Write(p)
}

func (f recordedFile) sync() error {
	if err := f.r.did("sync", f.path, "", nil); err != nil {
		return err
	}
	return f.file.sync()
}

// disk models what a file system promises about power loss, which is little. A
// file's bytes are durable once the file was synced, an entry of a directory once
// the directory was. Of the rest any part may survive, in any combination.
type disk struct {
	now     map[string]*node // what processes see
	durable map[string]*node // what certainly survives
	pending []change         // changes of entries that may survive, in order
}

type node struct {
	dir             bool
	written, synced []byte
}

type change struct {
	path string
	node *node // nil: the entry is removed
}

// newDisk returns a disk that holds these objects durably.
func newDisk(objects map[string][]byte) *disk {
	d := &disk{now: map[string]*node{}, durable: map[string]*node{}}
	for name, body := range objects {
		n := &node{written: body, synced: body}
		d.now[name], d.durable[name] = n, n
		for p := filepath.Dir(name); p != "."; p = filepath.Dir(p) {
			d.now[p], d.durable[p] = &node{dir: true}, &node{dir: true}
		}
	}
	return d
}

func (d *disk) apply(c call) {
	change1 := func(path string, n *node) {
		d.pending = append(d.pending, change{path, n})
		if n == nil {
			delete(d.now, path)
		} else {
			d.now[path] = n
		}
	}
	switch c.op {
	case "create":
		change1(c.path, &node{})
	case "mkdir":
		if d.now[c.path] == nil {
			change1(c.path, &node{dir: true})
		}
	case "write":
		d.now[c.path].written = append(d.now[c.path].written, c.data...)
	case "sync":
		d.now[c.path].synced = d.now[c.path].written
	case "link":
		if d.now[c.to] == nil { // otherwise it was refused
			change1(c.to, d.now[c.path])
		}
	case "rename":
		change1(c.to, d.now[c.path])
		change1(c.path, nil)
	case "unlink":
		change1(c.path, nil)
	case "syncDir":
		d.pending = slices.DeleteFunc(d.pending, func(ch change) bool {
			if filepath.Dir(ch.path) != c.path {
				return false
			}
			set(d.durable, ch)
			return true
		})
	case "setModified", "lock", "unlock":
	default:
		panic("unknown call " + c.op)
	}
}

func set(entries map[string]*node, ch change) {
	if ch.node == nil {
		delete(entries, ch.path)
	} else {
		entries[ch.path] = ch.node
	}
}

// after returns every state in which the disk may be found: for each subset of
// the pending changes, with the unsynced part of files lost, half there, or there.
func (d *disk) after() (states []map[string][]byte) {
	for mask := range 1 << len(d.pending) {
		for part := range 3 {
			entries := maps.Clone(d.durable)
			for i, ch := range d.pending {
				if mask>>i&1 == 1 {
					set(entries, ch)
				}
			}
			states = append(states, visible(entries, part))
		}
	}
	return states
}

// visible returns the files whose folders exist too, less the temporary ones.
func visible(entries map[string]*node, part int) map[string][]byte {
	objects := map[string][]byte{}
next:
	for path, n := range entries {
		if n.dir || strings.HasPrefix(path, tempFolder+"/") {
			continue
		}
		for p := filepath.Dir(path); p != "."; p = filepath.Dir(p) {
			if entries[p] == nil {
				continue next
			}
		}
		unsynced := n.written[len(n.synced):]
		objects[path] = slices.Concat(n.synced, unsynced[:len(unsynced)*part/2])
	}
	return objects
}
