package process

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/annalsdb/annals/client"
	"github.com/annalsdb/annals/fuzz/history"
	"github.com/annalsdb/annals/internal/child"
)

// Exit statuses of annals.
const (
	exitOK     = 0
	exitFenced = 4
)

// node is one start of annals: a server, as the writer or a replica, or a compactor.
type node struct {
	name    string
	id      int // of a server in the history; 0: a compactor
	role    history.Role
	began   time.Time
	process *child.Process
	store   *proxy // to the S3 server; nil for a directory, and where there cannot be one
	log     *os.File

	ready chan struct{} // closed when it serves; the fields of front are set then
	gone  chan struct{} // closed when it has ended and nothing of it is left

	front struct {
		proxy  *proxy // from clients
		url    string
		epoch  uint64
		http   *http.Client
		client *client.Client
	}

	asked  atomic.Bool // we ended it, or are about to
	passed atomic.Bool // it has to end by itself
	paused atomic.Bool
}

// servingLine is the line of a server's log that tells where it serves.
type servingLine struct {
	Msg     string
	Address string
	Epoch   uint64
}

// startServer starts a server with the run's options, without waiting until it serves.
func (w *world) startServer(role history.Role) (*node, error) {
	args := []string{"serve", "--listen", "127.0.0.1:0", "--log-format", "json"}
	if role == history.Replica {
		args = append(append(args, "--replica", "--poll-interval", "10ms"), w.options.both...)
	} else {
		args = append(append(args, w.options.writer...), w.options.both...)
	}
	return w.start(string(role), role, args)
}

// startCompactor starts a compactor of its own process.
func (w *world) startCompactor() (*node, error) {
	return w.start("compactor", "", append([]string{"compact", "--log-format", "json"}, w.options.compactor...))
}

// start starts the program on the run's store.
func (w *world) start(name string, role history.Role, args []string) (*node, error) {
	n := &node{name: fmt.Sprintf("%s-%d", name, w.started.Add(1)), role: role, began: time.Now(), ready: make(chan struct{}), gone: make(chan struct{})}
	path, err := binary.build()
	if err != nil {
		return nil, err
	}
	if n.log, err = child.OpenLog(w.path(n.name + ".log")); err != nil {
		return nil, err
	}
	url := w.url
	if w.s3 != nil && w.s3.Address() != "" {
		if n.store, err = w.newProxy(w.s3.Address()); err != nil {
			return nil, err
		}
		url = w.s3.URLThrough(n.store.address(), storePrefix)
	}
	cmd := exec.Command(path, append(args, "--store", url)...)
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, variablePrefix) {
			cmd.Env = append(cmd.Env, v)
		}
	}
	cmd.Stderr = &lines{sink: n.log, line: func(line []byte) { w.logged(n, line) }}
	if role != "" {
		n.id = w.history.Started(role, n.name)
	}
	if n.process, err = child.Start(cmd); err != nil {
		return nil, err
	}
	w.add(n)
	w.background.Go(func() { w.watch(n) })
	return n, nil
}

// lines is a writer that keeps what it gets, and shows it line by line.
type lines struct {
	sink io.Writer
	line func([]byte)
	part []byte
}

func (l *lines) Write(p []byte) (int, error) {
	if _, err := l.sink.Write(p); err != nil {
		return 0, err
	}
	l.part = append(l.part, p...)
	for {
		line, rest, ok := bytes.Cut(l.part, []byte("\n"))
		if !ok {
			return len(p), nil
		}
		l.line(line)
		l.part = rest
	}
}

// signsOfBugs are what no log may have, whatever happens.
var signsOfBugs = []string{"DATA RACE", "panic: ", "fatal error: ", "corrupt object"}

// logged takes in a line of a node's log.
func (w *world) logged(n *node, line []byte) {
	for _, sign := range signsOfBugs {
		if bytes.Contains(line, []byte(sign)) {
			w.failf("%s logged: %s", n.name, line)
		}
	}
	var s servingLine
	if json.Unmarshal(line, &s) != nil || s.Msg != "serving" {
		return
	}
	var err error
	if n.front.proxy, err = w.newProxy(s.Address); err != nil {
		w.failf("%s: %v", n.name, err)
		return
	}
	n.front.epoch = s.Epoch
	n.front.url = "http://" + n.front.proxy.address()
	n.front.http = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 16}}
	if n.front.client, err = client.New(n.front.url, client.Options{HTTP: n.front.http}); err != nil {
		w.failf("%s: %v", n.name, err)
		return
	}
	w.history.Ready(n.id)
	close(n.ready)
	w.changed()
}

// watch waits for a node's end, and judges it.
func (w *world) watch(n *node) {
	code := n.process.ExitCode()
	if n.id > 0 {
		w.history.Ended(n.id)
	}
	for _, p := range []*proxy{n.front.proxy, n.store} {
		if p != nil {
			p.close()
		}
	}
	if n.front.http != nil {
		n.front.http.CloseIdleConnections()
	}
	_ = n.log.Close()
	w.note("%s ended with status %d", n.name, code)
	// Whoever was not ready may have met a store that was out of reach.
	if byItself := !n.asked.Load() && n.id > 0 && closed(n.ready); byItself && (n.role != history.Writer || code != exitFenced) {
		w.failf("%s served, and ended by itself with status %d", n.name, code)
	}
	close(n.gone)
	w.changed()
}

// kill ends a node as a power cut does.
func (n *node) kill() {
	n.asked.Store(true)
	n.process.Kill()
	<-n.gone
}

// stop ends a node as a supervisor does, and returns its exit status.
func (n *node) stop() (int, error) {
	n.asked.Store(true)
	if err := n.process.Signal(syscall.SIGTERM); err != nil {
		return 0, err
	}
	select {
	case <-n.gone:
		return n.process.ExitCode(), nil
	case <-time.After(patience):
		return 0, fmt.Errorf("%s does not end within %v of a SIGTERM", n.name, patience)
	}
}

func (n *node) pause() error {
	n.paused.Store(true)
	return n.process.Pause()
}

func (n *node) resume() error {
	n.paused.Store(false)
	return n.process.Resume()
}

// serves reports whether the node was ready, and has not ended.
func (n *node) serves() bool { return closed(n.ready) && n.alive() }

func (n *node) alive() bool { return !closed(n.gone) }

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
