package serving

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	eventingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1"
	messagingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/messaging/v1"
	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// settingsDir is a directory of ConfigMaps.
type settingsDir struct{ dir string }

func writeSettings(t testing.TB, configMaps map[string]map[string]string) settingsDir {
	t.Helper()
	s := settingsDir{t.TempDir()}
	for name, data := range configMaps {
		s.write(t, name, data)
	}
	return s
}

// write replaces a ConfigMap atomically.
func (s settingsDir) write(t testing.TB, name string, data map[string]string) {
	t.Helper()
	content, err := yaml.Marshal(map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]string{"name": name}, "data": data})
	if err != nil {
		t.Fatal(err)
	}
	fresh := filepath.Join(s.dir, "."+name)
	if err := os.WriteFile(fresh, content, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(fresh, filepath.Join(s.dir, name+".yaml")); err != nil {
		t.Fatal(err)
	}
}

// TestSettings checks that settings apply as soon as their file changes: the domain of URLs, defaults of new objects, and the
// retention of Revisions. An invalid value keeps the last-known-good one, and an Event reports it (serving 7.3-2, 9.4.2-3).
func TestSettings(t *testing.T) {
	t.Parallel()
	config := writeSettings(t, nil)
	s := start(t, t.TempDir(), "--config-dir", config.dir)
	const ns = "default"
	client := s.Knative.ServingV1()

	t.Run("domain", func(t *testing.T) {
		service := s.deploy(t, app(t, ns, "domain", scaling("min-scale", "1")))
		old := service.Status.URL
		config.write(t, "config-domain", map[string]string{"apps.example.com": ""})
		fresh := strings.Replace(old, ".localhost:", ".apps.example.com:", 1)
		s.until(t, ns, "domain", "has another URL", func(service *servingv1.Service) error {
			if service.Status.URL != fresh {
				return fmt.Errorf("URL %s", service.Status.URL)
			}
			return isReady(service, &service.Status.Status)
		})
		s.mustGet(t, fresh)
		if a, err := s.get(t.Context(), old); err != nil || a.code != http.StatusNotFound {
			t.Errorf("the old URL: %+v, %v, want 404", a, err)
		}
	})

	t.Run("defaults", func(t *testing.T) {
		timeout := func() int64 {
			t.Helper()
			service, err := client.Services(ns).Create(t.Context(), app(t, ns, "defaults"), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
			if err != nil {
				t.Fatal(err)
			}
			return ptr.Deref(service.Spec.Template.Spec.TimeoutSeconds, 0)
		}
		until := func(want int64) {
			t.Helper()
			harness.Eventually(t, "the default has changed", func() error { return wantNumber("timeoutSeconds", timeout(), want) })
		}
		until(300)
		config.write(t, "config-defaults", map[string]string{"revision-timeout-seconds": "120"})
		until(120)
		config.write(t, "config-defaults", map[string]string{"revision-timeout-seconds": "never"})
		kubectl := harness.NewKubectl(t, s.Kubeconfig, "knative-system")
		event := func(reason, message string) {
			t.Helper()
			harness.Eventually(t, "the Event exists", func() error {
				out := kubectl.Must(t, "", "get", "events", "-o", `jsonpath={range .items[*]}{.reason} {.involvedObject.kind} {.involvedObject.name} {.message}{"\n"}{end}`)
				for line := range strings.Lines(out) {
					if strings.HasPrefix(line, reason+" ConfigMap config-defaults ") && strings.Contains(line, message) {
						return nil
					}
				}
				return fmt.Errorf("there are %q", out)
			})
		}
		event("InvalidSettings", "revision-timeout-seconds")
		if got := timeout(); got != 120 {
			t.Errorf("with an invalid value timeoutSeconds is %d, want the last valid one", got)
		}
		config.write(t, "config-defaults", map[string]string{"revision-timeout-seconds": "60", "container-name-template": "main"})
		until(60)
		event("ValidSettings", "")
		event("UnusedSettings", "'container-name-template' (unnamed containers are user-container and init-container)")
	})

	t.Run("brokers", func(t *testing.T) {
		brokers := s.Knative.EventingV1().Brokers(ns)
		create := func(name string, how metav1.CreateOptions) *eventingv1.Broker {
			t.Helper()
			b, err := brokers.Create(t.Context(), &eventingv1.Broker{ObjectMeta: metav1.ObjectMeta{Name: name}}, how)
			if err != nil {
				t.Fatal(err)
			}
			return b
		}
		old := create("old", metav1.CreateOptions{})
		config.write(t, "config-br-defaults", map[string]string{"default-br-config": `
clusterDefault: {brokerClass: Kafka}
namespaceDefaults:
  default: {brokerClass: Rabbit, apiVersion: v1, kind: ConfigMap, name: rabbits, delivery: {retry: 7}}
`})
		harness.Eventually(t, "new Brokers get the defaults", func() error {
			b := create("new", metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
			want := eventingv1.BrokerSpec{
				Config:   &duckv1.KReference{APIVersion: "v1", Kind: "ConfigMap", Namespace: ns, Name: "rabbits"},
				Delivery: &duckv1.DeliverySpec{Retry: ptr.To[int32](7)},
			}
			if class := b.Annotations[eventingv1.BrokerClassAnnotationKey]; class != "Rabbit" {
				return fmt.Errorf("the class is %q", class)
			}
			if diff := cmp.Diff(want, b.Spec); diff != "" {
				return fmt.Errorf("spec (-want +got):\n%s", diff)
			}
			return nil
		})
		// The same manifest, without class and config.
		update, err := brokers.Update(t.Context(), &eventingv1.Broker{ObjectMeta: metav1.ObjectMeta{Name: "old"}}, metav1.UpdateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		class := update.Annotations[eventingv1.BrokerClassAnnotationKey]
		if diff := cmp.Diff(old.Spec, update.Spec); diff != "" || class != eventingv1.BrokerClassJetStream {
			t.Errorf("a Broker that there was has class %q and spec (-want +got):\n%s", class, diff)
		}
	})

	t.Run("channels", func(t *testing.T) {
		channels := s.Knative.MessagingV1().Channels(ns)
		create := func(name string, how metav1.CreateOptions) *messagingv1.Channel {
			t.Helper()
			c, err := channels.Create(t.Context(), &messagingv1.Channel{ObjectMeta: metav1.ObjectMeta{Name: name}}, how)
			if err != nil {
				t.Fatal(err)
			}
			return c
		}
		old := create("old", metav1.CreateOptions{})
		config.write(t, "default-ch-webhook", map[string]string{"default-ch-config": `
clusterDefault: {apiVersion: messaging.knative.dev/v1beta1, kind: KafkaChannel}
namespaceDefaults:
  default: {apiVersion: messaging.knative.dev/v1, kind: InMemoryChannel, spec: {delivery: {retry: 7}}}
`})
		harness.Eventually(t, "new Channels get the template", func() error {
			c := create("new", metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
			want := messagingv1.ChannelSpec{
				ChannelTemplate: &messagingv1.ChannelTemplateSpec{
					TypeMeta: metav1.TypeMeta{APIVersion: "messaging.knative.dev/v1", Kind: messagingv1.ChannelKindInMemory},
					Spec:     &runtime.RawExtension{Raw: []byte(`{"delivery":{"retry":7}}`)},
				},
				Delivery: &duckv1.DeliverySpec{Retry: ptr.To[int32](7)},
			}
			if diff := cmp.Diff(want, c.Spec); diff != "" {
				return fmt.Errorf("spec (-want +got):\n%s", diff)
			}
			return nil
		})
		// The same manifest, without a template.
		update, err := channels.Update(t.Context(), &messagingv1.Channel{ObjectMeta: metav1.ObjectMeta{Name: "old"}}, metav1.UpdateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(old.Spec.ChannelTemplate, update.Spec.ChannelTemplate); diff != "" {
			t.Errorf("the template of a Channel that existed before (-want +got):\n%s", diff)
		}
	})

	t.Run("retention", func(t *testing.T) {
		for i := range 4 {
			s.deploy(t, app(t, ns, "kept", env("TARGET", fmt.Sprint(i))))
		}
		kept := func() ([]string, error) {
			list, err := client.Revisions(ns).List(t.Context(), metav1.ListOptions{LabelSelector: servingv1.ConfigurationLabelKey + "=kept"})
			if err != nil {
				return nil, err
			}
			var names []string
			for i := range list.Items {
				names = append(names, list.Items[i].Name)
			}
			return names, nil
		}
		if names, err := kept(); err != nil || len(names) != 4 {
			t.Fatalf("by default got %q, %v", names, err)
		}
		config.write(t, "config-gc", map[string]string{"min-non-active-revisions": "0", "max-non-active-revisions": "1"})
		harness.Eventually(t, "the excess Revisions are deleted", func() error {
			names, err := kept()
			if err != nil {
				return err
			}
			if diff := cmp.Diff([]string{"kept-00003", "kept-00004"}, names); diff != "" {
				return fmt.Errorf("(-want +got):\n%s", diff)
			}
			return nil
		})
	})

	// An old Revision is deleted once no Route refers to it and it had no requests for long enough, without a change of the
	// Service.
	t.Run("retention after a rollout", func(t *testing.T) {
		config.write(t, "config-gc", map[string]string{
			"min-non-active-revisions": "0", "max-non-active-revisions": "disabled", "retain-since-create-time": "1s", "retain-since-last-active-time": "1s",
		})
		old := s.deploy(t, app(t, ns, "rolled", env("TARGET", "old"))).Status.LatestReadyRevisionName
		stored := s.deploy(t, app(t, ns, "rolled", env("TARGET", "new")))
		deleted(t, client.Revisions(ns), old)
		after := read(t, client.Services(ns), "rolled")
		if after.Generation != stored.Generation {
			t.Errorf("the generation of the Service changed from %d to %d", stored.Generation, after.Generation)
		}
		if got := s.mustGet(t, after.Status.URL); got != "Hello new!\n" {
			t.Errorf("it answers %q", got)
		}
	})

	// An operator enables native sidecars; otherwise they are rejected with the name of the setting.
	t.Run("native sidecars", func(t *testing.T) {
		started := filepath.Join(t.TempDir(), "started")
		service := app(t, ns, "sidecar", func(s *servingv1.Service) {
			spec := &s.Spec.Template.Spec
			spec.Containers[0].Ports = []corev1.ContainerPort{{ContainerPort: 8080}}
			spec.InitContainers = []corev1.Container{
				{
					Name: "proxy", Image: "ko.local/proxy", RestartPolicy: ptr.To(corev1.ContainerRestartPolicyAlways),
					Command:      []string{"sh", "-c", `touch "$0"; exec sleep 1000`, started},
					StartupProbe: &corev1.Probe{ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"test", "-e", started}}}, PeriodSeconds: 1, FailureThreshold: 100},
				},
				// It starts only after the sidecar started.
				{Name: "check", Image: "ko.local/check", Command: []string{"test", "-e", started}},
			}
		})
		create := func() error {
			_, err := client.Services(ns).Create(t.Context(), service, metav1.CreateOptions{})
			return err
		}
		wantError(t, create(), "spec.template.spec.initContainers: Forbidden: may not be set unless 'kubernetes.podspec-init-containers' in config-features is enabled")
		features := map[string]string{"kubernetes.podspec-init-containers": "enabled"}
		config.write(t, "config-features", features)
		const refused = "spec.template.spec.initContainers[0].restartPolicy: Forbidden: may not be set unless 'kubernetes.podspec-init-containers-restart-policy' in config-features is enabled"
		harness.Eventually(t, "init containers are allowed, native sidecars are not", func() error {
			err := create()
			if err == nil || !strings.Contains(err.Error(), refused) {
				return fmt.Errorf("the error is %w", err)
			}
			return nil
		})
		features["kubernetes.podspec-init-containers-restart-policy"] = "enabled"
		config.write(t, "config-features", features)
		harness.Eventually(t, "native sidecars are allowed", create)
		if got := s.mustGet(t, s.ready(t, ns, "sidecar").Status.URL); got != "Hello World!\n" {
			t.Errorf("it answers %q", got)
		}
	})
}

// TestProgressDeadline checks that the operator's progress deadline applies to Revisions whose template has none, also when
// they run as processes.
func TestProgressDeadline(t *testing.T) {
	t.Parallel()
	config := writeSettings(t, map[string]map[string]string{"config-deployment": {"progress-deadline": "2s"}})
	s := start(t, t.TempDir(), "--config-dir", config.dir)
	const ns = "default"
	s.apply(t, app(t, ns, "stuck", env("START_DELAY", "1h")))
	failed := s.until(t, ns, "stuck", "fails", func(service *servingv1.Service) error {
		return condition(service, &service.Status.Status, duckv1.ConditionReady, corev1.ConditionFalse, "RevisionFailed")
	})
	const want = "The revision did not become ready within 2s (serving.knative.dev/progress-deadline)."
	if got := failed.Status.Conditions.Get(duckv1.ConditionReady).Message; !strings.Contains(got, want) {
		t.Errorf("the message is %q, want %q", got, want)
	}
}
