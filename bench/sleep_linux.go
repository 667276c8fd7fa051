package bench

import (
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// systemTimer is a timer of the system whose end wakes a goroutine as data on a connection does. nil: there is none.
type systemTimer struct {
	fd   int
	file *os.File // owns fd
	ends chan struct{}
}

// newSystemTimer returns a timer, or nil if the system has none left.
func newSystemTimer() *systemTimer {
	fd, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC)
	if err != nil {
		return nil
	}
	t := &systemTimer{fd: fd, file: os.NewFile(uintptr(fd), "timer"), ends: make(chan struct{}, 1)}
	go t.read()
	return t
}

// read passes on the timer's ends until it is closed.
func (t *systemTimer) read() {
	var ticks [8]byte
	for {
		if _, err := t.file.Read(ticks[:]); err != nil {
			return
		}
		select {
		case t.ends <- struct{}{}:
		default:
		}
	}
}

// reset lets the timer end after d, which is above 0.
func (t *systemTimer) reset(d time.Duration) {
	if t != nil {
		_ = unix.TimerfdSettime(t.fd, 0, &unix.ItimerSpec{Value: unix.NsecToTimespec(int64(d))}, nil) // else the other timer does
	}
}

// ended gets a value when the timer has ended.
func (t *systemTimer) ended() <-chan struct{} {
	if t == nil {
		return nil
	}
	return t.ends
}

func (t *systemTimer) close() {
	if t != nil {
		_ = t.file.Close()
	}
}
