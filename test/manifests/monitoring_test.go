package manifests

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/yaml"

	"github.com/knative-apiserver/knative-apiserver/pkg/certs"
	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// podMonitor has the fields of a PodMonitor of the Prometheus Operator that artifacts/monitoring sets.
type podMonitor struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		JobLabel  string               `json:"jobLabel"`
		Selector  metav1.LabelSelector `json:"selector"`
		Endpoints []struct {
			Port          string `json:"port"`
			Scheme        string `json:"scheme"`
			HonorLabels   bool   `json:"honorLabels"`
			Authorization struct {
				Credentials corev1.SecretKeySelector `json:"credentials"`
			} `json:"authorization"`
			TLS struct {
				ServerName string `json:"serverName"`
				CA         struct {
					Secret corev1.SecretKeySelector `json:"secret"`
				} `json:"ca"`
			} `json:"tlsConfig"`
		} `json:"podMetricsEndpoints"`
	} `json:"spec"`
}

// monitoring returns the objects of artifacts/monitoring, and its directory.
func monitoring(t *testing.T) (objects, string) {
	t.Helper()
	root, err := harness.Root()
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(root, "artifacts", "monitoring")
	return build(t, dir), dir
}

// TestPodMonitors checks that each workload of each variant is the target of one PodMonitor, with the name in its certificate, and that
// Prometheus keeps the labels of tenants.
func TestPodMonitors(t *testing.T) {
	installed, _ := monitoring(t)
	monitors := of[podMonitor](t, installed, "PodMonitor")
	each(t, func(t *testing.T, objects objects) {
		for _, w := range workloads(t, objects) {
			var selecting []*podMonitor
			for _, m := range monitors {
				selector, err := metav1.LabelSelectorAsSelector(&m.Spec.Selector)
				if err != nil {
					t.Fatal(err)
				}
				if selector.Matches(labels.Set(w.template.Labels)) {
					selecting = append(selecting, m)
				}
			}
			if len(selecting) != 1 {
				t.Errorf("%d PodMonitors select %s, want one", len(selecting), w.name)
				continue
			}
			m := selecting[0]
			if job := w.template.Labels[m.Spec.JobLabel]; job != "knative-apiserver" {
				t.Errorf("the job of %s is %q", w.name, job)
			}
			for _, e := range m.Spec.Endpoints {
				if _, found := w.port(t, e.Port); !found || e.Scheme != "https" || !e.HonorLabels {
					t.Errorf("PodMonitor %s of %s has the endpoint %+v", m.Name, w.name, e)
				}
				want := "knative-apiserver." + system + ".svc"
				if w.name == "knative-gateway" {
					want = certs.GatewayName
				}
				if e.TLS.ServerName != want {
					t.Errorf("PodMonitor %s of %s expects the name %s, want %s", m.Name, w.name, e.TLS.ServerName, want)
				}
				if ca := e.TLS.CA.Secret; ca.Name != "knative-gateway-certificate" || ca.Key != "ca.crt" {
					t.Errorf("PodMonitor %s trusts %+v", m.Name, ca)
				}
			}
		}
	})
}

// TestMetricsReader checks that the identity of Prometheus has a token and may only read metrics.
func TestMetricsReader(t *testing.T) {
	installed, _ := monitoring(t)
	for role, rules := range rules(t, installed) {
		if diff := cmp.Diff([]rbacv1.PolicyRule{{NonResourceURLs: []string{"/metrics"}, Verbs: []string{"get"}}}, rules); diff != "" {
			t.Errorf("%s (-want +got):\n%s", role, diff)
		}
	}
	accounts := sets.New[string]()
	for _, account := range of[corev1.ServiceAccount](t, installed, "ServiceAccount") {
		accounts.Insert(account.Name)
	}
	for _, binding := range of[rbacv1.ClusterRoleBinding](t, installed, "ClusterRoleBinding") {
		for _, subject := range binding.Subjects {
			if subject.Namespace != system || !accounts.Has(subject.Name) {
				t.Errorf("ClusterRoleBinding %s binds %+v", binding.Name, subject)
			}
		}
	}
	tokens := sets.New[string]()
	for _, secret := range of[corev1.Secret](t, installed, "Secret") {
		if secret.Type != corev1.SecretTypeServiceAccountToken || !accounts.Has(secret.Annotations[corev1.ServiceAccountNameKey]) || len(secret.Data) > 0 {
			t.Errorf("Secret %s is %+v", secret.Name, secret)
		}
		tokens.Insert(secret.Name)
	}
	for _, m := range of[podMonitor](t, installed, "PodMonitor") {
		for _, e := range m.Spec.Endpoints {
			if c := e.Authorization.Credentials; !tokens.Has(c.Name) || c.Key != corev1.ServiceAccountTokenKey {
				t.Errorf("PodMonitor %s sends %+v", m.Name, c)
			}
		}
	}
}

// TestMonitoringFiles checks that the operator's rules are the rules of Prometheus, that each dashboard is in a ConfigMap that Grafana finds, and that
// all objects are in the namespace of the server, with labels by which hack/uninstall.sh finds them.
func TestMonitoringFiles(t *testing.T) {
	installed, dir := monitoring(t)
	read := func(name string, into any) {
		t.Helper()
		content, err := os.ReadFile(filepath.Join(dir, name))
		if err == nil {
			err = yaml.Unmarshal(content, into)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	dashboards := sets.New[string]()
	for _, object := range installed {
		if l := object.GetLabels(); l["app.kubernetes.io/part-of"] != "knative-apiserver" || l["app.kubernetes.io/component"] != "monitoring" {
			t.Errorf("%s %s has the labels %v", object.GetKind(), object.GetName(), l)
		}
		if cluster := object.GetKind() == "ClusterRole" || object.GetKind() == "ClusterRoleBinding"; !cluster && object.GetNamespace() != system {
			t.Errorf("%s %s is in namespace %q", object.GetKind(), object.GetName(), object.GetNamespace())
		}
		if object.GetKind() == "PrometheusRule" {
			var want map[string]any
			read("rules.yaml", &want)
			if diff := cmp.Diff(want, object.Object["spec"]); diff != "" {
				t.Errorf("PrometheusRule differs from rules.yaml, run hack/update-monitoring.sh (-want +got):\n%s", diff)
			}
		}
	}
	for _, config := range of[corev1.ConfigMap](t, installed, "ConfigMap") {
		if config.Labels["grafana_dashboard"] == "" {
			t.Errorf("Grafana does not find ConfigMap %s", config.Name)
		}
		for name, content := range config.Data {
			var want, got any
			read(filepath.Join("dashboards", name), &want)
			if err := json.Unmarshal([]byte(content), &got); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", name, diff)
			}
			dashboards.Insert(name)
		}
	}
	if want := sets.New("fleet.json", "service.json", "broker.json"); !dashboards.Equal(want) {
		t.Errorf("the dashboards are %v, want %v", sets.List(dashboards), sets.List(want))
	}
}
