// Package domain tests --cluster-domain with a host cluster: a real kube-apiserver and the aggregated server with all components,
// registered by the shipped manifests.
package domain

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	eventingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1"
	messagingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/messaging/v1"
	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// clusterDomain is another domain than the default.
const clusterDomain = "corp.example"

// install starts a host cluster and a server with that domain, which stop when the test ends.
func install(t *testing.T) *harness.Installation {
	t.Helper()
	cluster, err := harness.StartCluster(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cluster.Stop(); err != nil {
			t.Error(err)
		}
	})
	host, err := harness.Install(cluster, t.TempDir(), "apiserver,controllers,gateway,broker", "--cluster-domain="+clusterDomain,
		"--gateway-port=0", "--gateway-tls-port=0", "--gateway-internal-port=0", "--drain-port=0", "--broker-port=0", "--broker-tls-port=0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := host.Server.Stop(); err != nil {
			t.Errorf("%v\n%s", err, host.Logs())
		}
	})
	return host
}

// TestClusterDomain checks that addresses in status, the core Services in the host cluster and resolved references are under
// the domain of --cluster-domain (eventing Destination Resolution).
func TestClusterDomain(t *testing.T) {
	host := install(t)
	ns := host.Namespace(t, "domain", nil)
	serving, eventing, messaging := host.Admin.Knative.ServingV1(), host.Admin.Knative.EventingV1(), host.Admin.Knative.MessagingV1()
	at := func(service string) string { return fmt.Sprintf("http://%s.%s.svc.%s", service, ns, clusterDomain) }

	percent := int64(100)
	route := &servingv1.Route{ObjectMeta: metav1.ObjectMeta{Name: "hello"}}
	route.Spec.Traffic = []servingv1.TrafficTarget{{ConfigurationName: "hello", Percent: &percent}}
	if _, err := serving.Routes(ns).Create(t.Context(), route, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	broker := &eventingv1.Broker{ObjectMeta: metav1.ObjectMeta{Name: "orders"}}
	if _, err := eventing.Brokers(ns).Create(t.Context(), broker, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	channel := &messagingv1.Channel{ObjectMeta: metav1.ObjectMeta{Name: "orders"}}
	if _, err := messaging.Channels(ns).Create(t.Context(), channel, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "sink"}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}}}
	if _, err := host.Host.CoreV1().Services(ns).Create(t.Context(), service, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}

	for _, test := range []struct {
		kind schema.GroupVersionKind
		name string
		// address is the URL in the status, and of references.
		address string
		// read returns the address in the status; nil for an object of the host.
		read func() (*duckv1.Addressable, error)
		// service is the name of the core Service of the object, or empty, and alias its target.
		service, alias string
	}{
		{servingv1.SchemeGroupVersion.WithKind("Route"), "hello", at("hello"), func() (*duckv1.Addressable, error) {
			route, err := serving.Routes(ns).Get(t.Context(), "hello", metav1.GetOptions{})
			return route.Status.Address, err
		}, "hello", "gateway-internal"},
		{eventingv1.SchemeGroupVersion.WithKind("Broker"), "orders", fmt.Sprintf("http://broker-ingress.%s.svc.%s/%s/orders", harness.SystemNamespace, clusterDomain, ns), func() (*duckv1.Addressable, error) {
			broker, err := eventing.Brokers(ns).Get(t.Context(), "orders", metav1.GetOptions{})
			return broker.Status.Address, err
		}, "", ""},
		{messagingv1.SchemeGroupVersion.WithKind("Channel"), "orders", at("orders-kn-channel"), func() (*duckv1.Addressable, error) {
			channel, err := messaging.Channels(ns).Get(t.Context(), "orders", metav1.GetOptions{})
			return channel.Status.Address, err
		}, "orders-kn-channel", "broker-ingress"},
		{corev1.SchemeGroupVersion.WithKind("Service"), "sink", at("sink"), nil, "", ""},
	} {
		t.Run(test.kind.Kind, func(t *testing.T) {
			if test.read != nil {
				harness.Eventually(t, "the status has the address", func() error {
					if address, err := test.read(); err != nil || address.GetURL() != test.address {
						return fmt.Errorf("%+v, %w, want %s", address, err, test.address)
					}
					return nil
				})
			}
			if test.service != "" {
				want := fmt.Sprintf("%s.%s.svc.%s", test.alias, harness.SystemNamespace, clusterDomain)
				harness.Eventually(t, "the core Service is an alias", func() error {
					found, err := host.Host.CoreV1().Services(ns).Get(t.Context(), test.service, metav1.GetOptions{})
					if err != nil || found.Spec.ExternalName != want {
						return fmt.Errorf("ExternalName %q, %w, want %s", found.Spec.ExternalName, err, want)
					}
					return nil
				})
			}
			trigger := &eventingv1.Trigger{ObjectMeta: metav1.ObjectMeta{GenerateName: "to-"}}
			trigger.Spec.Broker = "orders"
			trigger.Spec.Subscriber.Ref = &duckv1.KReference{APIVersion: test.kind.GroupVersion().String(), Kind: test.kind.Kind, Name: test.name}
			created, err := eventing.Triggers(ns).Create(t.Context(), trigger, metav1.CreateOptions{})
			if err != nil {
				t.Fatal(err)
			}
			harness.Eventually(t, "the reference is resolved", func() error {
				found, err := eventing.Triggers(ns).Get(t.Context(), created.Name, metav1.GetOptions{})
				if err != nil || found.Status.SubscriberURI != test.address {
					return fmt.Errorf("subscriberUri %q, %w, want %s", found.Status.SubscriberURI, err, test.address)
				}
				return nil
			})
		})
	}
}
