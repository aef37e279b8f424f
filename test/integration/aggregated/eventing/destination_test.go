package eventing

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// forBoth runs a test for Triggers and for Subscriptions.
func forBoth(t *testing.T, prefix string, test func(t *testing.T, ns string, r referrer)) {
	t.Parallel()
	ns := host.Namespace(t, prefix, nil)
	for _, r := range referrers(t, ns) {
		t.Run(r.kind, func(t *testing.T) { test(t, ns, r) })
	}
}

// TestCoreService checks that a core Service is addressed by its DNS name if it exists (eventing Destination Resolution).
func TestCoreService(t *testing.T) {
	forBoth(t, "service", func(t *testing.T, ns string, r referrer) {
		const path = "/in?a=b"
		name := "for-" + strings.ToLower(r.kind)
		to := reference(corev1.SchemeGroupVersion.WithKind("Service"), name)
		to.URI = path
		r.make(t, ns, "it", to)
		missing := fmt.Sprintf(`v1 Service "%s/%s" does not exist`, ns, name)
		r.becomes(t, ns, "it", "False SubscriberNotFound", "", missing)

		services := host.Host.CoreV1().Services(ns)
		service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}}}
		if _, err := services.Create(t.Context(), service, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		uri := fmt.Sprintf("http://%s.%s.svc.cluster.local%s", name, ns, path)
		r.becomes(t, ns, "it", "True", uri)
		r.make(t, ns, "later", to)
		r.becomes(t, ns, "later", "True", uri)

		if err := services.Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		r.becomes(t, ns, "it", "False SubscriberNotFound", "", missing)
	})
}

// TestAddressableKind checks that an object of any kind is addressed by its status, as soon as that has an address (eventing
// Destination Resolution).
// It covers eventing Addressable-2.
func TestAddressableKind(t *testing.T) {
	forBoth(t, "addressable", func(t *testing.T, ns string, r referrer) {
		name := "for-" + strings.ToLower(r.kind)
		quoted := fmt.Sprintf(`hosted.example.com/v1 Sink "%s/%s"`, ns, name)
		r.make(t, ns, "it", reference(sinks, name))
		r.becomes(t, ns, "it", "False SubscriberNotFound", "", quoted+" does not exist")

		create(t, sinks, ns, name, nil)
		r.becomes(t, ns, "it", "False SubscriberNotAddressable", "", quoted+" has no address in status.address.url")
		for _, address := range []string{"http://first.example.com/", "https://second.example.com/in"} {
			setStatus(t, sinks, ns, name, fmt.Sprintf(`{"address":{"url":%q}}`, address))
			r.becomes(t, ns, "it", "True", address)
		}
		setStatus(t, sinks, ns, name, `{"address":null}`)
		r.becomes(t, ns, "it", "False SubscriberNotAddressable", "", quoted)
		setStatus(t, sinks, ns, name, `{"addresses":[{"name":"http","url":"http://third.example.com/"}]}`)
		r.becomes(t, ns, "it", "True", "http://third.example.com/")

		if err := objects(sinks, ns).Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		r.becomes(t, ns, "it", "False SubscriberNotFound", "", quoted+" does not exist")
	})
}

// TestForbiddenKind checks that a kind that the server may not read is reported with the missing permission, and is read once
// that is granted, without a restart (eventing Destination Resolution, eventing RBAC Profile).
func TestForbiddenKind(t *testing.T) {
	t.Parallel()
	vaults := schema.GroupVersionKind{Group: refusedGroup, Version: "v1", Kind: "Vault"}
	if err := define(t.Context(), host.Cluster, vaults); err != nil {
		t.Fatal(err)
	}
	ns := host.Namespace(t, "forbidden", nil)
	create(t, vaults, ns, "sink", nil)
	setStatus(t, vaults, ns, "sink", `{"address":{"url":"http://vault.example.com/"}}`)
	both := referrers(t, ns)
	for _, r := range both {
		r.make(t, ns, "it", reference(vaults, "sink"))
	}
	for _, r := range both {
		r.becomes(t, ns, "it", "False SubscriberForbidden", "",
			`refused.example.com/v1 Vault "`+ns+`/sink" cannot be read`, `duck.knative.dev/addressable: "true"`, `cannot list resource "vaults"`)
	}
	if err := grant(t.Context(), host.Cluster, "addressable", vaults, "get", "list", "watch"); err != nil {
		t.Fatal(err)
	}
	for _, r := range both {
		r.becomes(t, ns, "it", "True", "http://vault.example.com/")
	}
}

// TestKindThatComesLater checks that a kind may be defined after the reference to it (eventing Destination Resolution).
func TestKindThatComesLater(t *testing.T) {
	t.Parallel()
	kind := schema.GroupVersionKind{Group: "late.example.com", Version: "v1", Kind: "Guest"}
	ns := host.Namespace(t, "late", nil)
	both := referrers(t, ns)
	for _, r := range both {
		r.make(t, ns, "it", reference(kind, "sink"))
	}
	for _, r := range both {
		r.becomes(t, ns, "it", "False SubscriberNotFound", "", "late.example.com/v1 Guest", "serves no such kind")
	}
	if err := grant(t.Context(), host.Cluster, "addressable", kind, "get", "list", "watch"); err != nil {
		t.Fatal(err)
	}
	if err := define(t.Context(), host.Cluster, kind); err != nil {
		t.Fatal(err)
	}
	create(t, kind, ns, "sink", nil)
	setStatus(t, kind, ns, "sink", `{"address":{"url":"http://guest.example.com/"}}`)
	for _, r := range both {
		r.becomes(t, ns, "it", "True", "http://guest.example.com/")
	}
}
