package settings

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	messagingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/messaging/v1"
)

func channels(value string) map[string]map[string]string {
	return map[string]map[string]string{"default-ch-webhook": {"default-ch-config": value}}
}

func TestChannelDefaults(t *testing.T) {
	template := func(apiVersion, kind, spec string) *messagingv1.ChannelTemplateSpec {
		template := &messagingv1.ChannelTemplateSpec{TypeMeta: metav1.TypeMeta{APIVersion: apiVersion, Kind: kind}}
		if spec != "" {
			template.Spec = &runtime.RawExtension{Raw: []byte(spec)}
		}
		return template
	}
	for name, tc := range map[string]struct {
		value string
		want  messagingv1.Settings
	}{
		"nothing": {value: ""},
		"null":    {value: "clusterDefault:\nnamespaceDefaults: {shop: null}", want: messagingv1.Settings{Namespaces: map[string]*messagingv1.ChannelTemplateSpec{}}},
		"as in Knative's releases": {
			value: `
clusterDefault:
  apiVersion: messaging.knative.dev/v1
  kind: InMemoryChannel
namespaceDefaults:
  some-namespace:
    apiVersion: messaging.knative.dev/v1beta1
    kind: KafkaChannel
    spec:
      numPartitions: 2
`,
			want: messagingv1.Settings{
				Cluster:    template("messaging.knative.dev/v1", "InMemoryChannel", ""),
				Namespaces: map[string]*messagingv1.ChannelTemplateSpec{"some-namespace": template("messaging.knative.dev/v1beta1", "KafkaChannel", `{"numPartitions":2}`)},
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			want := Default("example.com")
			want.Messaging = tc.want
			got, faults := set(channels(tc.value))
			if len(faults) > 0 {
				t.Fatalf("faults: %v", faults)
			}
			if diff := cmp.Diff(want, got, compared); diff != "" {
				t.Errorf("settings (-want +got):\n%s", diff)
			}
		})
	}
}

func TestBadChannelDefaults(t *testing.T) {
	const where = "key 'default-ch-config' of default-ch-webhook"
	for value, want := range map[string]string{
		"clusterDefault: x":                    where + " must be 'clusterDefault' and 'namespaceDefaults' in YAML: ",
		"clusterDefaults: {}":                  `unknown field "clusterDefaults"`,
		"clusterDefault: {}":                   where + ": clusterDefault.apiVersion: Required value",
		"namespaceDefaults: {shop: {kind: A}}": "namespaceDefaults[shop].apiVersion: Required value",
		"namespaceDefaults: {Shop: {apiVersion: messaging.knative.dev/v1, kind: A}}":                                   "namespaceDefaults[Shop]: Invalid value",
		"clusterDefault: {apiVersion: messaging.knative.dev/v1, kind: InMemoryChannel, spec: {delivery: {retry: -1}}}": "clusterDefault.spec.delivery.retry: Invalid value: -1",
		"clusterDefault: {apiVersion: messaging.knative.dev/v1, kind: InMemoryChannel, spec: 7}":                       "clusterDefault.spec: Invalid value",
	} {
		t.Run(value, func(t *testing.T) {
			s := NewStore(Default("example.com"))
			s.Update(channels("clusterDefault: {apiVersion: messaging.knative.dev/v1, kind: InMemoryChannel}"))
			good := s.Messaging()
			err := s.Update(channels(value))["default-ch-webhook"]
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("got %v, want %s", err, want)
			}
			if diff := cmp.Diff(good, s.Messaging()); diff != "" {
				t.Errorf("settings changed:\n%s", diff)
			}
		})
	}
}
