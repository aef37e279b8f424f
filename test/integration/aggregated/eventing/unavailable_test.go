package eventing

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

var apiServices = schema.GroupVersionResource{Group: "apiregistration.k8s.io", Version: "v1", Resource: "apiservices"}

// TestUnavailableKind deletes a Subscription while the API service of its channel's kind is down. Discovery omits such kinds,
// but the channel still lists the Subscription, which stays until it can be removed there (eventing Subscription Lifecycle).
func TestUnavailableKind(t *testing.T) {
	t.Parallel()
	kind := schema.GroupVersionKind{Group: "outage.example.com", Version: "v1", Kind: "Pipe"}
	if err := define(t.Context(), host.Cluster, kind); err != nil {
		t.Fatal(err)
	}
	verbs := []string{"get", "list", "watch", "update", "patch"}
	if err := grant(t.Context(), host.Cluster, "channelable", kind, verbs...); err != nil {
		t.Fatal(err)
	}
	ns := host.Namespace(t, "unavailable", nil)
	create(t, kind, ns, "orders", nil)
	subscribe(t, ns, "it", kind, "orders", &duckv1.Destination{URI: "http://sink.example.com/"})
	subscription := referrer{kind: "Subscription", read: readSubscription}
	subscription.becomes(t, ns, "it", "False ChannelNotReady", "http://sink.example.com/")
	listed := func() (int, error) {
		channel, err := objects(kind, ns).Get(t.Context(), "orders", metav1.GetOptions{})
		if err != nil {
			return 0, err
		}
		entries, _, err := unstructured.NestedSlice(channel.Object, "spec", "subscribers")
		return len(entries), err
	}
	if n, err := listed(); err != nil || n != 1 {
		t.Fatalf("the channel has %d entries, %v, want 1", n, err)
	}

	services, name := host.Admin.Dynamic.Resource(apiServices), kind.Version+"."+kind.Group
	down := `{"metadata":{"labels":{"kube-aggregator.kubernetes.io/automanaged":null}},"spec":{"service":{"namespace":"default","name":"absent"},"insecureSkipTLSVerify":true}}`
	if _, err := services.Patch(t.Context(), name, types.MergePatchType, []byte(down), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	up := func() error {
		// kube-apiserver registers the kinds of CustomResourceDefinitions again.
		err := services.Delete(t.Context(), name, metav1.DeleteOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return err
	}
	defer func() {
		if err := up(); err != nil {
			t.Error(err)
		}
	}()
	harness.Eventually(t, "the kind is unavailable", func() error {
		if _, err := listed(); !apierrors.IsServiceUnavailable(err) {
			return fmt.Errorf("got %w", err)
		}
		return nil
	})
	// A new kind makes the server read discovery, which lacks the kind of the channel.
	fresh := schema.GroupVersionKind{Group: "fresh.example.com", Version: "v1", Kind: "Hose"}
	if err := define(t.Context(), host.Cluster, fresh); err != nil {
		t.Fatal(err)
	}
	if err := grant(t.Context(), host.Cluster, "channelable", fresh, verbs...); err != nil {
		t.Fatal(err)
	}
	create(t, fresh, ns, "orders", nil)
	subscribe(t, ns, "fresh", fresh, "orders", &duckv1.Destination{URI: "http://sink.example.com/"})
	subscription.becomes(t, ns, "fresh", "False ChannelNotReady", "http://sink.example.com/")

	if err := host.Admin.Knative.MessagingV1().Subscriptions(ns).Delete(t.Context(), "it", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, "the server tried to remove it from its channel", func() error {
		if _, err := readSubscription(t.Context(), ns, "it"); err != nil {
			t.Fatalf("the Subscription was deleted while its channel was unavailable: %v", err)
		}
		if !strings.Contains(host.Logs(), "read /apis/outage.example.com/v1 of the cluster") {
			return errors.New("its log does not report it")
		}
		return nil
	})
	if err := up(); err != nil {
		t.Fatal(err)
	}
	gone(t, ns, "it")
	harness.Eventually(t, "the channel does not list the Subscription", func() error {
		if n, err := listed(); err != nil || n != 0 {
			return fmt.Errorf("%d entries, %w", n, err)
		}
		return nil
	})
}
