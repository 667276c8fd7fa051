package wire

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestLogStatusJSON(t *testing.T) {
	lag := int64(40)
	for _, c := range []struct {
		status LogStatus
		want   string
	}{
		{LogStatus{Status: StatusSuccess, Role: RoleWriter, Epoch: math.MaxUint64, AppendLatency: Histogram{LE: []float64{0.001, 30}, Counts: []uint64{1, 2, 3}}},
			`{"status":"success","role":"writer","version":"","ready":false,"reason":"","nowMs":0,"uptimeMs":0,"store":"","logId":"","epoch":18446744073709551615,` +
				`"frontier":0,"firstSequence":0,"segments":0,"runs":0,"tables":0,"storedBytes":0,"unflushedBytes":0,"followers":0,` +
				`"ingest":{"appends":0,"records":0,"bytes":0},"appendLatency":{"le":[0.001,30],"counts":[1,2,3]}}`},
		{LogStatus{Status: StatusSuccess, Role: RoleReplica, KeyRange: "a..n", LagMs: &lag, Replicas: []ReplicaState{{URL: "http://r", Error: "\"<"}}},
			`{"status":"success","role":"replica","version":"","ready":false,"reason":"","nowMs":0,"uptimeMs":0,"store":"","logId":"","epoch":0,"keyRange":"a..n",` +
				`"frontier":0,"firstSequence":0,"segments":0,"runs":0,"tables":0,"storedBytes":0,"unflushedBytes":0,"followers":0,` +
				`"ingest":{"appends":0,"records":0,"bytes":0},"appendLatency":{"le":[],"counts":[]},"lagMs":40,` +
				`"replicas":[{"url":"http://r","role":"","ready":false,"frontier":0,"lagSequences":0,"lagMs":0,"error":"\"<"}]}`},
	} {
		require.Equal(t, c.want, string(c.status.AppendJSON(nil)))
		back, err := ParseLogStatus([]byte(c.want))
		require.NoError(t, err)
		require.Equal(t, c.want, string(back.AppendJSON(nil)))
	}
	bad := LogStatus{Status: StatusSuccess, Role: RoleWriter, Store: "file:\xff"}
	require.Contains(t, string(bad.AppendJSON(nil)), "\"store\":\"file:\uFFFD\"")
}

// Its own path may be any bytes; what another server says of itself must be text, and a status.
func TestParseLogStatusRefuses(t *testing.T) {
	for _, text := range []string{
		``, `null`, `[]`, `{}`, `{"status":"success"}`, `{"status":"error","role":"writer"}`, `{"status":"success","role":"Writer"}`,
		`{"status":"success","role":"writer","frontier":-1}`, `{"status":"success","role":"writer","frontier":"1"}`, `{"status":"success","role":"writer"}{}`,
		`{"status":"success","role":"writer","role":"writer"}`, "{\"status\":\"success\",\"role\":\"writer\",\"store\":\"\xff\"}",
	} {
		_, err := ParseLogStatus([]byte(text))
		require.ErrorContains(t, err, "decode status: ", text)
	}
}

func FuzzParseLogStatus(f *testing.F) {
	lag := int64(7)
	full := LogStatus{Status: StatusSuccess, Role: RoleReplica, LagMs: &lag, Replicas: []ReplicaState{{URL: "http://r", Role: RoleWriter}}}
	f.Add(full.AppendJSON(nil))
	f.Add([]byte(`{"status":"success","role":"writer","appendLatency":{"le":[1e400],"counts":[18446744073709551615]},"x":{"x":[]}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := ParseLogStatus(data)
		if err != nil {
			return
		}
		text := s.AppendJSON(nil)
		again, err := ParseLogStatus(text)
		require.NoError(t, err)
		require.Equal(t, string(text), string(again.AppendJSON(nil)))
	})
}
