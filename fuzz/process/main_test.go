package process

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// patience bounds every wait for a process that is not disturbed. A run that passes never waits that long.
const patience = 2 * time.Minute

// variablePrefix begins the names of the variables that annals reads; none of the tester's may reach it.
const variablePrefix = "ANNALS_"

var binary struct {
	build func() (string, error)
	dir   string
}

func TestMain(m *testing.M) {
	binary.build = sync.OnceValues(build)
	status := m.Run()
	if binary.dir != "" {
		_ = os.RemoveAll(binary.dir)
	}
	os.Exit(status)
}

// build builds the program, with the race detector if that is asked for.
func build() (string, error) {
	dir, err := os.MkdirTemp("", "annals-process-")
	if err != nil {
		return "", fmt.Errorf("build annals: %w", err)
	}
	binary.dir = dir
	path := filepath.Join(dir, "annals")
	args := []string{"build", "-o", path}
	if os.Getenv("ANNALS_PROCESS_RACE") == "1" {
		args = append(args, "-race")
	}
	if out, err := exec.Command("go", append(args, "github.com/annalsdb/annals/cmd/annals")...).CombinedOutput(); err != nil {
		return "", fmt.Errorf("build annals: %w\n%s", err, out)
	}
	return path, nil
}

// settings are what the environment says of a run.
type settings struct {
	seed uint64
	time time.Duration // of each store
}

func readSettings(t *testing.T) settings {
	t.Helper()
	s := settings{seed: uint64(time.Now().UnixNano()) % 1_000_000, time: 8 * time.Second}
	if testing.Short() {
		s.time = 2 * time.Second
	}
	var err error
	if text := os.Getenv("ANNALS_PROCESS_SEED"); text != "" {
		s.seed, err = strconv.ParseUint(text, 10, 64)
		require.NoError(t, err, "ANNALS_PROCESS_SEED")
	}
	if text := os.Getenv("ANNALS_PROCESS_TIME"); text != "" {
		s.time, err = time.ParseDuration(text)
		require.NoError(t, err, "ANNALS_PROCESS_TIME")
	}
	// It is torn down and read back within as long again.
	if end, ok := t.Deadline(); ok && time.Until(end) < 2*s.time+2*patience {
		t.Fatalf("a run of %v needs more time than is left; pass -timeout", s.time)
	}
	return s
}
