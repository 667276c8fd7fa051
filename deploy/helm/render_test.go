// Package helm holds the chart, and the tests that render it and hold what comes out against Kubernetes' types and the
// program's flags. There is no other code in it.
package helm

import (
	"bytes"
	"io"
	"log"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// A release is all that the chart makes of some values.
type release struct {
	deployments map[string]*appsv1.Deployment
	services    map[string]*corev1.Service
	configMaps  map[string]*corev1.ConfigMap
	accounts    map[string]*corev1.ServiceAccount
	budgets     map[string]*policyv1.PodDisruptionBudget
	scalers     map[string]*autoscalingv2.HorizontalPodAutoscaler
	policies    map[string]*networkingv1.NetworkPolicy
	monitors    map[string]*podMonitor
	rules       map[string]*prometheusRule
	notes       string
}

// The parts that are used of the types of the Prometheus operator, which are not Kubernetes' own.
type podMonitor struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		Selector            metav1.LabelSelector `json:"selector"`
		JobLabel            string               `json:"jobLabel"`
		PodMetricsEndpoints []struct {
			Port     string `json:"port"`
			Path     string `json:"path"`
			Interval string `json:"interval"`
		} `json:"podMetricsEndpoints"`
	} `json:"spec"`
}

type prometheusRule struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		Groups []map[string]any `json:"groups"`
	} `json:"spec"`
}

// valuesOf reads values from a file of testdata.
func valuesOf(t *testing.T, file string) map[string]any {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", file))
	require.NoError(t, err)
	values := make(map[string]any)
	require.NoError(t, yaml.UnmarshalStrict(text, &values))
	return values
}

// load reads the chart, once. The loader would say of each link that it follows it.
var load = sync.OnceValues(func() (*chart.Chart, error) {
	log.SetOutput(io.Discard)
	defer log.SetOutput(os.Stderr)
	return loader.Load("annals")
})

// templates renders the chart, as "helm template" does.
func templates(values map[string]any) (map[string]string, error) {
	c, err := load()
	if err != nil {
		return nil, err
	}
	all, err := chartutil.ToRenderValues(c, values, chartutil.ReleaseOptions{Name: "log", Namespace: "data", IsInstall: true}, chartutil.DefaultCapabilities)
	if err != nil {
		return nil, err
	}
	return engine.Engine{Strict: true}.Render(c, all)
}

// render renders the chart and decodes every object strictly into its type.
func render(t *testing.T, values map[string]any) *release {
	t.Helper()
	files, err := templates(values)
	require.NoError(t, err)
	r := &release{
		deployments: make(map[string]*appsv1.Deployment), services: make(map[string]*corev1.Service),
		configMaps: make(map[string]*corev1.ConfigMap), accounts: make(map[string]*corev1.ServiceAccount),
		budgets: make(map[string]*policyv1.PodDisruptionBudget), scalers: make(map[string]*autoscalingv2.HorizontalPodAutoscaler),
		policies: make(map[string]*networkingv1.NetworkPolicy), monitors: make(map[string]*podMonitor), rules: make(map[string]*prometheusRule),
	}
	for name, text := range files {
		if filepath.Base(name) == "NOTES.txt" {
			r.notes = text
			continue
		}
		if strings.HasPrefix(filepath.Base(name), "_") {
			continue
		}
		for _, document := range strings.Split("\n"+text, "\n---") {
			r.add(t, name, []byte(document))
		}
	}
	return r
}

func (r *release) add(t *testing.T, from string, document []byte) {
	t.Helper()
	var about metav1.TypeMeta
	require.NoError(t, yaml.Unmarshal(document, &about), "%s:\n%s", from, document)
	switch about.APIVersion + " " + about.Kind {
	case " ":
		require.Empty(t, withoutComments(document), "%s: an object without a kind", from)
	case "apps/v1 Deployment":
		decode(t, from, document, r.deployments)
	case "v1 Service":
		decode(t, from, document, r.services)
	case "v1 ConfigMap":
		decode(t, from, document, r.configMaps)
	case "v1 ServiceAccount":
		decode(t, from, document, r.accounts)
	case "policy/v1 PodDisruptionBudget":
		decode(t, from, document, r.budgets)
	case "autoscaling/v2 HorizontalPodAutoscaler":
		decode(t, from, document, r.scalers)
	case "networking.k8s.io/v1 NetworkPolicy":
		decode(t, from, document, r.policies)
	case "monitoring.coreos.com/v1 PodMonitor":
		decode(t, from, document, r.monitors)
	case "monitoring.coreos.com/v1 PrometheusRule":
		decode(t, from, document, r.rules)
	default:
		t.Errorf("%s: %s %s is not checked here", from, about.APIVersion, about.Kind)
	}
}

// decode reads one object; fields that its type does not have are errors.
func decode[T any, P interface {
	*T
	metav1.Object
}](t *testing.T, from string, document []byte, into map[string]P) {
	t.Helper()
	object := P(new(T))
	require.NoError(t, yaml.UnmarshalStrict(document, object, yaml.DisallowUnknownFields), "%s:\n%s", from, document)
	require.NotEmpty(t, object.GetName(), from)
	require.NotContains(t, into, object.GetName(), "%s: two of the same name", from)
	into[object.GetName()] = object
}

func withoutComments(document []byte) []byte {
	lines := slices.DeleteFunc(bytes.Split(document, []byte("\n")), func(line []byte) bool {
		return bytes.HasPrefix(bytes.TrimSpace(line), []byte("#"))
	})
	return bytes.TrimSpace(bytes.Join(lines, nil))
}
