package settings

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/utils/ptr"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	eventingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1"
)

func brokers(value string) map[string]map[string]string {
	return map[string]map[string]string{"config-br-defaults": {"default-br-config": value}}
}

func TestBrokerDefaults(t *testing.T) {
	reference := &duckv1.KReference{APIVersion: "v1", Kind: "ConfigMap", Name: "a", Namespace: "b"}
	for name, tc := range map[string]struct {
		value string
		want  eventingv1.Settings
	}{
		"nothing": {value: ""},
		"null":    {value: "clusterDefault:\nnamespaceDefaults: {shop: null}"},
		"class":   {value: "clusterDefault: {brokerClass: Kafka}", want: eventingv1.Settings{Cluster: eventingv1.BrokerDefaults{Class: "Kafka"}}},
		"reference": {
			value: "clusterDefault:\n  apiVersion: v1\n  kind: ConfigMap\n  name: a\n  namespace: b\n",
			want:  eventingv1.Settings{Cluster: eventingv1.BrokerDefaults{Options: eventingv1.BrokerOptions{Config: reference}}},
		},
		"delivery": {
			value: "clusterDefault: {delivery: {retry: 3, backoffDelay: PT1S}}",
			want: eventingv1.Settings{Cluster: eventingv1.BrokerDefaults{Options: eventingv1.BrokerOptions{
				Delivery: &duckv1.DeliverySpec{Retry: ptr.To[int32](3), BackoffDelay: ptr.To("PT1S")}}}},
		},
		"namespaces and classes": {
			value: `
namespaceDefaults:
  shop:
    disallowDifferentNamespaceConfig: true
    brokerClasses:
      Kafka: {apiVersion: v1, kind: ConfigMap, name: a, namespace: b}
  team: {brokerClass: Kafka}
`,
			want: eventingv1.Settings{Namespaces: map[string]eventingv1.BrokerDefaults{
				"shop": {OwnNamespace: true, Classes: map[string]eventingv1.BrokerOptions{"Kafka": {Config: reference}}},
				"team": {Class: "Kafka"},
			}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			want := Default("example.com")
			want.Eventing = tc.want
			got, faults := set(brokers(tc.value))
			if len(faults) > 0 {
				t.Fatalf("faults: %v", faults)
			}
			if diff := cmp.Diff(want, got, compared); diff != "" {
				t.Errorf("settings (-want +got):\n%s", diff)
			}
		})
	}
}

func TestBadBrokerDefaults(t *testing.T) {
	const where = "key 'default-br-config' of config-br-defaults"
	for value, want := range map[string]string{
		"clusterDefault: x":                                                   where + " must be 'clusterDefault' and 'namespaceDefaults' in YAML: ",
		"clusterDefaults: {}":                                                 `unknown field "clusterDefaults"`,
		"clusterDefault: {class: a}":                                          `unknown field "class"`,
		"clusterDefault: {name: a}":                                           where + ": clusterDefault.kind: Required value",
		"clusterDefault: {delivery: {retry: -1}}":                             where + ": clusterDefault.delivery.retry: Invalid value: -1",
		"clusterDefault: {delivery: {retries: 1}}":                            `unknown field "retries"`,
		"namespaceDefaults: {shop: {kind: A}}":                                "namespaceDefaults[shop].name: Required value",
		"namespaceDefaults: {Shop: {brokerClass: a}}":                         "namespaceDefaults[Shop]: Invalid value",
		"clusterDefault: {brokerClasses: {Kafka: {delivery: {timeout: 1s}}}}": "clusterDefault.brokerClasses[Kafka].delivery.timeout: Invalid value",
	} {
		t.Run(value, func(t *testing.T) {
			s := NewStore(Default("example.com"))
			s.Update(brokers("clusterDefault: {brokerClass: Good}"))
			err := s.Update(brokers(value))["config-br-defaults"]
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("error %v lacks %q", err, want)
			}
			if class := s.Eventing().Cluster.Class; class != "Good" {
				t.Errorf("the class is %q, want the last good one", class)
			}
		})
	}
}
