package eventing

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"

	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// noticed is the timeout for the server to discover a new kind, which it looks for once a minute.
const noticed = 90 * time.Second

// foreign is a kind of the cluster that this server does not serve.
type foreign struct {
	schema.GroupVersionKind
	objects dynamic.ResourceInterface
}

// ref is a destination.
func (f foreign) ref(name string) string { return ref(f.GroupVersion().String(), f.Kind, name) }

// define makes the cluster serve a kind in the group of the space until the test ends, and grants the server the permissions
// by a ClusterRole with the label of the duck type of its objects: addressable or channelable.
func define(t *testing.T, s *harness.Space, kind, duck string, verbs ...string) foreign {
	t.Helper()
	group, plural := s.Name+".example.com", strings.ToLower(kind)+"s"
	name := plural + "." + group
	gvr := schema.GroupVersionResource{Group: group, Version: "v1", Resource: plural}
	definitions := node.Admin.Dynamic.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"})
	roles := node.Host.RbacV1().ClusterRoles()
	t.Cleanup(func() {
		ctx := context.Background()
		if err := definitions.Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
		if err := roles.Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	s.Apply(t, fmt.Sprintf(`
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: %s}
spec:
  group: %s
  scope: Namespaced
  names: {kind: %s, plural: %s, singular: %s}
  versions:
  - {name: v1, served: true, storage: true, subresources: {status: {}},
     schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}`,
		name, group, kind, plural, strings.ToLower(kind)))
	_, err := roles.Create(t.Context(), &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"duck.knative.dev/" + duck: "true"}},
		Rules:      []rbacv1.PolicyRule{{APIGroups: []string{group}, Resources: []string{plural}, Verbs: verbs}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	f := foreign{gvr.GroupVersion().WithKind(kind), node.Admin.Dynamic.Resource(gvr).Namespace(s.Name)}
	harness.Eventually(t, "the cluster serves "+kind, func() error {
		_, err := f.objects.List(t.Context(), metav1.ListOptions{})
		return err
	})
	return f
}

// create creates an object with a status.
func (f foreign) create(t *testing.T, name, status string) {
	t.Helper()
	object := &unstructured.Unstructured{Object: map[string]any{}}
	object.SetGroupVersionKind(f.GroupVersionKind)
	object.SetName(name)
	if _, err := f.objects.Create(t.Context(), object, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	f.setStatus(t, name, status)
}

// setStatus patches the status with a JSON merge patch.
func (f foreign) setStatus(t *testing.T, name, status string) {
	t.Helper()
	patch := []byte(`{"status":` + status + `}`)
	if _, err := f.objects.Patch(t.Context(), name, types.MergePatchType, patch, metav1.PatchOptions{}, "status"); err != nil {
		t.Fatal(err)
	}
}

// TestForeignAddressable checks that events are sent to an object of a kind that is new to the server, at the address in its
// status, with the permissions of a ClusterRole with the label of Addressables (eventing Destination Resolution, eventing RBAC
// Profile).
func TestForeignAddressable(t *testing.T) {
	t.Parallel()
	s := newSpace(t, "addressable")
	sink := newSink(t)
	lake := define(t, s, "Lake", "addressable", "get", "list", "watch")
	lake.create(t, "deep", fmt.Sprintf(`{"address":{"url":%q}}`, sink.At("/first").URL))
	s.Apply(t,
		broker("default", ""), channel("orders"), trigger("lake", "order", lake.ref("deep"), ""), subscription("lake", "orders", lake.ref("deep"), ""),
		trigger("shallow", "order", lake.ref("shallow"), ""))
	for _, name := range []string{"trigger/lake", "subscription/lake"} {
		s.SaysWithin(t, noticed, name, "Ready", "True")
	}
	s.Says(t, "trigger/shallow", "Ready", "False SubscriberNotFound", `Lake "`+s.Name+`/shallow" does not exist`)
	client := s.Client(t, "client")
	post(t, client, s.Address(t, "broker/default"), "of-broker", "order")
	post(t, client, s.Address(t, "channel/orders"), "of-channel", "order")
	if err := sink.At("/first").AwaitAll(bounded(t), []string{"of-broker", "of-channel"}); err != nil {
		t.Fatal(err)
	}

	second := sink.At("/second")
	lake.setStatus(t, "deep", fmt.Sprintf(`{"address":{"url":%q}}`, second.URL))
	until(t, "the Trigger follows the address", func() error {
		object := s.Says(t, "trigger/lake", "Ready", "True")
		address, _, err := unstructured.NestedString(object.Object, "status", "subscriberUri")
		if err == nil && address != second.URL {
			err = fmt.Errorf("its subscriber is at %q", address)
		}
		return err
	})
	// The replica that delivers may observe the address later than the one that reports it.
	number := 0
	until(t, "events are sent to the next address", func() error {
		number++
		post(t, client, s.Address(t, "broker/default"), fmt.Sprint("moved-", number), "order")
		if second.Requests() == 0 {
			return fmt.Errorf("none of %d was", number)
		}
		return nil
	})
}

// TestForeignChannelable checks that a Subscription adds itself to a channel of another implementation, with the permissions
// of a ClusterRole with the label of Channelables, reports the channel's status for it, and removes itself (eventing
// Subscription Lifecycle, eventing RBAC Profile).
func TestForeignChannelable(t *testing.T) {
	t.Parallel()
	s := node.NewSpace(t, "channelable")
	river := define(t, s, "River", "channelable", "create", "get", "list", "watch", "update", "patch")
	river.create(t, "wide", `{"conditions":[{"type":"Ready","status":"True"}]}`)
	const subscriber = "http://sink.example.com/"
	s.Apply(t, fmt.Sprintf(`{apiVersion: messaging.knative.dev/v1, kind: Subscription, metadata: {name: boats},
		spec: {channel: {apiVersion: %s, kind: River, name: wide}, subscriber: %s}}`, river.GroupVersion(), uri(subscriber)))
	boats := s.SaysWithin(t, noticed, "subscription/boats", "AddedToChannel", "Unknown")
	until := func(what string, check func(subscribers []any) error) {
		harness.Eventually(t, what, func() error {
			channel, err := river.objects.Get(t.Context(), "wide", metav1.GetOptions{})
			if err != nil {
				return err
			}
			subscribers, _, err := unstructured.NestedSlice(channel.Object, "spec", "subscribers")
			if err != nil {
				return err
			}
			return check(subscribers)
		})
	}
	until("the channel lists the Subscription", func(subscribers []any) error {
		if len(subscribers) == 1 {
			entry, _ := subscribers[0].(map[string]any)
			if entry["uid"] == string(boats.GetUID()) && entry["subscriberUri"] == subscriber {
				return nil
			}
		}
		return fmt.Errorf("it lists %v", subscribers)
	})
	river.setStatus(t, "wide", fmt.Sprintf(`{"subscribers":[{"uid":%q,"ready":"True"}]}`, boats.GetUID()))
	s.Ready(t, "subscription/boats")
	s.Delete(t, "subscription/boats")
	until("the channel does not list the Subscription", func(subscribers []any) error {
		if len(subscribers) > 0 {
			return fmt.Errorf("it lists %v", subscribers)
		}
		return nil
	})
	t.Run("as template", func(t *testing.T) { river.implement(t, s) })
}

// implement covers a Channel whose template names the kind: an object of it is created, lists the Channel's Subscriptions, and
// provides the Channel's status. The same holds for a new Channel of the same name after deletion of the first (eventing
// Channel Lifecycle).
func (f foreign) implement(t *testing.T, s *harness.Space) {
	f.control(t)
	channel := fmt.Sprintf(`{apiVersion: messaging.knative.dev/v1, kind: Channel, metadata: {name: orders},
		spec: {channelTemplate: {apiVersion: %s, kind: %s, spec: {width: 3}}}}`, f.GroupVersion(), f.Kind)
	s.Apply(t, subscription("rafts", "orders", uri("http://sink.example.com/"), ""))
	var last types.UID
	for range 2 {
		s.Apply(t, channel)
		// The cluster's garbage collector deletes the previous backing object first.
		orders := s.SaysWithin(t, noticed, "channel/orders", "Ready", "True")
		backing, err := f.objects.Get(t.Context(), "orders", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if width, _, _ := unstructured.NestedInt64(backing.Object, "spec", "width"); width != 3 || !metav1.IsControlledBy(backing, orders) || backing.GetUID() == last {
			t.Errorf("%s %s is %+v, want a new one of the Channel", f.Kind, last, backing.Object)
		}
		last = backing.GetUID()
		if got := s.Address(t, "channel/orders"); got != addressOf(last) {
			t.Errorf("the Channel is at %s, want %s", got, addressOf(last))
		}
		rafts := s.Says(t, "subscription/rafts", "Ready", "True")
		harness.Eventually(t, "the Subscription is listed", func() error {
			backing, err := f.objects.Get(t.Context(), "orders", metav1.GetOptions{})
			if err != nil {
				return err
			}
			subscribers, _, err := unstructured.NestedSlice(backing.Object, "spec", "subscribers")
			if err == nil && (len(subscribers) != 1 || subscribers[0].(map[string]any)["uid"] != string(rafts.GetUID())) {
				err = fmt.Errorf("spec.subscribers is %v", subscribers)
			}
			return err
		})
		s.Delete(t, "channel/orders")
	}
}

// addressOf returns the address at which control makes an object accept events.
func addressOf(uid types.UID) string { return "http://" + string(uid) + ".example.com" }

// control acts as the controller of a kind of channels until the test ends: it reports objects as ready, with an address, and
// their subscribers as added.
func (f foreign) control(t *testing.T) {
	t.Helper()
	objects, err := f.objects.Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	t.Cleanup(func() {
		objects.Stop()
		<-done
	})
	go func() {
		defer close(done)
		for event := range objects.ResultChan() {
			object, ok := event.Object.(*unstructured.Unstructured)
			if !ok || event.Type == watch.Deleted {
				continue
			}
			subscribers, _, err := unstructured.NestedSlice(object.Object, "spec", "subscribers")
			if err != nil {
				t.Error(err)
			}
			added := []any{}
			for _, s := range subscribers {
				added = append(added, map[string]any{"uid": s.(map[string]any)["uid"], "ready": "True"})
			}
			status, err := json.Marshal(map[string]any{"status": map[string]any{
				"conditions":  []any{map[string]any{"type": "Ready", "status": "True"}},
				"address":     map[string]any{"url": addressOf(object.GetUID())},
				"subscribers": added,
			}})
			if err != nil {
				t.Error(err)
			}
			_, err = f.objects.Patch(t.Context(), object.GetName(), types.MergePatchType, status, metav1.PatchOptions{}, "status")
			if err != nil && !apierrors.IsNotFound(err) && t.Context().Err() == nil {
				t.Error(err)
			}
		}
	}()
}
