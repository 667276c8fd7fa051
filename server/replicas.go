package server

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/annalsdb/annals/wire"
)

// Bounds of asking replicas for their status.
const (
	// MaxReplicas is how many replicas a server can be told of.
	MaxReplicas = 64

	replicaTimeout = 2 * time.Second // of asking one, with the wait for a slot
	// replicaSlots is how many requests to replicas are under way, of all statuses together.
	replicaSlots = 64
	// maxReplicaAnswer is the longest answer that is read. A status takes about 2 KiB.
	maxReplicaAnswer = 64 << 10
	maxReplicaError  = 300 // bytes of what a replica said
	idleReplicas     = 2   // connections that are kept to each
)

// replicas asks the replicas that the server was told of. All methods may be called from any
// goroutine.
type replicas struct {
	urls    []string
	http    *http.Client
	slots   chan struct{}
	timeout time.Duration // as the constant says, but for tests
}

func newReplicas(urls []string, config *tls.Config) *replicas {
	return &replicas{
		urls: urls, slots: make(chan struct{}, replicaSlots), timeout: replicaTimeout,
		http: &http.Client{
			Transport: &http.Transport{ // without a proxy, which would see the caller's token
				TLSClientConfig: config, ForceAttemptHTTP2: true, DisableCompression: true,
				MaxResponseHeaderBytes: maxReplicaAnswer, MaxIdleConnsPerHost: idleReplicas, IdleConnTimeout: idleTimeout / 2,
			},
			// A redirect would take the caller's token to where nobody sent it.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}
}

// ask returns what the replicas of the log say now, in the order in which they were named. The
// authorization, if there is one, is passed on to them: they decide for themselves whom they answer.
func (r *replicas) ask(ctx context.Context, authorization, logID string, frontier uint64) []wire.ReplicaState {
	states := make([]wire.ReplicaState, len(r.urls))
	var all sync.WaitGroup
	for i, u := range r.urls {
		states[i].URL = u
		all.Go(func() {
			st, err := r.askOne(ctx, u, authorization)
			if err == nil && st.LogID != logID {
				err = errors.New("it serves another log")
			}
			if err != nil {
				states[i].Error = clip(err.Error())
				return
			}
			fillState(&states[i], &st, frontier)
		})
	}
	all.Wait()
	return states
}

// fillState notes what a replica says about itself. It may say anything.
func fillState(state *wire.ReplicaState, st *wire.LogStatus, frontier uint64) {
	state.Role, state.Ready, state.Frontier = st.Role, st.Ready, st.Frontier
	if frontier > st.Frontier {
		state.LagSequences = frontier - st.Frontier
	}
	if st.LagMs != nil {
		state.LagMs = max(0, *st.LagMs)
	}
	if !st.Ready {
		state.Error = clip("not ready: " + st.Reason)
	}
}

// askOne returns the status of one replica.
func (r *replicas) askOne(ctx context.Context, base, authorization string) (wire.LogStatus, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, r.timeout, fmt.Errorf("no answer within %v", r.timeout))
	defer cancel()
	select {
	case r.slots <- struct{}{}:
		defer func() { <-r.slots }()
	case <-ctx.Done():
		return wire.LogStatus{}, context.Cause(ctx)
	}
	st, err := r.request(ctx, base, authorization)
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return st, err
}

func (r *replicas) request(ctx context.Context, base, authorization string) (wire.LogStatus, error) {
	// Without its own replicas: two servers that name each other must not ask for ever.
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, base+statusPath+"?replicas=false", nil)
	if err != nil {
		return wire.LogStatus{}, err
	}
	if authorization != "" {
		req.Header.Set("Authorization", authorization)
	}
	answer, err := r.http.Do(req)
	var failed *url.Error
	if errors.As(err, &failed) {
		err = failed.Err // the rest of it is the URL, which is said anyway
	}
	if err != nil {
		return wire.LogStatus{}, err
	}
	defer answer.Body.Close()
	data, err := io.ReadAll(io.LimitReader(answer.Body, maxReplicaAnswer+1))
	switch {
	case err != nil:
		return wire.LogStatus{}, fmt.Errorf("read answer: %w", err)
	case len(data) > maxReplicaAnswer:
		return wire.LogStatus{}, fmt.Errorf("its answer is longer than %d bytes", maxReplicaAnswer)
	case answer.StatusCode != http.StatusOK:
		return wire.LogStatus{}, refusal(answer.StatusCode, data)
	}
	return wire.ParseLogStatus(data)
}

// refusal says what a replica answered that is not a status.
func refusal(status int, body []byte) error {
	if e, err := wire.ParseErrorBody(body); err == nil && e.Message != "" {
		return fmt.Errorf("it answered %d: %s", status, e.Message)
	}
	if status/100 == 3 {
		return fmt.Errorf("it answered %d, and redirects are not followed", status)
	}
	return fmt.Errorf("it answered %d", status)
}

// clip shortens what a replica said.
func clip(text string) string {
	if len(text) > maxReplicaError {
		return strings.ToValidUTF8(text[:maxReplicaError], "") + "…"
	}
	return text
}
