package channel

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	eventingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1"
	messagingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/messaging/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/destination"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/internal/controllertest"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/reconciler"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/streams"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
)

// A Channel becomes ready and gets its address once its events are kept, in one write; later reconciliations write nothing
// (eventing Channel Lifecycle-1, eventing Channel-3 and -4, eventing Topology Based Routing-1). The template determines their
// storage.
func TestReady(t *testing.T) {
	for kind, memory := range map[string]bool{messagingv1.ChannelKindJetStream: false, messagingv1.ChannelKindInMemory: true} {
		t.Run(kind, func(t *testing.T) {
			f := newFixture(t, channelOf(kind))
			if diff := cmp.Diff([]string{"update channels/status"}, f.reconcile()); diff != "" {
				t.Errorf("writes (-want +got):\n%s", diff)
			}
			want := eventing.Stream{Key: streams.ChannelKey(key), UID: "channel-uid", Memory: memory}
			if diff := cmp.Diff(map[eventing.Key]eventing.Stream{want.Key: want}, f.streams.streams); diff != "" {
				t.Errorf("streams (-want +got):\n%s", diff)
			}
			for condition, want := range map[duckv1.ConditionType]string{
				duckv1.ConditionReady: "True", messagingv1.ChannelConditionBackingChannelReady: "True", messagingv1.ChannelConditionAddressable: "True",
				destination.ConditionDeadLetterSinkResolved: "True DeadLetterSinkNotConfigured No dead letter sink is configured.",
				duckv1.ConditionEventPoliciesReady:          "True OIDCDisabled Feature \"authentication-oidc\" must be enabled to support Authorization",
			} {
				if got := f.condition(condition); got != want {
					t.Errorf("%s is %q, want %q", condition, got, want)
				}
			}
			if got := f.channel().Status.Address.GetURL(); got != "http://localhost/channels/default/orders" {
				t.Errorf("address is %q", got)
			}
			if got := f.channel().Status.ObservedGeneration; got != 1 {
				t.Errorf("observed generation %d, want 1", got)
			}
			if diff := cmp.Diff([]string{"Normal Ready Became ready"}, f.Events()); diff != "" {
				t.Errorf("events (-want +got):\n%s", diff)
			}
			if writes := f.reconcile(); len(writes) > 0 {
				t.Errorf("writes at rest: %v", writes)
			}
		})
	}
}

// TestWithoutAddress covers a Channel without a served scheme: its earlier address is removed.
func TestWithoutAddress(t *testing.T) {
	f := newFixture(t, channelOf(messagingv1.ChannelKindJetStream))
	f.reconcile()
	if f.channel().Status.Address == nil {
		t.Fatal("no address")
	}
	f.Addresses = func(eventing.Key) duckv1.AddressStatus { return duckv1.AddressStatus{} }
	f.reconcile()
	const want = "False HTTPSNotServed "
	if got := f.condition(messagingv1.ChannelConditionAddressable); !strings.HasPrefix(got, want) || !strings.HasPrefix(f.condition(duckv1.ConditionReady), want) || f.channel().Status.Address != nil {
		t.Errorf("Addressable is %q, Ready %q, address %v", got, f.condition(duckv1.ConditionReady), f.channel().Status.Address)
	}
}

// Channels of other templates have no stream (eventing Channel Lifecycle), regardless of an earlier Channel of the name.
// Without a cluster no other controller can implement them.
func TestForeignTemplate(t *testing.T) {
	for name, change := range map[string]func(*messagingv1.Channel){
		"other kind":  func(c *messagingv1.Channel) { c.Spec.ChannelTemplate.Kind = "KafkaChannel" },
		"other group": func(c *messagingv1.Channel) { c.Spec.ChannelTemplate.APIVersion = "example.com/v1" },
		"no template": func(c *messagingv1.Channel) { c.Spec.ChannelTemplate = nil },
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, channelOf(messagingv1.ChannelKindJetStream, change), subscription("a"))
			f.streams.streams[streams.ChannelKey(key)] = eventing.Stream{Key: streams.ChannelKey(key), UID: "earlier"}
			if diff := cmp.Diff([]string{"update channels/status"}, f.reconcile()); diff != "" {
				t.Errorf("writes (-want +got):\n%s", diff)
			}
			if got := f.condition(duckv1.ConditionReady); !strings.HasPrefix(got, "False ChannelTemplateKindNotFound ") {
				t.Errorf("Ready is %q", got)
			}
			if writes := f.reconcile(); len(writes) > 0 {
				t.Errorf("writes at rest: %v", writes)
			}
			if len(f.streams.streams) > 0 {
				t.Errorf("streams: %v", f.streams.streams)
			}
		})
	}
	f := newFixture(t, channelOf(messagingv1.ChannelKindInMemory, func(c *messagingv1.Channel) { c.Spec.ChannelTemplate.APIVersion = "messaging.knative.dev/v1beta1" }))
	if f.reconcile(); len(f.streams.streams) != 1 {
		t.Error("another version of this server's kind has no stream")
	}
}

// A Channel whose events cannot be kept reports that, and is retried (eventing Channel Lifecycle). Its published address stays.
func TestStreamFails(t *testing.T) {
	broken := errors.New("no space left on device")
	for name, before := range map[string]bool{"from the start": false, "later": true} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, channelOf(messagingv1.ChannelKindJetStream))
			if before {
				f.reconcile()
			}
			f.streams.err = broken
			if err := controllertest.Reconcile(t.Context(), f, key); !errors.Is(err, broken) {
				t.Errorf("got error %v, want %v", err, broken)
			}
			const want = "False StreamFailed The Channel's events cannot be kept: no space left on device"
			for _, condition := range []duckv1.ConditionType{duckv1.ConditionReady, messagingv1.ChannelConditionBackingChannelReady} {
				if got := f.condition(condition); got != want {
					t.Errorf("%s is %q, want %q", condition, got, want)
				}
			}
			addressable := map[bool]string{false: "Unknown", true: "True"}[before]
			if got := f.condition(messagingv1.ChannelConditionAddressable); got != addressable {
				t.Errorf("Addressable is %q, want %q", got, addressable)
			}
			if got := f.channel().Status.Address.GetURL(); (got != "") != before {
				t.Errorf("address is %q", got)
			}
			f.SyncEventing()
			f.streams.err = nil
			if f.reconcile(); f.condition(duckv1.ConditionReady) != "True" {
				t.Errorf("Ready is %q once the stream works again", f.condition(duckv1.ConditionReady))
			}
		})
	}
}

// The dead letter sink is resolved and reported (eventing Channel v1, eventing Destination Resolution), empty if that fails,
// and resolved again later.
func TestDeadLetterSink(t *testing.T) {
	ref := duckv1.Destination{Ref: &duckv1.KReference{APIVersion: "eventing.knative.dev/v1", Kind: "Broker", Namespace: key.Namespace, Name: "dead"}, CACerts: ptr.To("certs")}
	f := newFixture(t, channelOf(messagingv1.ChannelKindJetStream, deadLetters(ref)))
	f.reconcile()
	const want = `False DeadLetterSinkNotFound eventing.knative.dev/v1 Broker "default/dead" does not exist`
	for _, condition := range []duckv1.ConditionType{duckv1.ConditionReady, destination.ConditionDeadLetterSinkResolved} {
		if got := f.condition(condition); got != want {
			t.Errorf("%s is %q, want %q", condition, got, want)
		}
	}
	broker := &eventingv1.Broker{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: "dead"}}
	broker.Status.Address = &duckv1.Addressable{URL: "http://dead/", Audience: ptr.To("audience")}
	if err := f.Fixture.Client.Tracker().Add(broker); err != nil {
		t.Fatal(err)
	}
	f.SyncEventing()
	f.reconcile()
	if got := f.condition(duckv1.ConditionReady); got != "True" {
		t.Errorf("Ready is %q", got)
	}
	resolved := duckv1.DeliveryStatus{DeadLetterSinkURI: "http://dead/", DeadLetterSinkCACerts: ptr.To("certs"), DeadLetterSinkAudience: ptr.To("audience")}
	if diff := cmp.Diff(resolved, f.channel().Status.DeliveryStatus); diff != "" {
		t.Errorf("delivery status (-want +got):\n%s", diff)
	}
	if err := f.Fixture.Client.EventingV1().Brokers(key.Namespace).Delete(t.Context(), "dead", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	f.SyncEventing()
	f.reconcile()
	if diff := cmp.Diff(duckv1.DeliveryStatus{}, f.channel().Status.DeliveryStatus); diff != "" {
		t.Errorf("delivery status once it is gone (-want +got):\n%s", diff)
	}
}

// Deleting a Channel deletes its stream; a later Channel of the same name gets its own stream (eventing Channel Lifecycle).
func TestDeletion(t *testing.T) {
	for name, deletion := range map[string]func(f *fixture) error{
		"gone": func(f *fixture) error {
			return f.Fixture.Client.MessagingV1().Channels(key.Namespace).Delete(f.t.Context(), key.Name, metav1.DeleteOptions{})
		},
		"recreated": func(f *fixture) error {
			channel := f.channel()
			channel.UID = "another-uid"
			_, err := f.Fixture.Client.MessagingV1().Channels(key.Namespace).Update(f.t.Context(), channel, metav1.UpdateOptions{})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, channelOf(messagingv1.ChannelKindJetStream))
			f.reconcile()
			if err := deletion(f); err != nil {
				t.Fatal(err)
			}
			f.SyncEventing()
			if name != "recreated" {
				f.streams.err = errors.New("busy")
				if err := controllertest.Reconcile(t.Context(), f, key); !errors.Is(err, f.streams.err) {
					t.Errorf("got error %v, want %v", err, f.streams.err)
				}
				f.streams.err = nil
			}
			f.reconcile()
			if stream, ok := f.streams.streams[streams.ChannelKey(key)]; ok != (name == "recreated") || ok && stream.UID != "another-uid" {
				t.Errorf("streams: %v", f.streams.streams)
			}
		})
	}
}

// A Channel whose deletion a finalizer blocks continues to serve, and still reports that it is ready (eventing Channel Lifecycle-3).
func TestHeldUp(t *testing.T) {
	f := newFixture(t, channelOf(messagingv1.ChannelKindJetStream))
	f.reconcile()
	channel := f.channel()
	channel.DeletionTimestamp, channel.Finalizers = ptr.To(metav1.NewTime(controllertest.Now)), []string{"foregroundDeletion"}
	if _, err := f.Fixture.Client.MessagingV1().Channels(key.Namespace).Update(t.Context(), channel, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	f.SyncEventing()
	f.reconcile()
	if _, ok := f.streams.streams[streams.ChannelKey(key)]; !ok {
		t.Error("the stream is removed")
	}
}

// An error of writing the list of subscribers is returned, so that the write is retried. It has no other effect on the Channel
// (eventing Channel Lifecycle).
func TestListingFails(t *testing.T) {
	resource := messagingv1.Resource("channels")
	for name, test := range map[string]struct {
		err   error
		ready string
	}{
		"conflict": {apierrors.NewConflict(resource, key.Name, errors.New("changed")), "missing"},
		"refused":  {apierrors.NewRequestEntityTooLargeError("too many"), "True"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, channelOf(messagingv1.ChannelKindJetStream), subscription("a"))
			f.FailOnce(0, test.err)
			if err := controllertest.Reconcile(t.Context(), f, key); !errors.Is(err, test.err) {
				t.Errorf("got error %v, want %v", err, test.err)
			}
			if got := f.condition(duckv1.ConditionReady); got != test.ready {
				t.Errorf("Ready is %q, want %q", got, test.ready)
			}
			f.SyncEventing()
			if f.reconcile(); len(f.channel().Spec.Subscribers) != 1 {
				t.Error("the Subscription is not listed at the end")
			}
		})
	}
}

// A retry leads to the same state, wherever the work is interrupted.
func TestInterrupted(t *testing.T) {
	var f *fixture
	start := func() (*controllertest.Fixture, func() error) {
		f = newFixture(t, channelOf(messagingv1.ChannelKindJetStream), subscription("a"))
		return f.Fixture, func() error {
			f.SyncEventing()
			return controllertest.Reconcile(t.Context(), f, key)
		}
	}
	controllertest.Interrupted(t, 2, start, func(*controllertest.Fixture) []any { return []any{f.channel(), f.streams.streams} })
}

// Conditions of an earlier generation do not count (eventing Channel-3): all conditions are computed again and written at once.
func TestNewGeneration(t *testing.T) {
	f := newFixture(t, channelOf(messagingv1.ChannelKindJetStream, func(c *messagingv1.Channel) {
		c.Generation = 2
		c.Status.ObservedGeneration = 1
		c.Status.Conditions.Set(reconciler.False(messagingv1.ChannelConditionBackingChannelReady, "Old", ""), metav1.NewTime(controllertest.Now))
	}))
	if f.reconcile(); f.condition(duckv1.ConditionReady) != "True" || f.channel().Status.ObservedGeneration != 2 {
		t.Errorf("Ready is %q of generation %d", f.condition(duckv1.ConditionReady), f.channel().Status.ObservedGeneration)
	}
}
