package main

import (
	"context"
	"log/slog"
	"time"
)

// fencedDrain is how long a fenced server goes on answering 503, so that load
// balancers and clients see it before the port closes.
const fencedDrain = 2 * time.Second

// fenceConfig is what the flags of serve say about a writer that was passed by another.
type fenceConfig struct {
	stay bool
}

func (c *fenceConfig) addFlags(s *settings) {
	addFlag(s, "on-fence", "exit|stay", "exit", &c.stay, parseChoice([]string{"exit", "stay"}, []bool{false, true}),
		"what a server does when another writer has taken the log. exit: it ends with status 4. stay: it answers 503 until it is told to stop, for "+
			"supervisors that restart whatever ends (Kubernetes) and would so make two writers take the log from each other for ever")
}

// wait goes on answering 503 for as long as the flag says, or until ctx ends or the server fails.
func (c *fenceConfig) wait(ctx context.Context, log *slog.Logger, served <-chan error) {
	if c.stay {
		log.Error("another writer has taken the log; answering 503 until this server is stopped")
		select {
		case <-ctx.Done():
		case <-served:
		}
		return
	}
	log.Warn("another writer has taken the log; answering 503 until the exit", "for", fencedDrain)
	drain := time.NewTimer(fencedDrain)
	defer drain.Stop()
	select {
	case <-drain.C:
	case <-ctx.Done():
	}
}
