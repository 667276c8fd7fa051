package engine

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/annalsdb/annals/internal/base"
)

// diskCache keeps ranges of written-once objects in a folder of a local disk,
// where they survive a restart. It is safe for concurrent use; a nil one holds
// nothing. Nothing that happens to the folder is ever an error of a read: a file
// that is missing, short, wrong or unreadable is a miss, and whatever cannot be
// written is not kept (F36).
//
//  1. A file is complete and has its own checksum, or it is a miss: files are
//     renamed into place, and what a crash leaves of one fails the checksum.
//  2. Reads go to the file system alone: there is no index in memory that
//     could disagree with it, or that grows with the cache (I9).
//  3. Only run, one goroutine, writes, evicts and counts bytes. What it believes
//     to be in a folder is at least what is there, as long as nobody else puts
//     files there; every listing of a folder corrects it. So bytes stay within the
//     budget from the moment when the folders have been listed once, and nothing
//     is written before.
//  4. The folder is locked: a second process runs without the cache.
type diskCache struct {
	dir    string
	budget int64
	env    *base.Env
	lock   *os.File

	reads, writes *trouble
	// What tests replace to break the disk.
	readFile  func(path string, size int64) ([]byte, error)
	writeFile func(path string, parts ...[]byte) error

	reading chan struct{} // holds a token for each file being read
	wake    chan struct{} // capacity 1: there is work for run
	used    usedBits

	hits, misses, failures atomic.Uint64
	evictions, dropped     atomic.Uint64
	bytes                  atomic.Int64 // of all files; written by run

	mu          sync.Mutex
	queue       []diskJob
	queued      int64 // bytes of the ranges in queue
	ended       bool
	pausedUntil time.Duration // Elapsed() before which nothing is written
	again       diskJob       // failed before the pause, and is tried after it: whether there is room shows without a read too
	due         bool          // the pause of again is over
	pauses      uint64        // counted, so that a timer knows its own
	stopAgain   func() bool   // of the timer
	distrusted  map[base.ULID]struct{}

	// Of run only.
	folders   [diskFolders]int64 // bytes
	hand      clockHand
	inARow    int // failed writes
	recount   int // writes since a folder was listed for their sake
	recounted int // the folder that was listed last
	headerBuf []byte
}

// diskJob is a range to be kept or, without a body, an object to be forgotten.
type diskJob struct {
	key  diskKey
	body []byte
}

// Bounds of a diskCache (I9).
const (
	maxDiskReads      = 64       // files open for reading at once
	maxDiskQueue      = 32 << 20 // bytes that wait to be written
	maxDiskJobs       = 4096
	maxDistrusted     = 1024
	diskShare         = 8 // a range is kept if it costs at most this part of the budget
	diskWriteFailures = 3 // in a row, before writing pauses
	diskPause         = time.Minute
	// diskRecount: so many writes list one folder, in turn. A file that somebody deletes, and that is written
	// again, counts twice until then.
	diskRecount = 16
)

// openDisk gives the tables a disk cache whose work ends with life; spawn starts
// it. Without a folder there is none. When the folder cannot be used that is an error if the cache is required,
// else it is logged.
func (ts *tables) openDisk(life context.Context, spawn func(string, func()), dir string, budget int64, told *troubles) error {
	if dir == "" {
		return nil
	}
	d, err := newDiskCache(dir, budget, ts.env, told)
	switch {
	case err == nil:
	case told[DiskCacheWrites].stops:
		return fmt.Errorf("open %s: %w", dir, err)
	default:
		told[DiskCacheWrites].log.Warn("running without the disk cache", "dir", dir, "error", err)
		return nil
	}
	ts.disk = d
	spawn("disk cache", func() { d.run(life) })
	return nil
}

// newDiskCache locks the folder, and creates it if there is none. run must be
// called once.
func newDiskCache(dir string, budget int64, env *base.Env, told *troubles) (*diskCache, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("create the disk cache: %w", err)
	}
	lock, err := os.OpenFile(filepath.Join(dir, "LOCK"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock the disk cache: %w", err)
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = lock.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			err = errors.New("another process uses it")
		}
		return nil, fmt.Errorf("lock the disk cache: %w", err)
	}
	return &diskCache{
		dir: dir, budget: budget, env: env, lock: lock,
		reads: &told[DiskCacheReads], writes: &told[DiskCacheWrites],
		readFile: readDiskFile, writeFile: writeDiskFile,
		reading:    make(chan struct{}, maxDiskReads),
		wake:       make(chan struct{}, 1),
		used:       newUsedBits(),
		distrusted: map[base.ULID]struct{}{},
	}, nil
}

func (d *diskCache) path(k diskKey) string {
	return filepath.Join(d.dir, folderName(k.folder()), k.name())
}

// get returns a range, or false. The caller owns what it returns.
func (d *diskCache) get(ctx context.Context, k diskKey) ([]byte, bool) {
	if d == nil {
		return nil, false
	}
	body, err := d.load(ctx, k)
	if err == nil {
		d.hits.Add(1)
		d.used.set(k.seed())
		return body, true
	}
	d.misses.Add(1)
	return nil, false
}

func (d *diskCache) load(ctx context.Context, k diskKey) ([]byte, error) {
	if d.isDistrusted(k.id) {
		return nil, fs.ErrNotExist
	}
	select {
	case d.reading <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	defer func() { <-d.reading }()
	path := d.path(k)
	file, err := d.readFile(path, diskHeader+k.n)
	var body []byte
	if err == nil {
		body, err = parseDiskFile(file, k)
	}
	switch {
	case err == nil:
		d.reads.note(nil)
		return body, nil
	case errors.Is(err, fs.ErrNotExist):
		return nil, err
	}
	d.failures.Add(1)
	if errors.Is(err, errDiskFile) {
		_ = os.Remove(path) // else the range could not be written again
	} else {
		d.reads.note(err)
	}
	return nil, err
}

// put keeps a range, if there is room in the queue. It does not wait, and holds
// on to body, which nobody may change any more.
func (d *diskCache) put(k diskKey, body []byte) {
	if d == nil || k.n <= 0 || k.n > maxDiskRange || diskCost(k.n) > d.budget/diskShare {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, wrong := d.distrusted[k.id]; wrong || d.ended {
		return
	}
	if d.queued+k.n > maxDiskQueue || len(d.queue) >= maxDiskJobs || d.env.Elapsed() < d.pausedUntil {
		d.dropped.Add(1)
		return
	}
	d.queued += k.n
	d.push(diskJob{k, body})
}

// push queues a job. d.mu is held.
func (d *diskCache) push(j diskJob) {
	d.queue = append(d.queue, j)
	d.awake()
}

// awake tells run that there is something to do.
func (d *diskCache) awake() {
	select {
	case d.wake <- struct{}{}:
	default:
	}
}

// distrust forgets an object whose bytes turned out to be wrong when they were
// decoded, and keeps nothing of it until the next restart. A file's own checksum
// only says that it holds what was once received: one bad answer of the store must
// not stay (F35). It returns false if too many objects are distrusted already.
func (d *diskCache) distrust(id base.ULID) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, known := d.distrusted[id]; known {
		return true
	}
	if len(d.distrusted) >= maxDistrusted || d.ended {
		return false
	}
	d.distrusted[id] = struct{}{}
	d.push(diskJob{key: diskKey{id: id}})
	return true
}

func (d *diskCache) isDistrusted(id base.ULID) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	_, wrong := d.distrusted[id]
	return wrong
}

// run counts what is there, then does the jobs, until ctx ends.
func (d *diskCache) run(ctx context.Context) {
	defer d.end()
	for f := range diskFolders {
		if ctx.Err() != nil {
			return
		}
		d.list(f)
	}
	d.makeRoom(0) // the budget may be smaller than the last time
	if d.writes.stops {
		d.probe()
	}
	for {
		j, ok := d.next()
		if !ok {
			select {
			case <-d.wake:
				continue
			case <-ctx.Done():
				return
			}
		}
		if ctx.Err() != nil {
			return
		}
		if j.body == nil {
			d.forget(j.key.id)
		} else {
			d.keep(j.key, j.body)
		}
	}
}

// probe finds out whether the disk can be written, before there is anything to keep: it keeps a range of one byte, of
// an object that does not exist.
func (d *diskCache) probe() {
	k := diskKey{n: 1}
	_ = os.Remove(d.path(k)) // of the last start
	d.list(k.folder())
	for range diskWriteFailures {
		d.keep(k, []byte{0})
	}
}

// end gives up what was not written yet and unlocks the folder.
func (d *diskCache) end() {
	d.mu.Lock()
	d.ended, d.queue, d.queued = true, nil, 0
	d.tryAgain(diskJob{})
	d.mu.Unlock()
	_ = d.lock.Close()
}

// next takes a job off the queue.
func (d *diskCache) next() (diskJob, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.queue) == 0 {
		d.queue = nil // lets go of what was taken off its front
		if d.due {
			j := d.again
			d.again, d.due = diskJob{}, false
			_, wrong := d.distrusted[j.key.id]
			return j, !wrong
		}
		return diskJob{}, false
	}
	j := d.queue[0]
	d.queue[0] = diskJob{}
	d.queue = d.queue[1:]
	d.queued -= int64(len(j.body))
	return j, true
}

// keep writes a range to its file and, when writes fail again and again, pauses.
func (d *diskCache) keep(k diskKey, body []byte) {
	err := d.write(k, body)
	if err == nil {
		d.inARow = 0
		d.writes.note(nil)
		d.mu.Lock()
		defer d.mu.Unlock()
		d.tryAgain(diskJob{})
		return
	}
	d.failures.Add(1)
	if d.inARow++; d.inARow < diskWriteFailures {
		return
	}
	d.writes.note(err)
	d.inARow-- // the first failure after the pause begins the next
	d.mu.Lock()
	defer d.mu.Unlock()
	d.pausedUntil = d.env.Elapsed() + diskPause
	before := len(d.queue)
	d.queue = slices.DeleteFunc(d.queue, func(j diskJob) bool { return j.body != nil })
	d.dropped.Add(uint64(before - len(d.queue)))
	d.queued = 0
	d.tryAgain(diskJob{k, body})
}

// tryAgain keeps what is to be tried when a pause that begins now is over, in the place of what was to be tried
// then; of nothing, nothing is. mu is held.
func (d *diskCache) tryAgain(j diskJob) {
	if d.stopAgain != nil {
		d.stopAgain()
		d.stopAgain = nil
	}
	d.again, d.due = j, false
	d.pauses++
	if j.body == nil {
		return
	}
	mine := d.pauses
	d.stopAgain = d.env.AfterFunc(diskPause, func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.pauses == mine {
			d.due = true
			d.awake()
		}
	})
}

// write creates the file of a range. There is one writer, so one temporary name
// does, and a crash leaves one such file at most.
func (d *diskCache) write(k diskKey, body []byte) error {
	path := d.path(k)
	if _, err := os.Lstat(path); err == nil {
		return nil // two readers missed it, or it was missed only because its disk failed
	}
	cost := diskCost(k.n)
	if !d.makeRoom(cost) {
		return errors.New("nothing can be evicted")
	}
	d.headerBuf = appendDiskHeader(d.headerBuf[:0], k, body)
	err := d.place(path, body)
	if errors.Is(err, fs.ErrNotExist) {
		// The first file of the folder, or somebody deleted it: then what was in it does not count any more.
		d.list(k.folder())
		if err = os.MkdirAll(filepath.Dir(path), 0o700); err == nil {
			err = d.place(path, body)
		}
	}
	if err != nil {
		return fmt.Errorf("write to the disk cache: %w", err)
	}
	d.add(k.folder(), cost)
	if d.recount++; d.recount >= diskRecount {
		d.recount, d.recounted = 0, (d.recounted+1)%diskFolders
		d.list(d.recounted)
	}
	return nil
}

func (d *diskCache) place(path string, body []byte) error {
	temporary := filepath.Join(d.dir, "write.tmp")
	err := d.writeFile(temporary, d.headerBuf, body)
	if err == nil {
		err = os.Rename(temporary, path)
	}
	if err != nil {
		_ = os.Remove(temporary) // a full disk needs its bytes
	}
	return err
}

// add changes what is believed to be in a folder.
func (d *diskCache) add(folder int, bytes int64) {
	d.folders[folder] += bytes
	d.bytes.Add(bytes)
}
