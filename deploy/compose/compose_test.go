// Package compose holds what the services of ../compose.yaml mount, and the tests of that file. There is no other code in it.
package compose

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/compose-spec/compose-go/v2/loader"
	"github.com/compose-spec/compose-go/v2/types"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"

	"github.com/annalsdb/annals/deploy/internal/binary"
	"github.com/annalsdb/annals/objstore/s3/s3server"
)

var program string

func TestMain(m *testing.M) { binary.Main(m, &program) }

// project loads the file as docker compose does, with all profiles.
func project(t *testing.T, environment types.Mapping) *types.Project {
	t.Helper()
	path, err := filepath.Abs("../compose.yaml")
	require.NoError(t, err)
	p, err := loader.LoadWithContext(t.Context(), types.ConfigDetails{
		WorkingDir: filepath.Dir(path), ConfigFiles: []types.ConfigFile{{Filename: path}}, Environment: environment,
	}, func(o *loader.Options) { o.Profiles = []string{"*"} })
	require.NoError(t, err)
	return p
}

// Files that are built from and mounted exist, and ports are of this machine alone.
func TestServices(t *testing.T) {
	p := project(t, nil)
	require.Equal(t, []string{"annals", "bucket", "grafana", "prometheus", "s3"}, p.ServiceNames())
	for name, s := range p.Services {
		for _, port := range s.Ports {
			require.Equal(t, "127.0.0.1", port.HostIP, name)
		}
		for _, v := range s.Volumes {
			if v.Type == types.VolumeTypeBind {
				_, err := os.Stat(v.Source)
				require.NoError(t, err, name)
			} else {
				require.Contains(t, p.Volumes, v.Source, name)
			}
		}
		require.Equal(t, name != "bucket", s.Restart == types.RestartPolicyUnlessStopped, name)
		if s.Build == nil {
			require.Regexp(t, `:v?\d+\.\d+\.\d+$`, s.Image, "%s: a version that stays", name)
		}
	}
	build := p.Services["annals"].Build
	require.FileExists(t, filepath.Join(build.Context, build.Dockerfile))
	require.FileExists(t, filepath.Join(build.Context, "go.mod"))
	require.Empty(t, p.Services["annals"].Profiles)
	require.Equal(t, []string{"monitoring"}, p.Services["grafana"].Profiles)
}

// The secret is one, wherever it comes from, and gets into no command line.
func TestSecret(t *testing.T) {
	for want, environment := range map[string]types.Mapping{"only-on-this-machine": nil, "other": {"S3_SECRET": "other"}} {
		p := project(t, environment)
		require.Equal(t, want, *p.Services["s3"].Environment["ROOT_SECRET_KEY"])
		require.Equal(t, want, *p.Services["annals"].Environment["AWS_SECRET_ACCESS_KEY"])
		for name, s := range p.Services {
			require.NotContains(t, strings.Join(s.Command, " "), want, name)
		}
	}
}

// The program takes its command line, and serves an S3 server of the same make and version as compose starts.
func TestAnnalsServes(t *testing.T) {
	p := project(t, types.Mapping{"CACHE": "64MiB"})
	store := s3server.Start(t)
	if !store.Given() {
		source, err := os.ReadFile("../../objstore/s3/s3server/binary.go")
		require.NoError(t, err)
		_, version, _ := strings.Cut(p.Services["s3"].Image, ":")
		require.Contains(t, string(source), version, "the tests use another version than compose")
	}
	flags := slices.Clone(p.Services["annals"].Command)
	require.Equal(t, "serve", flags[0])
	status, out := binary.Run(t, program, nil, append(flags, "--print-config")...)
	require.Zero(t, status, out)
	for i, flag := range flags {
		name, _, _ := strings.Cut(flag, "=")
		switch name {
		case "--store":
			flags[i] = "--store=" + store.URL("compose")
		case "--listen":
			flags[i] = "--listen=127.0.0.1:0"
		case "--admin-listen":
			flags[i] = "--admin-listen=127.0.0.1:0"
		case "--disk-cache":
			flags[i] = "--disk-cache=" + t.TempDir()
		}
	}
	server := binary.StartCommand(t, exec.Command(program, append(flags, "--log-format=json")...))
	server.Post(t, "/api/v1/log/append", strings.NewReader(`{"records":[{"key":"dXNlcg==","value":"aGk="}]}`))
	require.Contains(t, string(server.Get(t, "/api/v1/log/scan?key=user")), "aGk=")
}

// Prometheus scrapes the admin port and reads the rules where they are mounted; Grafana finds the dashboard.
func TestMonitoring(t *testing.T) {
	p := project(t, nil)
	var config struct {
		Global        map[string]string `json:"global"`
		RuleFiles     []string          `json:"rule_files"`
		ScrapeConfigs []struct {
			JobName       string `json:"job_name"`
			StaticConfigs []struct {
				Targets []string `json:"targets"`
			} `json:"static_configs"`
		} `json:"scrape_configs"`
	}
	decode(t, "prometheus.yaml", &config)
	host, port, _ := strings.Cut(config.ScrapeConfigs[0].StaticConfigs[0].Targets[0], ":")
	require.Contains(t, p.Services, host)
	require.Contains(t, p.Services[host].Command, "--admin-listen=:"+port)
	for _, file := range config.RuleFiles {
		require.FileExists(t, mounted(t, p.Services["prometheus"], file))
	}
	var providers struct {
		APIVersion int `json:"apiVersion"`
		Providers  []struct {
			Name, Type string
			Options    struct{ Path string }
		}
	}
	decode(t, "grafana/dashboards/annals.yaml", &providers)
	require.FileExists(t, mounted(t, p.Services["grafana"], providers.Providers[0].Options.Path+"/annals.json"))
	for _, folder := range []string{"datasources", "dashboards"} {
		require.DirExists(t, mounted(t, p.Services["grafana"], "/etc/grafana/provisioning/"+folder))
	}
}

func decode(t *testing.T, file string, into any) {
	t.Helper()
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	require.NoError(t, yaml.UnmarshalStrict(text, into))
}

// mounted is where on this machine a file of a container is.
func mounted(t *testing.T, s types.ServiceConfig, path string) string {
	t.Helper()
	for _, v := range s.Volumes {
		if rest, ok := strings.CutPrefix(path+"/", v.Target+"/"); ok {
			return filepath.Join(v.Source, rest)
		}
	}
	t.Fatalf("%s is not mounted in %s", path, s.Name)
	return ""
}
