package standalone

import (
	"slices"
	"strings"
	"testing"

	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// warned returns the sorted paths in the warnings of a kubectl command.
func warned(t testing.TB, result harness.KubectlResult) []string {
	t.Helper()
	if result.Code != 0 {
		t.Fatalf("kubectl fails with code %d:\n%s", result.Code, result.Stderr)
	}
	var paths []string
	for line := range strings.Lines(result.Stderr) {
		path, reason, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ": has no effect: ")
		if path, found := strings.CutPrefix(path, "Warning: "); found && reason != "" {
			paths = append(paths, path)
			continue
		}
		t.Errorf("unexpected line on standard error: %q", line)
	}
	slices.Sort(paths)
	return paths
}

// TestWarnings checks that kubectl prints a warning for every field without effect, whether the object is created, changed in
// another field, or applied by the server, and none for fields with an effect.
func TestWarnings(t *testing.T) {
	for name, test := range map[string]struct {
		manifest, kind string
		want           []string
	}{
		"plain Service": {kind: "ksvc", manifest: `
apiVersion: serving.knative.dev/v1
kind: Service
metadata:
  name: a
  labels: {networking.knative.dev/visibility: cluster-local, app: a}
  annotations: {serving.knative.dev/rollout-duration: 10s, example.com/a: b}
spec:
  template:
    metadata: {annotations: {autoscaling.knative.dev/min-scale: "1", serving.knative.dev/progress-deadline: 1m}}
    spec: {containers: [{image: registry.example.com/a, resources: {limits: {memory: 1Gi}}, securityContext: {runAsUser: 1}}]}
`},
		"Service": {kind: "ksvc", want: []string{
			"metadata.annotations[networking.knative.dev/ingress-class]",
			"metadata.labels[serving.knative.dev/visibility]",
			"spec.template.metadata.annotations[autoscaling.knative.dev/minscale]",
			"spec.template.spec.containers[0].imagePullPolicy",
			"spec.template.spec.containers[0].livenessProbe.terminationGracePeriodSeconds",
			"spec.template.spec.containers[0].resources.requests",
			"spec.template.spec.containers[0].securityContext.readOnlyRootFilesystem",
			"spec.template.spec.imagePullSecrets",
			"spec.template.spec.volumes[0].emptyDir.sizeLimit",
		}, manifest: `
apiVersion: serving.knative.dev/v1
kind: Service
metadata:
  name: a
  labels: {serving.knative.dev/visibility: cluster-local}
  annotations: {networking.knative.dev/ingress-class: kourier.ingress.networking.knative.dev}
spec:
  template:
    metadata: {annotations: {autoscaling.knative.dev/minscale: "1"}}
    spec:
      imagePullSecrets: [{name: a}]
      containers:
      - image: registry.example.com/a
        imagePullPolicy: Always
        livenessProbe: {terminationGracePeriodSeconds: 5, httpGet: {path: /healthy, port: 9999}}
        resources: {requests: {cpu: 100m}}
        securityContext: {readOnlyRootFilesystem: true}
        volumeMounts: [{name: a, mountPath: /a}]
      volumes: [{name: a, emptyDir: {sizeLimit: 1Mi}}]
`},
		"Broker": {kind: "broker", want: []string{"metadata.annotations[eventing.knative.dev/scope]", "spec.config"}, manifest: `
apiVersion: eventing.knative.dev/v1
kind: Broker
metadata: {name: a, annotations: {eventing.knative.dev/scope: namespace}}
spec: {config: {apiVersion: v1, kind: Secret, name: a}}
`},
		"Trigger": {kind: "trigger", want: []string{"metadata.annotations[eventing.knative.dev/injection]", "spec.delivery.deadLetterSink.audience", "spec.subscriber.audience"}, manifest: `
apiVersion: eventing.knative.dev/v1
kind: Trigger
metadata: {name: a, annotations: {eventing.knative.dev/injection: enabled, kafka.eventing.knative.dev/delivery.order: ordered}}
spec:
  broker: a
  subscriber: {uri: "http://sink.example.com/", audience: a}
  delivery: {deadLetterSink: {uri: "http://sink.example.com/", audience: a}}
`},
		"Trigger of a foreign Broker": {kind: "trigger", manifest: `
apiVersion: eventing.knative.dev/v1
kind: Trigger
metadata: {name: a, annotations: {rabbitmq.eventing.knative.dev/parallelism: "10"}}
spec: {broker: foreign, subscriber: {uri: "http://sink.example.com/"}}
`},
		"Channel": {kind: "channel.messaging", want: []string{"metadata.annotations[messaging.knative.dev/scope]", "spec.channelTemplate.spec.numPartitions"}, manifest: `
apiVersion: messaging.knative.dev/v1
kind: Channel
metadata: {name: a, annotations: {messaging.knative.dev/scope: namespace, messaging.knative.dev/subscribable: v1}}
spec: {channelTemplate: {apiVersion: messaging.knative.dev/v1, kind: InMemoryChannel, spec: {numPartitions: 3, delivery: {retry: 1}}}}
`},
		"Subscription": {kind: "subscription", want: []string{"metadata.annotations[messaging.knative.dev/a]", "spec.reply.audience"}, manifest: `
apiVersion: messaging.knative.dev/v1
kind: Subscription
metadata: {name: a, annotations: {messaging.knative.dev/a: b, eventing.knative.dev/delivery.order: ordered}}
spec: {channel: {apiVersion: messaging.knative.dev/v1, kind: Channel, name: a}, reply: {uri: "http://sink.example.com/", audience: a}}
`},
		"ServiceAccount": {kind: "sa", want: []string{"imagePullSecrets"}, manifest: `
apiVersion: v1
kind: ServiceAccount
metadata: {name: a}
imagePullSecrets: [{name: a}]
`},
	} {
		t.Run(name, func(t *testing.T) {
			kubectl := harness.NewKubectl(t, server.Kubeconfig, namespace(t))
			kubectl.Must(t, `{"apiVersion":"eventing.knative.dev/v1","kind":"Broker","metadata":{"name":"foreign","annotations":{"eventing.knative.dev/broker.class":"RabbitMQBroker"}}}`, "create", "-f", "-")
			for _, step := range []struct {
				input string
				args  []string
			}{
				{test.manifest, []string{"create", "-f", "-"}},
				{"", []string{"label", test.kind, "a", "other=yes"}},
				{test.manifest, []string{"apply", "--server-side", "--force-conflicts", "-f", "-"}},
			} {
				if got := warned(t, kubectl.Run(t, step.input, step.args...)); !slices.Equal(got, test.want) {
					t.Errorf("kubectl %s warns of\n%s\nwant\n%s", strings.Join(step.args, " "), strings.Join(got, "\n"), strings.Join(test.want, "\n"))
				}
			}
		})
	}
}

// TestWarningsOfSettings checks that writing a ConfigMap warns of unknown and unsupported settings.
func TestWarningsOfSettings(t *testing.T) {
	system := harness.NewKubectl(t, server.Kubeconfig, "knative-system")
	create := []string{"create", "configmap", "config-gc", "--dry-run=server", "--from-literal=min-non-active-revisions=1", "--from-literal=max-nonactive-revisions=2", "--from-literal=_example=a"}
	if got, want := warned(t, system.Run(t, "", create...)), []string{"data[max-nonactive-revisions]"}; !slices.Equal(got, want) {
		t.Errorf("warned of %q, want %q", got, want)
	}
	logging := []string{"create", "configmap", "config-logging", "--dry-run=server", "--from-literal=loglevel.controller=debug"}
	if got, want := warned(t, system.Run(t, "", logging...)), []string{"data[loglevel.controller]"}; !slices.Equal(got, want) {
		t.Errorf("warned of %q, want %q", got, want)
	}
	if got := warned(t, harness.NewKubectl(t, server.Kubeconfig, namespace(t)).Run(t, "", create...)); len(got) > 0 {
		t.Errorf("a ConfigMap of another namespace has warnings about %q", got)
	}
}

// TestClassHPA checks that the class of HorizontalPodAutoscalers is rejected with the alternative.
func TestClassHPA(t *testing.T) {
	kubectl := harness.NewKubectl(t, server.Kubeconfig, namespace(t))
	manifest := func(annotations string) string {
		return `{"apiVersion":"serving.knative.dev/v1","kind":"Service","metadata":{"name":"a"},"spec":{"template":{"metadata":{"annotations":{` + annotations +
			`}},"spec":{"containers":[{"image":"registry.example.com/a"}]}}}}`
	}
	const instead = "no HorizontalPodAutoscaler is created; use autoscaling.knative.dev/target with the metric 'concurrency' or 'rps'"
	for _, annotations := range []string{`"autoscaling.knative.dev/class":"hpa.autoscaling.knative.dev"`, `"autoscaling.knative.dev/metric":"cpu"`} {
		kubectl.MustFail(t, instead, manifest(annotations), "create", "-f", "-")
	}
	kubectl.Must(t, manifest(`"autoscaling.knative.dev/class":"kpa.autoscaling.knative.dev"`), "create", "-f", "-")
	kubectl.MustFail(t, instead, "", "patch", "ksvc", "a", "--type=merge", "-p",
		`{"spec":{"template":{"metadata":{"annotations":{"autoscaling.knative.dev/class":"hpa.autoscaling.knative.dev"}}}}}`)
}
