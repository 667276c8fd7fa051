package crowd

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"sync"
	"sync/atomic"
	"time"
)

// What a crowd's process says on its standard output is frames: a byte for the kind, and then
//
//	delivered  Delivery, frameBytes of it
//	opened     4 bytes: how many
//	used       8 bytes: nanoseconds of CPU time so far
//	broken     2 bytes of length, text
//	failed     2 bytes of length, text; the last frame
//	left       nothing; the last frame
//
// All numbers are little-endian. On its standard input come the Options, as one line of JSON, and then its
// end, which ends the process.
const (
	frameDelivered byte = iota + 1
	frameOpened
	frameUsed
	frameBroken
	frameFailed
	frameLeft
)

const (
	frameBytes = stampBytes + 4 + 8 + 8 + 1

	// sendInterval is how often frames are written: deliveries bear the time at which they came.
	sendInterval = 10 * time.Millisecond
	// maxUnsent is how many bytes of frames wait to be written at most: then nothing more is
	// taken from connections.
	maxUnsent = 8 << 20
	maxText   = 1 << 10

	// stopTimeout is how long a process may take to end.
	stopTimeout = 30 * time.Second
)

func (d *Delivery) appendFrame(dst []byte) []byte {
	dst = append(dst, frameDelivered)
	n := len(dst)
	dst = append(dst, make([]byte, frameBytes)...)
	p := dst[n:]
	d.Put(p)
	binary.LittleEndian.PutUint32(p[stampBytes:], d.Follower)
	binary.LittleEndian.PutUint64(p[stampBytes+4:], d.Seq)
	binary.LittleEndian.PutUint64(p[stampBytes+12:], uint64(d.At))
	if d.Foreign {
		p[stampBytes+20] = 1
	}
	return dst
}

func (d *Delivery) parseFrame(p []byte) {
	d.Stamp, _ = StampOf(p) // it is long enough
	d.Follower = binary.LittleEndian.Uint32(p[stampBytes:])
	d.Seq = binary.LittleEndian.Uint64(p[stampBytes+4:])
	d.At = int64(binary.LittleEndian.Uint64(p[stampBytes+12:]))
	d.Foreign = p[stampBytes+20] != 0
}

// Serve is the process of a crowd: it follows until the input ends, and writes what happens to out. It returns an
// error that the other side was told too.
func Serve(in io.Reader, out io.Writer) error {
	signal.Ignore(os.Interrupt) // it is for the benchmark, which ends this process in its turn
	reader := bufio.NewReader(in)
	text, err := reader.ReadBytes('\n')
	if err != nil {
		return fmt.Errorf("read the options of the followers: %w", err)
	}
	var o Options
	if err := json.Unmarshal(text, &o); err != nil {
		return fmt.Errorf("read the options of the followers: %w", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		_, _ = io.Copy(io.Discard, reader) // an error is an end too
		cancel()
	}()
	s := newSender(out)
	sent := make(chan error, 1)
	go func() {
		err := s.send()
		cancel() // nobody reads
		sent <- err
	}()
	err = Run(ctx, o, s)
	if err != nil {
		s.text(frameFailed, err)
	} else {
		s.frame(frameLeft, nil)
	}
	s.close()
	return errors.Join(err, <-sent)
}

// sender is the sink of a crowd's process.
type sender struct {
	out  io.Writer
	done chan struct{}

	mu     sync.Mutex
	room   *sync.Cond
	unsent []byte
	failed error
}

func newSender(out io.Writer) *sender {
	s := &sender{out: out, done: make(chan struct{})}
	s.room = sync.NewCond(&s.mu)
	return s
}

func (s *sender) lock() {
	s.mu.Lock()
	for len(s.unsent) > maxUnsent && s.failed == nil {
		s.room.Wait()
	}
}

// Delivered implements Sink.
func (s *sender) Delivered(d Delivery) {
	s.lock()
	s.unsent = d.appendFrame(s.unsent)
	s.mu.Unlock()
}

// Opened implements Sink.
func (s *sender) Opened(n int) {
	s.frame(frameOpened, binary.LittleEndian.AppendUint32(nil, uint32(n)))
}

// Broken implements Sink.
func (s *sender) Broken(err error) { s.text(frameBroken, err) }

func (s *sender) text(kind byte, err error) {
	text := err.Error()
	text = text[:min(len(text), maxText)]
	s.frame(kind, append(binary.LittleEndian.AppendUint16(nil, uint16(len(text))), text...))
}

func (s *sender) frame(kind byte, p []byte) {
	s.lock()
	s.unsent = append(append(s.unsent, kind), p...)
	s.mu.Unlock()
}

// close makes send write what is left and return.
func (s *sender) close() { close(s.done) }

// send writes frames until close or an error.
func (s *sender) send() error {
	ticker := time.NewTicker(sendInterval)
	defer ticker.Stop()
	var sending []byte
	for last := false; ; {
		select {
		case <-ticker.C:
		case <-s.done:
			last = true
		}
		s.mu.Lock()
		sending, s.unsent = s.unsent, sending[:0]
		s.room.Broadcast()
		s.mu.Unlock()
		if last {
			_, err := s.out.Write(sending)
			return err
		}
		sending = append(sending, frameUsed)
		sending = binary.LittleEndian.AppendUint64(sending, uint64(cpuTime()))
		if _, err := s.out.Write(sending); err != nil {
			s.mu.Lock()
			s.failed = err
			s.room.Broadcast()
			s.mu.Unlock()
			return err
		}
	}
}

// A Process is a crowd in a process of its own.
type Process struct {
	cmd   *exec.Cmd
	stdin io.Closer
	cpu   atomic.Int64
	done  chan struct{}
	err   error // why it ended; read after done
}

// Usage is what a Process took.
type Usage struct {
	CPU     time.Duration
	PeakRSS int64 // bytes; 0 where the system does not say
}

// Start starts a crowd as a process: a command that calls Serve with its standard input and output. What
// it writes to standard error comes out at this process's. The sink's methods are called from one goroutine.
func Start(argv []string, environ []string, o Options, sink Sink) (*Process, error) {
	p := &Process{cmd: exec.Command(argv[0], argv[1:]...), done: make(chan struct{})}
	p.cmd.Env = environ
	p.cmd.Stderr = os.Stderr
	stdin, err := p.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	p.stdin = stdin
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the process of the followers: %w", err)
	}
	options, err := json.Marshal(o)
	if err == nil {
		_, err = stdin.Write(append(options, '\n'))
	}
	if err != nil {
		_ = p.cmd.Process.Kill() // err says why
		_ = p.cmd.Wait()
		return nil, fmt.Errorf("start the process of the followers: %w", err)
	}
	go func() {
		defer close(p.done)
		err := p.read(bufio.NewReaderSize(stdout, 1<<20), sink)
		if err != nil {
			_ = p.cmd.Process.Kill() // it may wait for a reader
		}
		if p.err = p.cmd.Wait(); err != nil {
			p.err = err // it says why
		}
	}()
	return p, nil
}

// Done is closed when the process has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// CPU is what the process has used by now.
func (p *Process) CPU() time.Duration { return time.Duration(p.cpu.Load()) }

// Stop ends the followers, and returns what they took, and why they had ended before, if they had. All that came
// before went to the sink by then.
func (p *Process) Stop() (Usage, error) {
	_ = p.stdin.Close() // it may have ended
	timer := time.AfterFunc(stopTimeout, func() { _ = p.cmd.Process.Kill() })
	<-p.done
	timer.Stop()
	state := p.cmd.ProcessState
	return Usage{CPU: state.UserTime() + state.SystemTime(), PeakRSS: peakRSS(state)}, p.err
}

// read passes on what the process says.
func (p *Process) read(in *bufio.Reader, sink Sink) error {
	var fixed [frameBytes]byte
	var d Delivery
	for {
		kind, err := in.ReadByte()
		if err != nil {
			return fmt.Errorf("the process of the followers ended: %w", err)
		}
		switch kind {
		case frameDelivered:
			if _, err = io.ReadFull(in, fixed[:]); err == nil {
				d.parseFrame(fixed[:])
				sink.Delivered(d)
			}
		case frameOpened:
			if _, err = io.ReadFull(in, fixed[:4]); err == nil {
				sink.Opened(int(binary.LittleEndian.Uint32(fixed[:])))
			}
		case frameUsed:
			if _, err = io.ReadFull(in, fixed[:8]); err == nil {
				p.cpu.Store(int64(binary.LittleEndian.Uint64(fixed[:])))
			}
		case frameBroken, frameFailed:
			var text error
			if text, err = readText(in); err == nil && kind == frameFailed {
				return text
			} else if err == nil {
				sink.Broken(text)
			}
		case frameLeft:
			return nil
		default:
			err = fmt.Errorf("a frame of kind %d", kind)
		}
		if err != nil {
			return fmt.Errorf("read from the process of the followers: %w", err)
		}
	}
}

func readText(in io.Reader) (text error, err error) {
	var size [2]byte
	if _, err := io.ReadFull(in, size[:]); err != nil {
		return nil, err
	}
	b := make([]byte, binary.LittleEndian.Uint16(size[:]))
	if _, err := io.ReadFull(in, b); err != nil {
		return nil, err
	}
	return errors.New(string(b)), nil
}
