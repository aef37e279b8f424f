package eventing

import (
	"context"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	messagingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/messaging/v1"
	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// other is the entry of another subscriber in a channel, with an unknown field.
var other = map[string]any{"uid": "another-subscriber", "subscriberUri": "http://other.example.com/", "priority": "high"}

// subscribers waits until a channel of the cluster lists exactly these subscribers by UID, in any order.
func subscribers(t *testing.T, ns, name string, want map[string]map[string]any) {
	t.Helper()
	harness.Eventually(t, "the channel lists its subscribers", func() error {
		channel, err := objects(logs, ns).Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		listed, _, err := unstructured.NestedSlice(channel.Object, "spec", "subscribers")
		if err != nil {
			return err
		}
		got := map[string]map[string]any{}
		for _, entry := range listed {
			entry := entry.(map[string]any)
			// The entries without fields that another test covers.
			delete(entry, "generation")
			got[fmt.Sprint(entry["uid"])] = entry
		}
		if diff := cmp.Diff(want, got); diff != "" || len(listed) != len(want) {
			return fmt.Errorf("%d entries (-want +got):\n%s", len(listed), diff)
		}
		return nil
	})
}

// eventually waits until a Subscription has the wanted conditions.
func eventually(t *testing.T, ns, name string, want map[duckv1.ConditionType]string) {
	t.Helper()
	harness.Eventually(t, "Subscription "+name+" reports its state in the channel", func() error {
		now, err := readSubscription(t.Context(), ns, name)
		if err != nil {
			return err
		}
		for condition, w := range want {
			if err := now.says(condition, w); err != nil {
				return err
			}
		}
		return nil
	})
}

const (
	added        = messagingv1.SubscriptionConditionAddedToChannel
	channelReady = messagingv1.SubscriptionConditionChannelReady
)

// TestForeignChannel checks that a channel of another implementation lists its Subscriptions, which report its status. Entries
// of other subscribers stay (eventing Subscription Lifecycle).
func TestForeignChannel(t *testing.T) {
	t.Parallel()
	ns := host.Namespace(t, "foreign", nil)
	at := func(path string) *duckv1.Destination {
		return &duckv1.Destination{URI: "http://sink.example.com/" + path}
	}
	first := subscribe(t, ns, "first", logs, "orders", at("first"))
	eventually(t, ns, "first", map[duckv1.ConditionType]string{added: "False ChannelDoesNotExist", channelReady: "False ChannelDoesNotExist"})

	create(t, logs, ns, "orders", map[string]any{"subscribers": []any{other}, "partitions": int64(3)})
	second := subscribe(t, ns, "second", logs, "orders", at("second"))
	entry := func(s *messagingv1.Subscription, path string) map[string]any {
		return map[string]any{"uid": string(s.UID), "subscriberUri": at(path).URI}
	}
	want := map[string]map[string]any{
		"another-subscriber": other,
		string(first.UID):    entry(first, "first"),
		string(second.UID):   entry(second, "second"),
	}
	subscribers(t, ns, "orders", want)
	eventually(t, ns, "first", map[duckv1.ConditionType]string{added: "Unknown NotAdded", channelReady: "False ChannelNotReady"})

	// The channel's controller reports one as added, and rejects the other.
	setStatus(t, logs, ns, "orders", fmt.Sprintf(`{"conditions":[{"type":"Ready","status":"True"}],
		"subscribers":[{"uid":%q,"ready":"True"},{"uid":%q,"ready":"False","message":"no worker is free"}]}`, first.UID, second.UID))
	eventually(t, ns, "first", map[duckv1.ConditionType]string{added: "True", channelReady: "True", duckv1.ConditionReady: "True"})
	eventually(t, ns, "second", map[duckv1.ConditionType]string{added: "False NotAdded", channelReady: "True", duckv1.ConditionReady: "False NotAdded"})
	setStatus(t, logs, ns, "orders", `{"conditions":[{"type":"Ready","status":"False","reason":"Full","message":"no room"}]}`)
	eventually(t, ns, "first", map[duckv1.ConditionType]string{added: "True", channelReady: "False ChannelNotReady"})

	subscriptions := host.Admin.Knative.MessagingV1().Subscriptions(ns)
	if err := subscriptions.Delete(t.Context(), "second", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	delete(want, string(second.UID))
	subscribers(t, ns, "orders", want)
	gone(t, ns, "second")

	// Without its channel, a Subscription is deleted too.
	if err := objects(logs, ns).Delete(t.Context(), "orders", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, ns, "first", map[duckv1.ConditionType]string{added: "False ChannelDoesNotExist"})
	if err := subscriptions.Delete(t.Context(), "first", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	gone(t, ns, "first")
}

// gone waits until no such Subscription exists.
func gone(t *testing.T, ns, name string) {
	t.Helper()
	harness.Eventually(t, "Subscription "+name+" is gone", func() error {
		if _, err := readSubscription(t.Context(), ns, name); !apierrors.IsNotFound(err) {
			return fmt.Errorf("it exists, or %w", err)
		}
		return nil
	})
}

// TestForeignChannelThatMayNotBeWritten checks that the condition reports a channel that the server may read but not write, and
// that Subscriptions to it can be deleted (eventing RBAC Profile, eventing Subscription Lifecycle).
func TestForeignChannelThatMayNotBeWritten(t *testing.T) {
	t.Parallel()
	kind := schema.GroupVersionKind{Group: refusedGroup, Version: "v1", Kind: "Tape"}
	if err := define(t.Context(), host.Cluster, kind); err != nil {
		t.Fatal(err)
	}
	if err := grant(t.Context(), host.Cluster, "addressable", kind, "get", "list", "watch"); err != nil {
		t.Fatal(err)
	}
	ns := host.Namespace(t, "readonly", nil)
	create(t, kind, ns, "orders", nil)
	subscribe(t, ns, "it", kind, "orders", &duckv1.Destination{URI: "http://sink.example.com/"})
	subscription := referrer{kind: "Subscription", read: readSubscription}
	subscription.becomes(t, ns, "it", "False NotAdded", "http://sink.example.com/", "spec.subscribers of Tape", `cannot patch resource "tapes"`)
	if err := host.Admin.Knative.MessagingV1().Subscriptions(ns).Delete(t.Context(), "it", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	gone(t, ns, "it")
}

// TestNamespaceWithForeignChannel checks that the finalizer of Subscriptions does not block the deletion of a namespace, in any
// order of its objects (eventing Subscription Lifecycle).
func TestNamespaceWithForeignChannel(t *testing.T) {
	t.Parallel()
	ns := host.Namespace(t, "ending", nil)
	create(t, logs, ns, "orders", map[string]any{"subscribers": []any{other}})
	const count = 5
	for i := range count {
		subscribe(t, ns, fmt.Sprintf("subscription-%d", i), logs, "orders", &duckv1.Destination{URI: "http://sink.example.com/"})
	}
	for i := range count {
		eventually(t, ns, fmt.Sprintf("subscription-%d", i), map[duckv1.ConditionType]string{added: "Unknown NotAdded"})
	}
	if err := host.Host.CoreV1().Namespaces().Delete(t.Context(), ns, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), long)
	defer cancel()
	err := harness.Poll(ctx, func() error {
		namespace, err := host.Host.CoreV1().Namespaces().Get(ctx, ns, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("it exists: %+v, %w", namespace.Status, err)
	})
	if err != nil {
		t.Fatalf("waiting until the namespace is deleted: %v", err)
	}
}

// TestBackingChannel checks that an object of the kind in a Channel's template implements the Channel: the Channel mirrors its
// status, its spec lists the Subscriptions, and it is deleted with the Channel (eventing Channel Lifecycle, eventing
// Subscription Lifecycle).
func TestBackingChannel(t *testing.T) {
	t.Parallel()
	ns := host.Namespace(t, "backing", nil)
	channels := host.Admin.Knative.MessagingV1().Channels(ns)
	channel := &messagingv1.Channel{ObjectMeta: metav1.ObjectMeta{Name: "orders"}}
	channel.Spec.ChannelTemplate = &messagingv1.ChannelTemplateSpec{
		TypeMeta: metav1.TypeMeta{APIVersion: logs.GroupVersion().String(), Kind: logs.Kind},
		Spec:     &runtime.RawExtension{Raw: []byte(`{"partitions":3}`)},
	}
	if _, err := channels.Create(t.Context(), channel, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	ready := func(status corev1.ConditionStatus, reason string) (channel *messagingv1.Channel) {
		t.Helper()
		harness.Eventually(t, "the Channel is "+string(status), func() (err error) {
			if channel, err = channels.Get(t.Context(), "orders", metav1.GetOptions{}); err != nil {
				return err
			}
			if c := channel.Status.Conditions.Get(duckv1.ConditionReady); c == nil || c.Status != status || c.Reason != reason {
				return fmt.Errorf("Ready is %+v", c)
			}
			return nil
		})
		return channel
	}
	stored := ready(corev1.ConditionUnknown, "BackingChannelNotReady")
	backing, err := objects(logs, ns).Get(t.Context(), "orders", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if partitions, _, _ := unstructured.NestedInt64(backing.Object, "spec", "partitions"); partitions != 3 || !metav1.IsControlledBy(backing, stored) {
		t.Errorf("the backing channel has spec %v and owners %v", backing.Object["spec"], backing.GetOwnerReferences())
	}
	setStatus(t, logs, ns, "orders", `{"conditions":[{"type":"Ready","status":"True"}],"address":{"url":"http://log.example.com/"}}`)
	if stored = ready(corev1.ConditionTrue, ""); stored.Status.Address.GetURL() != "http://log.example.com/" {
		t.Errorf("status.address is %+v", stored.Status.Address)
	}
	if stored.Status.Channel == nil || stored.Status.Channel.Kind != logs.Kind {
		t.Errorf("status.channel is %+v", stored.Status.Channel)
	}
	at := &duckv1.Destination{URI: "http://sink.example.com/"}
	s := subscribe(t, ns, "first", messagingv1.SchemeGroupVersion.WithKind("Channel"), "orders", at)
	subscribers(t, ns, "orders", map[string]map[string]any{string(s.UID): {"uid": string(s.UID), "subscriberUri": at.URI}})
	if err := host.Admin.Knative.MessagingV1().Subscriptions(ns).Delete(t.Context(), "first", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	subscribers(t, ns, "orders", map[string]map[string]any{})
	gone(t, ns, "first")
}
