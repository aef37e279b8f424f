package subscription

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/scheme"
	restfake "k8s.io/client-go/rest/fake"
	clienttesting "k8s.io/client-go/testing"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	messagingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/messaging/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/destination"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/internal/controllertest"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/reconciler"
	"github.com/knative-apiserver/knative-apiserver/pkg/origin"
)

var (
	kafkaVersion  = schema.GroupVersion{Group: "messaging.example.com", Version: "v1"}
	kafkaChannels = kafkaVersion.WithResource("kafkachannels")
)

type fields = map[string]any

// kafkaChannel returns channel orders of the host cluster with fields in addition to metadata. Another client subscribes to it too.
func kafkaChannel(spec, status fields) *unstructured.Unstructured {
	if spec["subscribers"] == nil {
		spec["subscribers"] = []any{fields{"uid": "other", "subscriberUri": "http://other/", "auth": "kept"}}
	}
	return &unstructured.Unstructured{Object: fields{
		"apiVersion": kafkaVersion.String(), "kind": "KafkaChannel",
		"metadata": fields{"namespace": key.Namespace, "name": "orders", "resourceVersion": "1"},
		"spec":     spec, "status": status,
	}}
}

func isReady() fields { return fields{"conditions": []any{fields{"type": "Ready", "status": "True"}}} }

func toKafka(s *messagingv1.Subscription) {
	s.Spec.Channel = duckv1.KReference{APIVersion: kafkaVersion.String(), Kind: "KafkaChannel", Name: "orders"}
}

// hosted returns a fixture with a host cluster.
type hosted struct {
	*fixture
	host *dynamicfake.FakeDynamicClient
}

func newHosted(t *testing.T, on []runtime.Object, objects ...runtime.Object) *hosted {
	t.Helper()
	client := dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), map[schema.GroupVersionResource]string{kafkaChannels: "KafkaChannelList"}, on...)
	// The fake server has no resource versions.
	client.PrependReactor("patch", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
		var patch unstructured.Unstructured
		if err := json.Unmarshal(action.(clienttesting.PatchAction).GetPatch(), &patch.Object); err != nil {
			return true, nil, err
		}
		name := action.(clienttesting.PatchAction).GetName()
		stored, err := client.Tracker().Get(kafkaChannels, key.Namespace, name)
		if err != nil {
			return true, nil, err
		}
		version := stored.(*unstructured.Unstructured).GetResourceVersion()
		if patch.GetResourceVersion() != version {
			return true, nil, apierrors.NewConflict(kafkaChannels.GroupResource(), name, errors.New("changed"))
		}
		_, obj, err := clienttesting.ObjectReaction(client.Tracker())(action)
		if err != nil {
			return true, nil, err
		}
		n, err := strconv.Atoi(version)
		if err != nil {
			return true, nil, err
		}
		written := obj.(*unstructured.Unstructured)
		written.SetResourceVersion(strconv.Itoa(n + 1))
		return true, written, client.Tracker().Update(kafkaChannels, written, key.Namespace)
	})
	mapper := meta.NewDefaultRESTMapper(nil)
	mapper.Add(kafkaVersion.WithKind("KafkaChannel"), meta.RESTScopeNamespace)
	host := &destination.Host{Client: client, Mapper: mapper, Clock: clocktesting.NewFakePassiveClock(controllertest.Now)}
	return &hosted{newFixture(t, host, objects...), client}
}

// unknown removes the channel's kind from the cached kinds of the cluster. The cluster answers requests for its kinds by a status
// and a document.
func (f *hosted) unknown(code int, document string) {
	f.Host.Mapper = meta.NewDefaultRESTMapper(nil)
	f.Host.Discovery = &restfake.RESTClient{
		NegotiatedSerializer: scheme.Codecs.WithoutConversion(),
		Client: restfake.CreateHTTPClient(func(*http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: code, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(strings.NewReader(document))}, nil
		}),
	}
}

// reconcile updates the informers after the reconciliation.
func (f *hosted) reconcile() []string {
	f.t.Helper()
	writes := f.fixture.reconcile()
	synctest.Wait()
	return writes
}

// says sets the status of the channel.
func (f *hosted) says(status fields) {
	f.t.Helper()
	obj := f.kafka()
	obj.Object["status"] = status
	if err := f.host.Tracker().Update(kafkaChannels, obj, key.Namespace); err != nil {
		f.t.Fatal(err)
	}
	synctest.Wait()
}

func (f *hosted) kafka() *unstructured.Unstructured {
	f.t.Helper()
	obj, err := f.host.Resource(kafkaChannels).Namespace(key.Namespace).Get(f.t.Context(), "orders", metav1.GetOptions{})
	if err != nil {
		f.t.Fatal(err)
	}
	return obj
}

func (f *hosted) subscribers() []any {
	f.t.Helper()
	listed, _, err := unstructured.NestedSlice(f.kafka().Object, "spec", "subscribers")
	if err != nil {
		f.t.Fatal(err)
	}
	return listed
}

// finish deletes the Subscription unless it has finalizers.
func (f *hosted) finish() {
	f.t.Helper()
	f.update(func(s *messagingv1.Subscription) { s.DeletionTimestamp = ptr.To(metav1.NewTime(controllertest.Now)) })
}

func (f *hosted) held() bool { return len(f.subscription().Finalizers) > 0 }

func entry(generation int64, url string) fields {
	return fields{"uid": "uid", "generation": generation, "subscriberUri": url}
}

// A Subscription is listed in a channel of another kind, besides other subscribers, and is ready when the channel reports both as ready
// (eventing Subscription Lifecycle).
func TestForeignChannel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		other := fields{"uid": "other", "subscriberUri": "http://other/", "auth": "kept"}
		f := newHosted(t, []runtime.Object{kafkaChannel(fields{}, fields{})}, subscription(toKafka))
		if diff := cmp.Diff([]string{"patch subscriptions", "update subscriptions/status"}, f.reconcile()); diff != "" {
			t.Errorf("writes (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff([]any{other, entry(1, "http://billing/")}, f.subscribers()); diff != "" {
			t.Errorf("subscribers (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff([]string{Finalizer}, f.subscription().Finalizers); diff != "" {
			t.Errorf("finalizers (-want +got):\n%s", diff)
		}
		notReady := `False ChannelNotReady KafkaChannel "default/orders" is not ready`
		f.expect(map[duckv1.ConditionType]string{duckv1.ConditionReady: notReady, channelReady: notReady, resolved: "True",
			added: "Unknown NotAdded The channel has not observed the latest change of the Subscription yet."})

		say := func(ready string, more fields) {
			t.Helper()
			status := isReady()
			state := fields{"uid": "uid", "ready": ready, "message": "No."}
			for k, v := range more {
				state[k] = v
			}
			status["subscribers"] = []any{fields{"uid": "other", "ready": "True"}, state}
			f.says(status)
			f.reconcile()
		}
		f.says(isReady())
		f.reconcile()
		f.expect(map[duckv1.ConditionType]string{channelReady: "True", added: "Unknown NotAdded The channel does not report the Subscription as ready yet."})
		say("True", fields{"observedGeneration": int64(1)})
		f.expect(map[duckv1.ConditionType]string{duckv1.ConditionReady: "True", added: "True"})
		say("False", nil)
		f.expect(map[duckv1.ConditionType]string{added: "False NotAdded The channel does not send events to the Subscription: No."})
		say("True", nil)
		f.expect(map[duckv1.ConditionType]string{duckv1.ConditionReady: "True", added: "True"})
		if writes := f.reconcile(); len(writes) > 0 {
			t.Errorf("writes at rest: %v", writes)
		}

		f.update(func(s *messagingv1.Subscription) { s.Spec.Subscriber.URI = "http://moved/" })
		f.reconcile()
		if diff := cmp.Diff([]any{other, entry(2, "http://moved/")}, f.subscribers()); diff != "" {
			t.Errorf("subscribers once it moved (-want +got):\n%s", diff)
		}
		f.expect(map[duckv1.ConditionType]string{added: "Unknown NotAdded The channel has not observed the latest change of the Subscription yet."})
		say("True", fields{"observedGeneration": int64(1)})
		f.expect(map[duckv1.ConditionType]string{duckv1.ConditionReady: "Unknown NotAdded The channel has not observed the latest change of the Subscription yet."})
		say("True", fields{"observedGeneration": int64(2)})
		f.expect(map[duckv1.ConditionType]string{duckv1.ConditionReady: "True"})

		f.finish()
		f.reconcile()
		if diff := cmp.Diff([]any{other}, f.subscribers()); diff != "" {
			t.Errorf("subscribers once it is gone (-want +got):\n%s", diff)
		}
		if f.held() {
			t.Error("the finalizer stays")
		}
		if len(f.consumers.consumers) > 0 {
			t.Errorf("consumers: %v", f.consumers.consumers)
		}
	})
}

// TestForeignRestored checks that a restored Subscription keeps its entry: a second entry would receive all events too.
func TestForeignRestored(t *testing.T) {
	const created = "00000000-0000-4000-8000-000000000001"
	synctest.Test(t, func(t *testing.T) {
		f := newHosted(t, []runtime.Object{kafkaChannel(fields{}, fields{})}, subscription(toKafka, func(s *messagingv1.Subscription) { s.UID = created }))
		f.reconcile()
		f.update(func(s *messagingv1.Subscription) { s.UID = origin.Restored(created, "0123456789") })
		f.reconcile()
		var uids []any
		for _, subscriber := range f.subscribers() {
			uids = append(uids, subscriber.(map[string]any)["uid"])
		}
		if diff := cmp.Diff([]any{"other", created}, uids); diff != "" {
			t.Errorf("UIDs of subscribers after the restore (-want +got):\n%s", diff)
		}
	})
}

// A foreign channel's delivery options are the default as a whole, with its dead letter sink (eventing Channel v1 spec).
func TestForeignDelivery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		status := isReady()
		status["deadLetterSinkUri"] = "http://dead/"
		f := newHosted(t, []runtime.Object{kafkaChannel(fields{"delivery": fields{"retry": int64(3), "deadLetterSink": fields{"uri": "http://other/"}}}, status)}, subscription(toKafka))
		f.reconcile()
		want := entry(1, "http://billing/")
		want["delivery"] = fields{"retry": int64(3), "deadLetterSink": fields{"uri": "http://dead/"}}
		if diff := cmp.Diff(want, f.subscribers()[1]); diff != "" {
			t.Errorf("entry (-want +got):\n%s", diff)
		}
		if got := f.subscription().Status.PhysicalSubscription.DeadLetterSinkURI; got != "http://dead/" {
			t.Errorf("dead letter sink is %q", got)
		}
	})
}

// With a missing channel, or an object that is not a channel, the Subscription is not ready, and nothing is written to the host
// (eventing Subscription Lifecycle).
func TestForeignFaults(t *testing.T) {
	now := metav1.NewTime(controllertest.Now)
	going := kafkaChannel(fields{}, isReady())
	going.SetDeletionTimestamp(&now)
	going.SetFinalizers([]string{"x"})
	for name, test := range map[string]struct {
		on     []runtime.Object
		change func(*messagingv1.Subscription)
		want   string
	}{
		"missing": {nil, toKafka, `False ChannelDoesNotExist messaging.example.com/v1 KafkaChannel "default/orders" does not exist`},
		"going":   {[]runtime.Object{going}, toKafka, `False ChannelDoesNotExist KafkaChannel "default/orders" does not exist`},
		"unknown kind": {nil, func(s *messagingv1.Subscription) {
			toKafka(s)
			s.Spec.Channel.Kind = "OtherChannel"
		}, `False ChannelDoesNotExist messaging.example.com/v1 OtherChannel "default/orders" does not exist: the cluster serves no such kind`},
		"no channel": {[]runtime.Object{kafkaChannel(fields{"subscribers": "many"}, isReady())}, toKafka, ""},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newHosted(t, test.on, subscription(test.change))
				if diff := cmp.Diff([]string{"update subscriptions/status"}, f.reconcile()); diff != "" {
					t.Errorf("writes (-want +got):\n%s", diff)
				}
				if test.want == "" {
					if got := f.subscription().Status.Conditions.Get(duckv1.ConditionReady); got.Status != "False" || got.Reason != ReasonNotChannelable {
						t.Errorf("Ready is %v", got)
					}
				} else {
					f.expect(map[duckv1.ConditionType]string{duckv1.ConditionReady: test.want, added: test.want, channelReady: test.want})
				}
				for _, action := range f.host.Actions() {
					if action.GetVerb() == "patch" {
						t.Error("the host was written to")
					}
				}
			})
		})
	}
	f := newFixture(t, nil, subscription(toKafka))
	f.reconcile()
	const want = `False ChannelDoesNotExist messaging.example.com/v1 KafkaChannel "default/orders" cannot be read: this server runs without a cluster`
	f.expect(map[duckv1.ConditionType]string{duckv1.ConditionReady: want})
}

// Without its addresses, a Subscription is not listed; if it was, it stays listed as it was (eventing Subscription
// Lifecycle).
func TestForeignUnresolved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newHosted(t, []runtime.Object{kafkaChannel(fields{}, isReady())}, subscription(toKafka, func(s *messagingv1.Subscription) { s.Spec.Subscriber = toBroker("b") }))
		f.reconcile()
		f.expect(map[duckv1.ConditionType]string{added: "Unknown ReferencesNotResolved The Subscription is added to the channel when its references are resolved."})
		if f.held() || len(f.subscribers()) != 1 {
			t.Errorf("held: %t, subscribers: %v", f.held(), f.subscribers())
		}
		f.put(brokerAt("b", "http://b/"))
		f.reconcile()
		f.delete("brokers", "b")
		f.reconcile()
		if diff := cmp.Diff(entry(1, "http://b/"), f.subscribers()[1]); diff != "" {
			t.Errorf("entry (-want +got):\n%s", diff)
		}
		if got := f.subscription().Status.Conditions.Get(duckv1.ConditionReady); got.Reason != "SubscriberNotFound" {
			t.Errorf("Ready is %v", got)
		}
	})
}

// Conflicting writes are retried with the new object; refused writes are reported.
func TestForeignWrites(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newHosted(t, []runtime.Object{kafkaChannel(fields{}, isReady())}, subscription(toKafka))
		conflicts := 0
		f.host.PrependReactor("patch", "*", func(clienttesting.Action) (bool, runtime.Object, error) {
			if conflicts++; conflicts > 1 {
				return false, nil, nil
			}
			obj := kafkaChannel(fields{"subscribers": []any{fields{"uid": "late"}}}, isReady())
			obj.SetResourceVersion("7")
			return false, nil, f.host.Tracker().Update(kafkaChannels, obj, key.Namespace)
		})
		f.reconcile()
		if diff := cmp.Diff([]any{fields{"uid": "late"}, entry(1, "http://billing/")}, f.subscribers()); diff != "" {
			t.Errorf("subscribers (-want +got):\n%s", diff)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		f := newHosted(t, []runtime.Object{kafkaChannel(fields{}, isReady())}, subscription(toKafka))
		refused := apierrors.NewForbidden(kafkaChannels.GroupResource(), "orders", errors.New("no rights"))
		f.host.PrependReactor("patch", "*", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, refused })
		if err := controllertest.Reconcile(t.Context(), f, key); !errors.Is(err, refused) {
			t.Errorf("got error %v, want %v", err, refused)
		}
		f.expect(map[duckv1.ConditionType]string{added: `False NotAdded write spec.subscribers of KafkaChannel "default/orders": ` + refused.Error()})
	})
}

// A deleted Subscription waits for its channel, unless the channel does not exist or the host does not respond for long (eventing
// Subscription Lifecycle).
func TestForeignDeletion(t *testing.T) {
	resource := kafkaChannels.GroupResource()
	terminating := apierrors.NewForbidden(resource, "orders", errors.New("namespace is being terminated"))
	terminating.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: corev1.NamespaceTerminatingCause}}
	forbidden := apierrors.NewForbidden(resource, "orders", errors.New("no rights"))
	for name, test := range map[string]struct {
		change func(f *hosted)
		// err is the host's response.
		err   error
		held  bool
		event bool
		// unlisted is true if the channel exists and must not list the Subscription.
		unlisted bool
	}{
		"channel gone": {change: func(f *hosted) {
			if err := f.host.Tracker().Delete(kafkaChannels, key.Namespace, "orders"); err != nil {
				f.t.Fatal(err)
			}
		}},
		"kind gone":          {change: func(f *hosted) { f.unknown(http.StatusNotFound, "") }},
		"kind not available": {change: func(f *hosted) { f.unknown(http.StatusServiceUnavailable, "") }, held: true},
		"another version": {change: func(f *hosted) {
			f.unknown(http.StatusOK, `{"name":"messaging.example.com","versions":[{"version":"v1"}],"resources":[{"name":"kafkachannels","kind":"KafkaChannel"}]}`)
		}, unlisted: true},
		"without a host":        {change: func(f *hosted) { f.Host = nil }},
		"gone meanwhile":        {err: apierrors.NewNotFound(resource, "orders")},
		"namespace terminating": {err: terminating},
		"no rights":             {err: forbidden, held: true},
		"no answer":             {err: apierrors.NewServerTimeout(resource, "patch", 1), held: true},
		"no response for long": {err: apierrors.NewServerTimeout(resource, "patch", 1), event: true, change: func(f *hosted) {
			f.Fixture.Clock.SetTime(controllertest.Now.Add(patience))
		}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newHosted(t, []runtime.Object{kafkaChannel(fields{}, isReady())}, subscription(toKafka))
				f.reconcile()
				f.Events()
				f.finish()
				if test.change != nil {
					test.change(f)
				}
				if test.err != nil {
					f.host.PrependReactor("patch", "*", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, test.err })
				}
				if err := controllertest.Reconcile(t.Context(), f, key); test.held != (err != nil) || test.err != nil && test.held && !errors.Is(err, test.err) {
					t.Errorf("got error %v", err)
				}
				if f.held() != test.held {
					t.Errorf("held: %t, want %t", f.held(), test.held)
				}
				if test.unlisted && len(f.subscribers()) != 1 {
					t.Errorf("the channel lists %v", f.subscribers())
				}
				if events := f.Events(); (len(events) > 0) != test.event {
					t.Errorf("events: %q", events)
				}
			})
		})
	}
}

// A Subscription to a Channel of another template is listed in the object that implements the Channel, and removed from it when it is deleted.
func TestBackingChannel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		parent := &messagingv1.Channel{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: "orders", UID: "channel"}}
		parent.Spec.ChannelTemplate = &messagingv1.ChannelTemplateSpec{TypeMeta: metav1.TypeMeta{APIVersion: kafkaVersion.String(), Kind: "KafkaChannel"}}
		f := newHosted(t, []runtime.Object{kafkaChannel(fields{}, isReady())}, parent, subscription())
		f.reconcile()
		if got := f.subscribers(); len(got) != 2 || got[1].(fields)["uid"] != string(subscription().UID) {
			t.Errorf("the backing channel lists %v", got)
		}
		if len(f.consumers.consumers) > 0 {
			t.Errorf("this server sends events to %v", f.consumers.consumers)
		}
		if err := f.unlist(t.Context(), subscription()); err != nil || len(f.subscribers()) != 1 {
			t.Errorf("the backing channel lists %v, %v", f.subscribers(), err)
		}
	})
}

// A replica that does not write follows the channel of another kind, and changes neither the channel nor the Subscription, also when the
// Subscription is deleted.
func TestForeignChannelFollowing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newHosted(t, []runtime.Object{kafkaChannel(fields{}, isReady())}, subscription(toKafka))
		follow := func() {
			t.Helper()
			f.SyncEventing()
			f.host.ClearActions()
			if _, err := f.Reconcile(t.Context(), reconciler.NewRequest(key, false)); err != nil {
				t.Error(err)
			}
			synctest.Wait()
			writes := f.Writes()
			for _, action := range f.host.Actions() {
				if action.GetVerb() == "patch" {
					writes = append(writes, "patch of the channel")
				}
			}
			if len(writes) > 0 {
				t.Errorf("writes are %v", writes)
			}
		}
		follow()
		f.reconcile()
		f.reconcile()
		f.finish()
		follow()
	})
}
