package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/annalsdb/annals/client"
)

// committer moves a consumer's cursors behind what was printed, in a goroutine of its own, every commitInterval and in the end. What
// could not be stored is tried again the next time.
type committer struct {
	api      *client.Client
	consumer string
	failed   func(error)

	stop chan struct{}
	done sync.WaitGroup

	mu   sync.Mutex
	next map[string]uint64 // by key, what is not stored yet
}

func newCommitter(api *client.Client, consumer string, failed func(error)) *committer {
	c := &committer{api: api, consumer: consumer, failed: failed, stop: make(chan struct{}), next: make(map[string]uint64)}
	c.done.Go(c.loop)
	return c
}

// printed notes that all records of the key below next are printed.
func (c *committer) printed(key []byte, next uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.next[string(key)] = next
}

func (c *committer) loop() {
	tick := time.NewTicker(commitInterval)
	defer tick.Stop()
	for {
		select {
		case <-c.stop:
			return
		case <-tick.C:
			if err := c.commit(); err != nil {
				c.failed(err)
			}
		}
	}
}

// close stores what is left.
func (c *committer) close() error {
	close(c.stop)
	c.done.Wait()
	return c.commit()
}

// commit stores what there is.
func (c *committer) commit() error {
	ctx, cancel := context.WithTimeout(context.Background(), commitTimeout) // also when tail is interrupted
	defer cancel()
	for {
		cursors := c.some()
		if len(cursors) == 0 {
			return nil
		}
		if _, err := c.api.SetCursors(ctx, c.consumer, cursors, false); err != nil {
			return fmt.Errorf("commit cursors: %w", err)
		}
		c.stored(cursors)
	}
}

// some returns as many cursors as one request takes.
func (c *committer) some() (cursors []client.Cursor) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for key, next := range c.next {
		if len(cursors) == commitKeys {
			break
		}
		cursors = append(cursors, client.Cursor{Key: []byte(key), Next: next})
	}
	return cursors
}

// stored forgets cursors, unless they have moved on.
func (c *committer) stored(cursors []client.Cursor) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, cur := range cursors {
		if c.next[string(cur.Key)] == cur.Next {
			delete(c.next, string(cur.Key))
		}
	}
}
