package server

import (
	"context"
	"encoding/hex"
	"net/http"
	"time"

	"github.com/annalsdb/annals/wire"
)

const (
	statusPath = apiPrefix + "/status"
	// statusReadyTimeout bounds how long a status waits for the store to prove that the server is
	// ready. It is below replicaTimeout, so that an asking server hears why it is not.
	statusReadyTimeout = time.Second
)

// status serves GET /status. It answers while the log is stopped too, and says why it is.
func (s *Server) status(x *exchange) error {
	ask, err := parseStatus(x.r.URL.RawQuery)
	if err != nil {
		return err
	}
	st := s.describe(x.r.Context())
	if ask && len(s.replicas.urls) > 0 {
		st.Replicas = s.replicas.ask(x.r.Context(), x.r.Header.Get("Authorization"), st.LogID, st.Frontier)
	}
	x.respond(http.StatusOK, wire.TypeJSON, st.AppendJSON(nil))
	return nil
}

// describe returns the status, but for replicas.
func (s *Server) describe(ctx context.Context) wire.LogStatus {
	log := s.db.Status()
	st := wire.LogStatus{
		Status: wire.StatusSuccess, Role: wire.RoleWriter, Version: s.opts.Version, Ready: true,
		NowMs: time.Now().UnixMilli(), UptimeMs: time.Since(s.began).Milliseconds(),
		Store: log.Store, LogID: hex.EncodeToString(log.LogID[:]), Epoch: log.Epoch,
		Frontier: log.Frontier, FirstSequence: log.First,
		Segments: log.Segments, Runs: log.Runs, Tables: log.Tables,
		StoredBytes: log.StoredBytes, UnflushedBytes: log.UnflushedBytes,
		Followers: s.following.all.Load(), Ingest: s.metrics.ingest(), AppendLatency: s.metrics.appendLatency(),
	}
	if log.Replica {
		lag := log.LagTime.Milliseconds()
		st.Role, st.KeyRange, st.LagMs = wire.RoleReplica, log.Keys.String(), &lag
	}
	ctx, cancel := context.WithTimeout(ctx, statusReadyTimeout)
	defer cancel()
	if err := s.readiness(ctx); err != nil {
		st.Ready, st.Reason = false, err.Error()
	}
	return st
}
