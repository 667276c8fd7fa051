// Package systemd holds the unit, and the tests of it. There is no other code in it.
package systemd

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/deploy/internal/binary"
)

var program string

func TestMain(m *testing.M) { binary.Main(m, &program) }

// unit reads the settings of a section, each with all its values.
func unit(t *testing.T, section string) map[string][]string {
	t.Helper()
	text, err := os.ReadFile("annals.service")
	require.NoError(t, err)
	settings, in := make(map[string][]string), ""
	for _, line := range strings.Split(string(text), "\n") {
		switch line = strings.TrimSpace(line); {
		case line == "" || strings.HasPrefix(line, "#"):
		case strings.HasPrefix(line, "["):
			in = strings.Trim(line, "[]")
		default:
			name, value, ok := strings.Cut(line, "=")
			require.True(t, ok, line)
			if in == section {
				settings[name] = append(settings[name], value)
			}
		}
	}
	require.NotEmpty(t, settings, section)
	return settings
}

// systemd itself finds nothing wrong, and nothing exposed.
func TestSystemdTakesTheUnit(t *testing.T) {
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Skip("systemd is not installed")
	}
	text, err := os.ReadFile("annals.service")
	require.NoError(t, err)
	folder := t.TempDir()
	file := filepath.Join(folder, "annals.service")
	require.NoError(t, os.WriteFile(file, []byte(strings.ReplaceAll(string(text), "/usr/local/bin/annals", program)), 0o600))
	out, err := exec.Command(analyze, "verify", "--man=no", file).CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.NotContains(t, string(out), "annals.service", "%s", out)

	// 0 is a service that can do nothing, 100 one that can do everything; one without any of these settings has 96.
	out, err = exec.Command(analyze, "security", "--offline=yes", "--no-pager", "--threshold=20", file).CombinedOutput()
	require.NoError(t, err, "%s", out)
}

// A fenced writer stays down, and a shutdown is given its time.
func TestRestartsAndStops(t *testing.T) {
	service := unit(t, "Service")
	require.Equal(t, []string{"on-failure"}, service["Restart"])
	status, help := binary.Run(t, program, nil, "--help")
	require.Zero(t, status)
	for name, text := range map[string]string{"2": "2  bad flags", "4": "4  serve: another"} {
		require.Contains(t, strings.Fields(service["RestartPreventExitStatus"][0]), name)
		require.Contains(t, help, text, "the status means something else now")
	}
	status, out := binary.Run(t, program, nil, "serve", "--store", "mem:", "--print-config")
	require.Zero(t, status)
	shutdown := regexp.MustCompile(`(?m)^shutdown-timeout: "?([0-9a-z]+)`).FindStringSubmatch(out)
	require.NotNil(t, shutdown, out)
	least, err := time.ParseDuration(shutdown[1])
	require.NoError(t, err)
	stop, err := time.ParseDuration(service["TimeoutStopSec"][0])
	require.NoError(t, err)
	require.Greater(t, stop, least+5*time.Second)
}

// The program takes the example of a config file, with a bucket, as it is and with all that is commented out.
func TestExampleConfig(t *testing.T) {
	text, err := os.ReadFile("annals.yaml")
	require.NoError(t, err)
	filled := strings.NewReplacer("BUCKET", "bucket", "PREFIX", "log", "REGION", "eu-central-1").Replace(string(text))
	for name, config := range map[string]string{
		"as it is":       filled,
		"with retention": strings.Replace(filled, "# retention", "retention", 1),
		"a folder":       strings.Replace(strings.Replace(filled, "store: s3", "# s3", 1), "# store: file", "store: file", 1),
	} {
		file := filepath.Join(t.TempDir(), "annals.yaml")
		require.NoError(t, os.WriteFile(file, []byte(config), 0o600))
		status, out := binary.Run(t, program, nil, "serve", "--config", file, "--print-config")
		require.Zero(t, status, "%s: %s", name, out)
	}
	commented := regexp.MustCompile(`(?m)^# ([a-z-]+):`).FindAllStringSubmatch(string(text), -1)
	require.NotEmpty(t, commented)
	_, help := binary.Run(t, program, nil, "serve", "--help")
	for _, name := range commented {
		require.Contains(t, help, "--"+name[1]+" ", "there is no such flag")
	}
}

// What it may write to is where the config says that it writes.
func TestFolders(t *testing.T) {
	service := unit(t, "Service")
	config, err := os.ReadFile("annals.yaml")
	require.NoError(t, err)
	for path, setting := range map[string]string{"/var/lib/": "StateDirectory", "/var/cache/": "CacheDirectory"} {
		require.Equal(t, []string{"annals"}, service[setting])
		require.Contains(t, string(config), path+service[setting][0])
	}
	command := strings.Fields(service["ExecStart"][0])
	require.True(t, slices.Contains(command, "/etc/annals/annals.yaml"))
	require.Equal(t, []string{"serve", "--config"}, command[1:3])
}
