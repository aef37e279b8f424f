package eventing

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	eventingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1"
	messagingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/messaging/v1"
	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// long is the timeout for things that the server or the host polls at long intervals.
const long = 2 * time.Minute

// The groups of the cluster's other kinds: one that the server may read, and one that it may not.
const (
	readGroup    = "hosted.example.com"
	refusedGroup = "refused.example.com"
)

var (
	// sinks have an address, logs are channels.
	sinks = schema.GroupVersionKind{Group: readGroup, Version: "v1", Kind: "Sink"}
	logs  = schema.GroupVersionKind{Group: readGroup, Version: "v1", Kind: "Log"}
)

func resourceOf(kind schema.GroupVersionKind) schema.GroupVersionResource {
	return kind.GroupVersion().WithResource(strings.ToLower(kind.Kind) + "s")
}

var definitions = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}

// define makes the cluster serve a kind with a status subresource.
func define(ctx context.Context, cluster *harness.Cluster, kind schema.GroupVersionKind) error {
	resource := resourceOf(kind)
	_, err := cluster.Admin.Dynamic.Resource(definitions).Create(ctx, &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1",
		"kind":       "CustomResourceDefinition",
		"metadata":   map[string]any{"name": resource.Resource + "." + kind.Group},
		"spec": map[string]any{
			"group": kind.Group,
			"scope": "Namespaced",
			"names": map[string]any{"kind": kind.Kind, "listKind": kind.Kind + "List", "plural": resource.Resource, "singular": strings.ToLower(kind.Kind)},
			"versions": []any{map[string]any{
				"name": kind.Version, "served": true, "storage": true,
				"subresources": map[string]any{"status": map[string]any{}},
				"schema": map[string]any{"openAPIV3Schema": map[string]any{
					"type": "object", "x-kubernetes-preserve-unknown-fields": true,
				}},
			}},
		},
	}}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	return harness.Poll(ctx, func() error {
		_, err := cluster.Admin.Dynamic.Resource(resource).List(ctx, metav1.ListOptions{Limit: 1})
		return err
	})
}

// grant grants the server verbs on the objects of a kind, like the component that defines the kind: duck is addressable or
// channelable.
func grant(ctx context.Context, cluster *harness.Cluster, duck string, kind schema.GroupVersionKind, verbs ...string) error {
	resource := resourceOf(kind)
	_, err := cluster.Host.RbacV1().ClusterRoles().Create(ctx, &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: resource.Resource + "." + kind.Group, Labels: map[string]string{"duck.knative.dev/" + duck: "true"}},
		Rules:      []rbacv1.PolicyRule{{APIGroups: []string{kind.Group}, Resources: []string{resource.Resource}, Verbs: verbs}},
	}, metav1.CreateOptions{})
	return err
}

// defineKinds defines the kinds that all tests refer to.
func defineKinds(ctx context.Context, cluster *harness.Cluster) error {
	for _, kind := range []schema.GroupVersionKind{sinks, logs} {
		if err := define(ctx, cluster, kind); err != nil {
			return fmt.Errorf("defining %s: %w", kind, err)
		}
	}
	if err := grant(ctx, cluster, "addressable", sinks, "get", "list", "watch"); err != nil {
		return err
	}
	return grant(ctx, cluster, "channelable", logs, "create", "get", "list", "watch", "update", "patch")
}

// objects returns a client for the objects of a kind in a namespace.
func objects(kind schema.GroupVersionKind, ns string) dynamic.ResourceInterface {
	return host.Admin.Dynamic.Resource(resourceOf(kind)).Namespace(ns)
}

// create creates an object of a kind of the cluster.
func create(t *testing.T, kind schema.GroupVersionKind, ns, name string, spec map[string]any) {
	t.Helper()
	obj := &unstructured.Unstructured{Object: map[string]any{"spec": spec}}
	obj.SetGroupVersionKind(kind)
	obj.SetName(name)
	if _, err := objects(kind, ns).Create(t.Context(), obj, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// setStatus patches the status of an object of the cluster with a JSON merge patch.
func setStatus(t *testing.T, kind schema.GroupVersionKind, ns, name, status string) {
	t.Helper()
	patch := []byte(`{"status":` + status + `}`)
	if _, err := objects(kind, ns).Patch(t.Context(), name, types.MergePatchType, patch, metav1.PatchOptions{}, "status"); err != nil {
		t.Fatal(err)
	}
}

// reference is a destination by the name of an object.
func reference(kind schema.GroupVersionKind, name string) *duckv1.Destination {
	return &duckv1.Destination{Ref: &duckv1.KReference{APIVersion: kind.GroupVersion().String(), Kind: kind.Kind, Name: name}}
}

// seen is the observed status of a Trigger or Subscription.
type seen struct {
	Status duckv1.Status
	URI    string
}

// referrer is a Trigger or a Subscription with a subscriber.
type referrer struct {
	kind string
	// make creates an object that sends to a destination.
	make func(t *testing.T, ns, name string, to *duckv1.Destination)
	read func(ctx context.Context, ns, name string) (seen, error)
}

// referrers are both kinds, with ready parents: Broker and Channel "parent".
func referrers(t *testing.T, ns string) []referrer {
	t.Helper()
	knative := host.Admin.Knative
	meta := metav1.ObjectMeta{Name: "parent"}
	if _, err := knative.EventingV1().Brokers(ns).Create(t.Context(), &eventingv1.Broker{ObjectMeta: meta}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := knative.MessagingV1().Channels(ns).Create(t.Context(), &messagingv1.Channel{ObjectMeta: meta}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	return []referrer{
		{
			"Trigger",
			func(t *testing.T, ns, name string, to *duckv1.Destination) {
				trigger := &eventingv1.Trigger{ObjectMeta: metav1.ObjectMeta{Name: name}}
				trigger.Spec.Broker, trigger.Spec.Subscriber = "parent", *to
				if _, err := knative.EventingV1().Triggers(ns).Create(t.Context(), trigger, metav1.CreateOptions{}); err != nil {
					t.Fatal(err)
				}
			},
			func(ctx context.Context, ns, name string) (seen, error) {
				trigger, err := knative.EventingV1().Triggers(ns).Get(ctx, name, metav1.GetOptions{})
				if err != nil {
					return seen{}, err
				}
				return seen{trigger.Status.Status, trigger.Status.SubscriberURI}, nil
			},
		},
		{
			"Subscription",
			func(t *testing.T, ns, name string, to *duckv1.Destination) {
				subscribe(t, ns, name, messagingv1.SchemeGroupVersion.WithKind("Channel"), "parent", to)
			},
			readSubscription,
		},
	}
}

// subscribe creates a Subscription to a channel of any kind.
func subscribe(t *testing.T, ns, name string, kind schema.GroupVersionKind, channel string, to *duckv1.Destination) *messagingv1.Subscription {
	t.Helper()
	subscription := &messagingv1.Subscription{ObjectMeta: metav1.ObjectMeta{Name: name}}
	subscription.Spec.Channel = duckv1.KReference{APIVersion: kind.GroupVersion().String(), Kind: kind.Kind, Name: channel}
	subscription.Spec.Subscriber = to
	created, err := host.Admin.Knative.MessagingV1().Subscriptions(ns).Create(t.Context(), subscription, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return created
}

func readSubscription(ctx context.Context, ns, name string) (seen, error) {
	subscription, err := host.Admin.Knative.MessagingV1().Subscriptions(ns).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return seen{}, err
	}
	return seen{subscription.Status.Status, subscription.Status.PhysicalSubscription.SubscriberURI}, nil
}

// says fails unless a condition has the wanted value, which is "True" or "<status> <reason>".
func (s seen) says(condition duckv1.ConditionType, want string) error {
	c := s.Status.Conditions.Get(condition)
	if c == nil {
		return fmt.Errorf("the condition %s is missing: %+v", condition, s.Status.Conditions)
	}
	got := string(c.Status)
	if c.Status != "True" {
		got += " " + c.Reason
	}
	if got != want {
		return fmt.Errorf("%s is %s (%s), want %s", condition, got, c.Message, want)
	}
	return nil
}

// becomes waits until a referrer has the wanted Ready condition and URI, with a message that contains all of detail.
func (r referrer) becomes(t *testing.T, ns, name, ready, uri string, detail ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), long)
	defer cancel()
	err := harness.Poll(ctx, func() error {
		now, err := r.read(ctx, ns, name)
		if err != nil {
			return err
		}
		if err := now.says(duckv1.ConditionReady, ready); err != nil {
			return err
		}
		message := now.Status.Conditions.Get(duckv1.ConditionReady).Message
		for _, d := range detail {
			if !strings.Contains(message, d) {
				return fmt.Errorf("the message is %q, without %q", message, d)
			}
		}
		if now.URI != uri {
			return fmt.Errorf("the subscriber's URI is %q, want %q", now.URI, uri)
		}
		return nil
	})
	if err != nil {
		t.Fatalf("%s %s: %v", r.kind, name, err)
	}
}
