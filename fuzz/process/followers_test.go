package process

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/annalsdb/annals/client"
	"github.com/annalsdb/annals/fuzz/history"
	"github.com/annalsdb/annals/wire"
)

// stay returns a context that ends when a follower has been at one server for long enough, or the server is gone.
func (a *actor) stay(ctx context.Context, n *node) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(ctx, 200*time.Millisecond+time.Duration(a.rng.Int64N(int64(4*time.Second))))
	stop := make(chan struct{})
	go func() {
		select {
		case <-n.gone:
			cancel()
		case <-stop:
		}
	}()
	return ctx, func() { close(stop); cancel() }
}

// item is how a record that came is taken down.
func item(key []byte, v client.Value, next uint64) history.Item {
	return history.Item{Key: history.Text(key), Next: next,
		Record: history.Record{Sequence: v.Sequence, Timestamp: v.Timestamp, Value: history.Text(v.Value)}}
}

// followMany follows a prefix and some keys beside it by POST /follow, and goes on at another server
// when it has lost the one before.
func (w *world) followMany(ctx context.Context, i int) {
	a := w.newActor("follower", i)
	var whole uint64 // complete for all
	next := make(map[string]uint64)
	for k := range keysOf {
		next[keyName(onceKeys, k/2, k)] = 0 // of this round and those to come
	}
	a.loop(ctx, func(ctx context.Context) (bool, error) {
		n, err := a.reader(ctx)
		if err != nil {
			return false, err
		}
		op := &history.Follow{Name: a.name, Streams: []history.Stream{{Key: plainKeys + "/", Prefix: true, Start: whole}}}
		body := wire.FollowBody{Prefixes: []wire.FollowStream{{Key: []byte(plainKeys + "/"), Start: whole, Given: true}}}
		for key, at := range next {
			at = max(at, whole)
			op.Streams = append(op.Streams, history.Stream{Key: key, Start: at})
			body.Streams = append(body.Streams, wire.FollowStream{Key: []byte(key), Start: at, Given: true})
		}
		call, err := a.begin(n, history.Operation{Follow: op})
		if err != nil {
			return false, err
		}
		ctx, cancel := a.stay(ctx, n)
		defer cancel()
		answer := followLines(ctx, n, body.AppendJSON(nil), func(it *wire.StreamItem) error {
			if it.Key == nil {
				whole = max(whole, it.Next)
				return call.Deliver(history.Item{Complete: true, Next: it.Next})
			}
			if _, one := next[string(it.Key)]; one {
				next[string(it.Key)] = it.Next
			}
			w.counts.followed.Add(1)
			return call.Deliver(item(it.Key, client.Value{Sequence: it.Sequence, Timestamp: it.TimestampMs, Value: it.Value}, it.Next))
		})
		return false, a.notRead(call, answer)
	})
}

// followLines reads the answer to POST /follow until it ends, which it always does with an error.
func followLines(ctx context.Context, n *node, body []byte, take func(*wire.StreamItem) error) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, n.front.url+"/api/v1/log/follow", bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", wire.TypeJSON)
	req.Header.Set("Accept", wire.TypeLines)
	answer, err := n.front.http.Do(req)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		message, _ := io.ReadAll(io.LimitReader(answer.Body, 1<<10))
		return &client.Error{Status: answer.StatusCode, Message: string(message)}
	}
	in := bufio.NewReader(answer.Body)
	for {
		line, err := in.ReadBytes('\n')
		if err != nil {
			return err
		}
		var it wire.StreamItem
		if err := json.Unmarshal(line, &it); err != nil {
			return fmt.Errorf("read stream: %w", err)
		}
		if it.End != nil {
			return fmt.Errorf("the stream ended: %s", it.End.Message)
		}
		if err := take(&it); err != nil {
			return err
		}
	}
}

// followOne follows one key by the client's Follower, which connects again by itself, and takes a new
// one each round.
func (w *world) followOne(ctx context.Context, i int) {
	a := w.newActor("tail", i)
	key, next := "", uint64(0)
	a.loop(ctx, func(ctx context.Context) (bool, error) {
		n, err := a.reader(ctx)
		if err != nil {
			return false, err
		}
		if now := keyName(plainKeys, w.round(), i%keysOf); now != key {
			key, next = now, 0
		}
		call, err := a.begin(n, history.Operation{Follow: &history.Follow{Name: a.name + " of " + key, Streams: []history.Stream{{Key: key, Start: next}}}})
		if err != nil {
			return false, err
		}
		ctx, cancel := a.stay(ctx, n)
		defer cancel()
		f := n.front.client.Follow(ctx, client.FollowOptions{}, client.Stream{Key: []byte(key), Start: next})
		for rec := range f.All() {
			next = rec.Next
			w.counts.followed.Add(1)
			if err := call.Deliver(item(rec.Key, rec.Value, rec.Next)); err != nil {
				return false, err
			}
		}
		return false, a.notRead(call, f.Err())
	})
}
