package helm

import (
	"encoding/json"
	"fmt"
	"io"
	"log"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"helm.sh/helm/v3/pkg/lint"
	"helm.sh/helm/v3/pkg/lint/support"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/yaml"

	"github.com/annalsdb/annals/deploy/internal/binary"
)

var program string

func TestMain(m *testing.M) { binary.Main(m, &program) }

// eachRelease runs a test with the chart rendered from every values file of testdata.
func eachRelease(t *testing.T, test func(*testing.T, *release)) {
	t.Helper()
	files, err := filepath.Glob("testdata/*.yaml")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) { test(t, render(t, valuesOf(t, filepath.Base(file)))) })
	}
}

func TestLint(t *testing.T) {
	log.SetOutput(io.Discard) // it says of each link that it follows it
	t.Cleanup(func() { log.SetOutput(os.Stderr) })
	found := lint.AllWithKubeVersion("annals", valuesOf(t, "everything.yaml"), "data", nil)
	for _, m := range found.Messages {
		// An icon is for catalogues.
		if m.Severity > support.InfoSev {
			t.Errorf("%s: %v", m.Path, m.Err)
		}
	}
}

// There is one writer, and it is never run beside another.
func TestOneWriter(t *testing.T) {
	eachRelease(t, func(t *testing.T, r *release) {
		var writers []string
		for name, d := range r.deployments {
			if !strings.HasPrefix(d.Spec.Template.Labels["app.kubernetes.io/component"], "writer") {
				continue
			}
			writers = append(writers, name)
			require.EqualValues(t, 1, *d.Spec.Replicas)
			require.Equal(t, appsv1.RecreateDeploymentStrategyType, d.Spec.Strategy.Type)
			require.Nil(t, d.Spec.Strategy.RollingUpdate)
		}
		require.Len(t, writers, 1)
		for name, scaler := range r.scalers {
			require.NotContains(t, writers, scaler.Spec.ScaleTargetRef.Name, name)
		}
		for name, budget := range r.budgets {
			d := r.deployments[writers[0]]
			require.False(t, selects(t, budget.Spec.Selector.MatchLabels, d.Spec.Template.Labels), "%s stops drains of the writer's node", name)
		}
	})
}

// configOf returns the config file of a pod, by the volume that is mounted where its arguments say.
func configOf(t *testing.T, r *release, pod corev1.PodSpec) (command, file string) {
	t.Helper()
	c := pod.Containers[0]
	require.Len(t, c.Args, 3)
	require.Equal(t, "--config", c.Args[1])
	for _, mount := range c.VolumeMounts {
		name, inside := strings.CutPrefix(c.Args[2], mount.MountPath+"/")
		if !inside {
			continue
		}
		for _, v := range pod.Volumes {
			if v.Name == mount.Name {
				require.Contains(t, r.configMaps, v.ConfigMap.Name)
				require.Contains(t, r.configMaps[v.ConfigMap.Name].Data, name)
				return c.Args[0], r.configMaps[v.ConfigMap.Name].Data[name]
			}
		}
	}
	t.Fatalf("%s is in no volume", c.Args[2])
	return "", ""
}

// The program takes every config file, and it says what the values said.
func TestTheProgramTakesTheConfig(t *testing.T) {
	eachRelease(t, func(t *testing.T, r *release) {
		for name, d := range r.deployments {
			command, text := configOf(t, r, d.Spec.Template.Spec)
			file := filepath.Join(t.TempDir(), "annals.yaml")
			require.NoError(t, os.WriteFile(file, []byte(inFolder(t, text)), 0o600))
			status, out := binary.Run(t, program, nil, command, "--config", file, "--print-config")
			require.Equal(t, 0, status, "%s:\n%s\n%s", name, text, out)
		}
	})
}

// inFolder makes the files and folders that a config names, under a folder of the test.
func inFolder(t *testing.T, config string) string {
	t.Helper()
	root := t.TempDir()
	for path, body := range map[string]string{
		"/etc/annals/tokens/tokens.yaml": tokenFile, "/etc/annals/tokens/file.yaml": tokenFile,
		"/etc/annals/tls/tls.crt": string(certificate(t).cert), "/etc/annals/tls/tls.key": string(certificate(t).key), "/etc/annals/tls/ca.crt": string(certificate(t).cert),
	} {
		require.NoError(t, os.MkdirAll(filepath.Dir(root+path), 0o700))
		require.NoError(t, os.WriteFile(root+path, []byte(body), 0o600))
		config = strings.ReplaceAll(config, path, root+path)
	}
	return strings.ReplaceAll(config, "/var/cache/annals", root+"/cache")
}

const tokenFile = `tokens:
  - name: mailer
    hash: sha256:0000000000000000000000000000000000000000000000000000000000000001
    scopes: [read, append]
`

// settingsOf returns a config file as a map.
func settingsOf(t *testing.T, text string) map[string]any {
	t.Helper()
	settings := make(map[string]any)
	require.NoError(t, yaml.UnmarshalStrict([]byte(text), &settings))
	return settings
}

// Values reach the config files: a part's own beat those of all.
func TestConfigOfValues(t *testing.T) {
	r := render(t, valuesOf(t, "everything.yaml"))
	config := func(name string) map[string]any {
		_, text := configOf(t, r, r.deployments[name].Spec.Template.Spec)
		return settingsOf(t, text)
	}
	require.Equal(t, map[string]any{
		"store": "s3://logs/events?region=eu-central-1", "listen": ":9000", "admin-listen": ":9001", "shutdown-timeout": "90s",
		"tokens": "/etc/annals/tokens/tokens.yaml", "tls-cert": "/etc/annals/tls/tls.crt", "tls-key": "/etc/annals/tls/tls.key", "tls-client-ca": "/etc/annals/tls/ca.crt",
		"disk-cache": "/var/cache/annals", "disk-cache-bytes": "40GiB", "on-fence": "stay", "compaction": "off",
		"log-level": "warn", "log-format": "json", "max-followers": float64(100), "retention": "7d", "segment-bytes": "1GiB",
		"replicas": "https://events-low:9000", "replicas-ca": "/etc/annals/tls/ca.crt",
	}, config("events-writer"))
	low := config("events-low")
	require.Equal(t, true, low["replica"])
	require.Equal(t, "..n", low["key-range"])
	require.Equal(t, "5GiB", low["disk-cache-bytes"])
	require.Equal(t, float64(5000), low["max-followers"])
	require.NotContains(t, low, "on-fence")
	high := config("events-high")
	require.Equal(t, "50ms", high["poll-interval"])
	require.NotContains(t, high, "disk-cache")
	require.Equal(t, map[string]any{
		"store": "s3://logs/events?region=eu-central-1", "retention": "7d", "segment-bytes": "1GiB", "log-level": "warn", "log-format": "json",
	}, config("events-compactor"), "a compactor must know these as the writer does")

	require.Equal(t, "http://log-annals-all:8080", settingsOf(t, render(t, valuesOf(t, "elsewhere.yaml")).configMaps["log-annals-writer"].Data["annals.yaml"])["replicas"])
	require.NotContains(t, settingsOf(t, render(t, valuesOf(t, "smallest.yaml")).configMaps["log-annals-writer"].Data["annals.yaml"]), "compaction")
}

// What is for all reaches those who take it, and words that YAML takes for booleans reach them as words.
func TestConfigForAll(t *testing.T) {
	r := render(t, valuesOf(t, "elsewhere.yaml"))
	writer := settingsOf(t, r.configMaps["log-annals-writer"].Data["annals.yaml"])
	replica := settingsOf(t, r.configMaps["log-annals-all"].Data["annals.yaml"])
	require.Equal(t, "7d", writer["retention"])
	require.Equal(t, "off", writer["compaction"])
	require.Equal(t, "off", writer["slow-log"])
	require.NotContains(t, writer, "poll-interval")
	require.Equal(t, "50ms", replica["poll-interval"])
	require.Equal(t, "off", replica["slow-log"])
	require.NotContains(t, replica, "retention")
	require.NotContains(t, replica, "compaction")
	require.Equal(t, "7d", settingsOf(t, r.configMaps["log-annals-compactor"].Data["annals.yaml"])["retention"])

	on := render(t, map[string]any{"store": "s3://logs", "writer": map[string]any{"config": map[string]any{"compaction": true}}})
	require.Equal(t, "on", settingsOf(t, on.configMaps["log-annals-writer"].Data["annals.yaml"])["compaction"])
}

// With every name that the program has in the config for all, a part is given just those that the program takes from it.
func TestNamesOfOnePart(t *testing.T) {
	var schema struct {
		Definitions struct {
			Config struct {
				PropertyNames struct {
					Not struct{ Enum []string }
				}
			}
		}
	}
	text, err := os.ReadFile("annals/values.schema.json")
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &schema))
	refused := schema.Definitions.Config.PropertyNames.Not.Enum // the chart sets them itself
	require.Contains(t, refused, "store")

	ofWriter, ofReplica := namesTaken(t), namesTaken(t, "--replica")
	everything := make(map[string]any)
	for _, name := range slices.Concat(ofWriter, ofReplica) {
		if !slices.Contains(refused, name) {
			everything[name] = "1"
		}
	}
	require.Contains(t, everything, "retention")
	require.Contains(t, everything, "poll-interval")
	r := render(t, map[string]any{"store": "s3://logs", "config": everything, "replicas": []any{map[string]any{"name": "all"}}})
	for part, taken := range map[string][]string{"log-annals-writer": ofWriter, "log-annals-all": ofReplica} {
		given := settingsOf(t, r.configMaps[part].Data["annals.yaml"])
		for name := range everything {
			require.Equal(t, slices.Contains(taken, name), given[name] != nil, "%s: %s", part, name)
		}
	}
}

// namesTaken asks the program which names a server takes: those it does not set are comments of what it prints.
func namesTaken(t *testing.T, flags ...string) (names []string) {
	t.Helper()
	status, out := binary.Run(t, program, nil, append([]string{"serve", "--print-config"}, append(flags, "--store", "s3://logs")...)...)
	require.Equal(t, 0, status, out)
	for line := range strings.Lines(out) {
		name, _, ok := strings.Cut(strings.TrimPrefix(line, "# "), ":")
		require.True(t, ok, line)
		names = append(names, name)
	}
	return names
}

// Pods may do nothing that a log does not need.
func TestConfined(t *testing.T) {
	eachRelease(t, func(t *testing.T, r *release) {
		for name, d := range r.deployments {
			pod := d.Spec.Template.Spec
			require.Equal(t, false, *pod.EnableServiceLinks, "%s: services would set ANNALS_... variables", name)
			require.Equal(t, false, *pod.AutomountServiceAccountToken)
			require.True(t, *pod.SecurityContext.RunAsNonRoot)
			require.EqualValues(t, 65532, *pod.SecurityContext.RunAsUser, "the image's user")
			require.Equal(t, corev1.SeccompProfileTypeRuntimeDefault, pod.SecurityContext.SeccompProfile.Type)
			require.Len(t, pod.Containers, 1)
			c := pod.Containers[0]
			require.True(t, *c.SecurityContext.ReadOnlyRootFilesystem)
			require.False(t, *c.SecurityContext.AllowPrivilegeEscalation)
			require.Equal(t, []corev1.Capability{"ALL"}, c.SecurityContext.Capabilities.Drop)
			require.NotZero(t, c.Resources.Requests.Memory().Value())
			for _, mount := range c.VolumeMounts {
				require.Equal(t, mount.Name != "cache", mount.ReadOnly, "%s: %s", name, mount.Name)
				require.True(t, slices.ContainsFunc(pod.Volumes, func(v corev1.Volume) bool { return v.Name == mount.Name }))
			}
			require.Len(t, pod.Volumes, len(c.VolumeMounts))
		}
	})
}

// Probes ask for paths that exist on a port that the server has, and a pod is given the time that its server takes to stop.
func TestProbes(t *testing.T) {
	eachRelease(t, func(t *testing.T, r *release) {
		for name, d := range r.deployments {
			pod := d.Spec.Template.Spec
			c := pod.Containers[0]
			command, text := configOf(t, r, pod)
			if command == "compact" {
				require.Nil(t, c.LivenessProbe)
				continue
			}
			settings := settingsOf(t, text)
			for portName, setting := range map[string]string{"http": "listen", "admin": "admin-listen"} {
				i := slices.IndexFunc(c.Ports, func(p corev1.ContainerPort) bool { return p.Name == portName })
				require.GreaterOrEqual(t, i, 0)
				require.Equal(t, settings[setting], fmt.Sprintf(":%d", c.Ports[i].ContainerPort), "%s: %s", name, portName)
			}
			require.Equal(t, "/-/healthy", c.StartupProbe.HTTPGet.Path)
			require.Equal(t, "/-/healthy", c.LivenessProbe.HTTPGet.Path, "a recovery that takes long must not be ended")
			require.Equal(t, "/-/ready", c.ReadinessProbe.HTTPGet.Path)
			for _, probe := range []*corev1.Probe{c.StartupProbe, c.LivenessProbe, c.ReadinessProbe} {
				require.Equal(t, "admin", probe.HTTPGet.Port.String(), "the other port may ask for TLS and client certificates")
			}
			timeout := strings.TrimSuffix(settings["shutdown-timeout"].(string), "s")
			var seconds, drain int64
			_, err := fmt.Sscan(timeout, &seconds)
			require.NoError(t, err)
			if c.Lifecycle != nil {
				drain = c.Lifecycle.PreStop.Sleep.Seconds
			}
			require.Greater(t, *pod.TerminationGracePeriodSeconds, seconds+drain+5, name)
		}
	})
}

// The binary answers on these paths, on the admin listener, while it needs tokens elsewhere.
func TestAdminListenerAnswersProbes(t *testing.T) {
	folder := t.TempDir()
	tokens := filepath.Join(folder, "tokens.yaml")
	require.NoError(t, os.WriteFile(tokens, []byte(tokenFile), 0o600))
	admin := binary.FreeAddress(t)
	binary.Start(t, program, nil, "--store", "mem:", "--admin-listen", admin, "--tokens", tokens, "--on-fence", "stay")
	for _, path := range []string{"/-/healthy", "/-/ready", "/metrics"} {
		require.NotEmpty(t, (&binary.Server{URL: "http://" + admin}).Get(t, path))
	}
}

func selects(t *testing.T, selector, of map[string]string) bool {
	t.Helper()
	require.NotEmpty(t, selector)
	return labels.SelectorFromSet(selector).Matches(labels.Set(of))
}

// Every selector finds the pods that it is meant for, and no others.
func TestSelectors(t *testing.T) {
	eachRelease(t, func(t *testing.T, r *release) {
		for name, d := range r.deployments {
			for other, o := range r.deployments {
				require.Equal(t, name == other, selects(t, d.Spec.Selector.MatchLabels, o.Spec.Template.Labels), "%s and %s", name, other)
			}
			if account := d.Spec.Template.Spec.ServiceAccountName; account != "readers" { // which the values say is there
				require.Contains(t, r.accounts, account)
			}
		}
		for name, s := range r.services {
			found := podsOf(t, r, s.Spec.Selector)
			require.Len(t, found, 1, name)
			for _, port := range s.Spec.Ports {
				require.True(t, slices.ContainsFunc(r.deployments[found[0]].Spec.Template.Spec.Containers[0].Ports, func(p corev1.ContainerPort) bool {
					return p.Name == port.TargetPort.String()
				}), "%s has no port %s", name, port.TargetPort.String())
				require.NotEqual(t, "admin", port.TargetPort.String(), "the admin port is for no client")
			}
		}
		for name, b := range r.budgets {
			require.Equal(t, []string{name}, podsOf(t, r, b.Spec.Selector.MatchLabels))
		}
		for name, s := range r.scalers {
			require.Contains(t, r.deployments, s.Spec.ScaleTargetRef.Name, name)
			require.Nil(t, r.deployments[s.Spec.ScaleTargetRef.Name].Spec.Replicas, "two would say how many pods there are")
			require.LessOrEqual(t, *s.Spec.MinReplicas, s.Spec.MaxReplicas)
		}
		for name, p := range r.policies {
			require.Len(t, podsOf(t, r, p.Spec.PodSelector.MatchLabels), len(r.deployments), name)
		}
		for name, m := range r.monitors {
			require.Len(t, podsOf(t, r, m.Spec.Selector.MatchLabels), len(r.deployments), name)
			require.Equal(t, "admin", m.Spec.PodMetricsEndpoints[0].Port)
		}
	})
}

// podsOf are the deployments whose pods a selector finds.
func podsOf(t *testing.T, r *release, selector map[string]string) (found []string) {
	t.Helper()
	for name, d := range r.deployments {
		if selects(t, selector, d.Spec.Template.Labels) {
			found = append(found, name)
		}
	}
	return found
}

// Config maps are for everybody to read: no secret gets into one.
func TestNoSecretInAConfigMap(t *testing.T) {
	for _, secret := range []string{"s3://AKIA:secret@logs/x", "s3://user@logs"} {
		_, err := templates(map[string]any{"store": secret})
		require.Error(t, err)
	}
	eachRelease(t, func(t *testing.T, r *release) {
		for name, c := range r.configMaps {
			for key, text := range c.Data {
				for _, word := range []string{"AWS_", "password", "sha256:", "PRIVATE"} {
					require.NotContains(t, text, word, "%s/%s", name, key)
				}
			}
		}
	})
}

// What the chart does not know is refused before anything is installed.
func TestWrongValues(t *testing.T) {
	for name, values := range map[string]string{
		"no store":                         `{}`,
		"a folder":                         `{store: "file:/data"}`,
		"an unknown name":                  `{store: "s3://b", writter: {}}`,
		"an unknown name within":           `{store: "s3://b", writer: {cache: {size: 1}}}`,
		"two writers":                      `{store: "s3://b", writer: {count: 2}}`,
		"a port of root":                   `{store: "s3://b", ports: {http: 80}}`,
		"a set without a name":             `{store: "s3://b", replicas: [{count: 1}]}`,
		"a set named writer":               `{store: "s3://b", replicas: [{name: writer}]}`,
		"a range that is none":             `{store: "s3://b", replicas: [{name: a, keyRange: "a"}]}`,
		"a tag as a digest":                `{store: "s3://b", image: {digest: v1}}`,
		"another port behind the services": `{store: "s3://b", writer: {config: {listen: ":1"}}}`,
		"a replica as the writer":          `{store: "s3://b", config: {replica: true}}`,
		"a list in a config":               `{store: "s3://b", config: {retention: [7d]}}`,
		"a slow log without a bound":       `{store: "s3://b", config: {slow-log: on}}`,
		"a writer that polls":              `{store: "s3://b", writer: {config: {poll-interval: 50ms}}}`,
		"a replica that retains":           `{store: "s3://b", replicas: [{name: a, config: {retention: 7d}}]}`,
		"replicas that retain":             `{store: "s3://b", replicas: [{name: a}], replicaDefaults: {config: {retention: 7d}}}`,
	} {
		var v map[string]any
		require.NoError(t, yaml.Unmarshal([]byte(values), &v))
		_, err := templates(v)
		require.Error(t, err, name)
	}
}

// The values that docs/PRODUCTION.md shows make a release.
func TestExampleOfTheDocs(t *testing.T) {
	text, err := os.ReadFile("../../docs/PRODUCTION.md")
	require.NoError(t, err)
	_, example, ok := strings.Cut(string(text), "```yaml\n")
	require.True(t, ok)
	example, _, _ = strings.Cut(example, "```")
	values := make(map[string]any)
	require.NoError(t, yaml.UnmarshalStrict([]byte(example), &values))
	r := render(t, values)
	require.Len(t, r.deployments, 2)
	require.Len(t, r.policies, 1)
	require.Len(t, r.rules, 1)
}

// The schema and the values name the same things.
func TestSchemaKnowsAllValues(t *testing.T) {
	var schema, values map[string]any
	text, err := os.ReadFile("annals/values.schema.json")
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &schema))
	text, err = os.ReadFile("annals/values.yaml")
	require.NoError(t, err)
	require.NoError(t, yaml.UnmarshalStrict(text, &values))
	sameNames(t, "", schema, values)
}

func sameNames(t *testing.T, path string, schema, values map[string]any) {
	t.Helper()
	properties, _ := schema["properties"].(map[string]any)
	if properties == nil {
		return // free names
	}
	require.Equal(t, false, schema["additionalProperties"], "%s takes unknown names", path)
	for name, p := range properties {
		if path+name == "global" || strings.Contains(path, "resources.") || strings.HasSuffix(path, "resources") || name == "claims" {
			continue // Helm's own; Kubernetes's
		}
		require.Contains(t, values, name, "values.yaml has no %s%s", path, name)
		if inner, ok := values[name].(map[string]any); ok {
			sameNames(t, path+name+".", p.(map[string]any), inner)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(values)) {
		require.Contains(t, properties, name, "the schema has no %s%s", path, name)
	}
}

// The notes show the policies with the bucket and prefix of the release, as JSON that can be taken over.
func TestNotesShowPolicies(t *testing.T) {
	notes := render(t, valuesOf(t, "everything.yaml")).notes
	require.Contains(t, notes, "https://localhost:8080/ui")
	for _, part := range []string{"writer", "replica", "compactor"} {
		policy, err := os.ReadFile("../iam/" + part + ".json")
		require.NoError(t, err)
		require.Contains(t, notes, strings.NewReplacer("BUCKET", "logs", "PREFIX", "events").Replace(strings.TrimSpace(string(policy))))
	}
	whole := render(t, valuesOf(t, "smallest.yaml")).notes
	require.Contains(t, whole, `"arn:aws:s3:::logs/*"`)
	require.Contains(t, whole, "There are no tokens")
	require.NotContains(t, whole, "PREFIX")
	require.NotContains(t, render(t, valuesOf(t, "elsewhere.yaml")).notes, "arn:aws")
}
