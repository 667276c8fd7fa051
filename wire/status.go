package wire

import (
	"errors"
	"fmt"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// The roles of a server.
const (
	RoleWriter  = "writer"
	RoleReplica = "replica"
)

// LogStatus is the answer of GET /api/v1/log/status, which is JSON only. Counters count since the
// process opened the log. Like every type of this package it is plain data.
type LogStatus struct {
	Status string `json:"status"` // StatusSuccess
	// Role is RoleWriter or RoleReplica.
	Role    string `json:"role"`
	Version string `json:"version"` // what was built, as "annals version" prints it
	// Ready says whether requests should be sent there, as GET /-/ready does, and Reason why not, else "".
	Ready    bool   `json:"ready"`
	Reason   string `json:"reason"`
	NowMs    int64  `json:"nowMs"`    // the server's clock, milliseconds since the Unix epoch
	UptimeMs int64  `json:"uptimeMs"` // since the log was open

	Store string `json:"store"` // its URL, without secrets
	LogID string `json:"logId"` // 32 hexadecimal digits, the same of the writer and all replicas of a log
	Epoch uint64 `json:"epoch"` // of the writer
	// KeyRange is what a replica answers for, FROM..TO as --key-range has it (".." means all); "" of a writer.
	KeyRange string `json:"keyRange,omitzero"`

	Frontier      uint64 `json:"frontier"`      // every sequence below is readable
	FirstSequence uint64 `json:"firstSequence"` // the oldest that the log holds
	Segments      int    `json:"segments"`
	Runs          int    `json:"runs"`
	Tables        int    `json:"tables"`
	StoredBytes   uint64 `json:"storedBytes"` // of all tables
	// UnflushedBytes are those of records that are not in runs yet: of a writer, else 0.
	UnflushedBytes int64 `json:"unflushedBytes"`
	Followers      int64 `json:"followers"` // requests that wait for records now

	Ingest        IngestCounters `json:"ingest"`
	AppendLatency Histogram      `json:"appendLatency"`
	// LagMs is how long a replica has not had all that was there; nil of a writer.
	LagMs *int64 `json:"lagMs,omitzero"`
	// Replicas are those that the server was told of, in that order; nil if of none, or not asked for.
	Replicas []ReplicaState `json:"replicas,omitzero"`
}

// IngestCounters count acknowledged appends, and their records and key and value bytes. A repeat
// of a producer's append counts as an append without records.
type IngestCounters struct {
	Appends uint64 `json:"appends"`
	Records uint64 `json:"records"`
	Bytes   uint64 `json:"bytes"`
}

// Histogram says how long appends took that waited until they were durable.
type Histogram struct {
	// LE are upper bounds in seconds, rising.
	LE []float64 `json:"le"`
	// Counts are how many took at most the bound with the same index; one more at the end counts all.
	Counts []uint64 `json:"counts"`
}

// ReplicaState is what a server found when it asked one replica.
type ReplicaState struct {
	URL string `json:"url"`
	// Role is that of the server which answered; "" if none did.
	Role         string `json:"role"`
	Ready        bool   `json:"ready"`
	Frontier     uint64 `json:"frontier"`
	LagSequences uint64 `json:"lagSequences"` // that are readable at the asking server and not yet there
	LagMs        int64  `json:"lagMs"`
	// Error says why there is no answer, or why the replica is not ready; else "".
	Error string `json:"error"`
}

// AppendJSON appends the answer's JSON form.
func (s *LogStatus) AppendJSON(dst []byte) []byte {
	data, err := json.Marshal(s, jsontext.AllowInvalidUTF8(true)) // a store's path may be any bytes
	if err != nil {
		panic(fmt.Sprintf("wire: encode a status: %v", err))
	}
	return append(dst, data...)
}

// ParseLogStatus decodes the answer of a server. What is no such answer is an error.
func ParseLogStatus(data []byte) (LogStatus, error) {
	var s LogStatus
	if err := json.Unmarshal(data, &s); err != nil {
		return LogStatus{}, fmt.Errorf("decode status: %w", err)
	}
	if s.Status != StatusSuccess || s.Role != RoleWriter && s.Role != RoleReplica {
		return LogStatus{}, errors.New("decode status: it is not the status of an annals server")
	}
	return s, nil
}
