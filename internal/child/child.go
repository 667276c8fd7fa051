// Package child runs the processes that tests start, kill and pause: servers of annals and
// the S3 server beneath them.
//
// On Linux the kernel kills a child when the process that started it ends, however that
// ends. Elsewhere only Kill does, so that a test must leave that to t.Cleanup.
package child

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
)

// Process is a started process. All methods may be called from any goroutine.
type Process struct {
	cmd   *exec.Cmd
	ended chan struct{} // closed after the end, when all that it wrote has arrived
}

// Start starts a command that has no SysProcAttr yet.
func Start(cmd *exec.Cmd) (*Process, error) {
	p := &Process{cmd: cmd, ended: make(chan struct{})}
	started := make(chan error, 1)
	go func() {
		// The kernel takes the end of the thread that started a child for the end of its
		// parent. So this goroutine keeps its thread, which ends with it, after the child.
		runtime.LockOSThread()
		dieWithParent(cmd)
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait() // ExitCode says the same
			close(p.ended)
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", cmd.Path, err)
	}
	return p, nil
}

// ID returns the process's id.
func (p *Process) ID() int { return p.cmd.Process.Pid }

// Ended returns a channel that is closed when the process has ended.
func (p *Process) Ended() <-chan struct{} { return p.ended }

// ExitCode returns how it ended: its status, or -1 for a signal. It waits for the end.
func (p *Process) ExitCode() int {
	<-p.ended
	return p.cmd.ProcessState.ExitCode()
}

// Kill ends the process as a power cut does, if it has not ended, and waits for that.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill() // the only error is that it has ended
	<-p.ended
}

// Pause stops the process where it is: it keeps memory and connections, and does nothing.
func (p *Process) Pause() error { return p.Signal(syscall.SIGSTOP) }

// Resume lets a paused process go on.
func (p *Process) Resume() error { return p.Signal(syscall.SIGCONT) }

// Signal sends a signal. A process that has ended is no error.
func (p *Process) Signal(s os.Signal) error {
	if err := p.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("signal process %d: %w", p.ID(), err)
	}
	return nil
}
