package channel

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	clienttesting "k8s.io/client-go/testing"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	messagingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/messaging/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/channelable"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/destination"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/internal/controllertest"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/reconciler"
)

var (
	kafkaVersion  = schema.GroupVersion{Group: "messaging.knative.dev", Version: "v1beta1"}
	kafkaChannels = kafkaVersion.WithResource("kafkachannels")
)

type fields = map[string]any

// newHost returns a cluster that serves KafkaChannels.
func newHost(objects ...runtime.Object) (*destination.Host, *dynamicfake.FakeDynamicClient) {
	client := dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), map[schema.GroupVersionResource]string{kafkaChannels: "KafkaChannelList"}, objects...)
	mapper := meta.NewDefaultRESTMapper(nil)
	mapper.Add(kafkaVersion.WithKind("KafkaChannel"), meta.RESTScopeNamespace)
	return &destination.Host{Client: client, Mapper: mapper, Clock: clocktesting.NewFakePassiveClock(controllertest.Now)}, client
}

// ofKafka sets the template of a Channel to KafkaChannel.
func ofKafka(c *messagingv1.Channel) {
	c.Spec.ChannelTemplate = &messagingv1.ChannelTemplateSpec{
		TypeMeta: metav1.TypeMeta{APIVersion: kafkaVersion.String(), Kind: "KafkaChannel"},
		Spec:     &runtime.RawExtension{Raw: []byte(`{"numPartitions":3,"delivery":{"retry":1}}`)},
	}
}

// A Channel of another template is implemented by an object of that kind, which it owns, and mirrors its status (eventing Channel
// Lifecycle, eventing Channel-3 and -4).
func TestBackingChannel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		host, client := newHost()
		f := newHosted(t, host, channelOf("", ofKafka, func(c *messagingv1.Channel) { c.Spec.Delivery = &duckv1.DeliverySpec{Retry: ptr.To[int32](5)} }))
		kafka := func() *unstructured.Unstructured {
			t.Helper()
			obj, err := client.Resource(kafkaChannels).Namespace(key.Namespace).Get(t.Context(), key.Name, metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			return obj
		}
		f.reconcile()
		synctest.Wait()
		created := kafka()
		if diff := cmp.Diff(fields{"numPartitions": int64(3), "delivery": fields{"retry": int64(5)}}, created.Object["spec"]); diff != "" {
			t.Errorf("spec of the backing channel (-want +got):\n%s", diff)
		}
		if !metav1.IsControlledBy(created, f.channel()) {
			t.Errorf("the backing channel has owners %v", created.GetOwnerReferences())
		}
		for condition, want := range map[duckv1.ConditionType]string{
			duckv1.ConditionReady:                           "Unknown BackingChannelNotReady The backing channel does not report whether it is ready.",
			messagingv1.ChannelConditionBackingChannelReady: "Unknown BackingChannelNotReady The backing channel does not report whether it is ready.",
			messagingv1.ChannelConditionAddressable:         "Unknown BackingChannelNotReady The backing channel has no address yet.",
		} {
			if got := f.condition(condition); got != want {
				t.Errorf("%s is %q, want %q", condition, got, want)
			}
		}
		if diff := cmp.Diff(&duckv1.KReference{APIVersion: kafkaVersion.String(), Kind: "KafkaChannel", Namespace: key.Namespace, Name: key.Name}, f.channel().Status.Channel); diff != "" {
			t.Errorf("status.channel (-want +got):\n%s", diff)
		}
		if writes := f.reconcile(); len(writes) > 0 {
			t.Errorf("writes at rest: %v", writes)
		}

		created.Object["status"] = fields{
			"address": fields{"url": "http://kafka/"}, "conditions": []any{fields{"type": "Ready", "status": "True"}},
			"subscribers": []any{fields{"uid": "s", "ready": "True"}}, "deadLetterSinkUri": "http://dead/",
		}
		if err := client.Tracker().Update(kafkaChannels, created, key.Namespace); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		f.reconcile()
		status := f.channel().Status
		if got := f.condition(duckv1.ConditionReady); got != "True" {
			t.Errorf("Ready is %q", got)
		}
		if status.Address.GetURL() != "http://kafka/" || len(status.Subscribers) != 1 || status.Subscribers[0].UID != "s" || status.DeadLetterSinkURI != "http://dead/" {
			t.Errorf("status is %+v", status)
		}

		changed := f.channel()
		changed.Spec.Delivery.Retry = ptr.To[int32](7)
		if _, err := f.Fixture.Client.MessagingV1().Channels(key.Namespace).Update(t.Context(), changed, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		f.SyncEventing()
		f.reconcile()
		if retry, _, _ := unstructured.NestedInt64(kafka().Object, "spec", "delivery", "retry"); retry != 7 {
			t.Errorf("spec.delivery.retry of the backing channel is %d, want 7", retry)
		}
	})
}

// The conditions of a Channel of another template report the reason why it is not implemented.
func TestNoBackingChannel(t *testing.T) {
	theirs := &unstructured.Unstructured{Object: fields{
		"apiVersion": kafkaVersion.String(), "kind": "KafkaChannel", "metadata": fields{"namespace": key.Namespace, "name": key.Name},
	}}
	forbidden := apierrors.NewForbidden(kafkaChannels.GroupResource(), key.Name, errors.New("no rights"))
	for name, tt := range map[string]struct {
		change func(*messagingv1.Channel)
		there  []runtime.Object
		create error
		want   string
		fails  bool
	}{
		"unknown kind": {
			change: func(c *messagingv1.Channel) { c.Spec.ChannelTemplate.Kind = "KafakChannel" },
			want:   "False ChannelTemplateKindNotFound The cluster serves no messaging.knative.dev/v1beta1, Kind=KafakChannel. Install",
		},
		"Channel": {
			change: func(c *messagingv1.Channel) {
				c.Spec.ChannelTemplate.APIVersion, c.Spec.ChannelTemplate.Kind = "messaging.knative.dev/v1", channelable.Kind.Kind
			},
			want: "False ChannelTemplateKindNotChannelable messaging.knative.dev/v1, Kind=Channel cannot implement the Channel.",
		},
		"not owned": {there: []runtime.Object{theirs}, want: "False NotOwned messaging.knative.dev/v1beta1, Kind=KafkaChannel \"orders\" exists"},
		"forbidden": {create: forbidden, want: "False BackingChannelFailed The backing channel cannot be written: kafkachannels", fails: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				host, client := newHost(tt.there...)
				if tt.create != nil {
					client.PrependReactor("create", "*", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, tt.create })
				}
				changes := []func(*messagingv1.Channel){ofKafka}
				if tt.change != nil {
					changes = append(changes, tt.change)
				}
				f := newHosted(t, host, channelOf("", changes...))
				if err := controllertest.Reconcile(t.Context(), f, key); (err != nil) != tt.fails {
					t.Errorf("reconciling: %v", err)
				}
				if got := f.condition(duckv1.ConditionReady); !strings.HasPrefix(got, tt.want) {
					t.Errorf("Ready is %q, want %q", got, tt.want)
				}
			})
		})
	}
}

// A replica that does not write neither creates nor changes a backing channel.
func TestBackingChannelFollowing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		host, client := newHost()
		f := newHosted(t, host, channelOf("", ofKafka, func(c *messagingv1.Channel) { c.Spec.Delivery = &duckv1.DeliverySpec{Retry: ptr.To[int32](5)} }))
		follow := func() {
			t.Helper()
			f.SyncEventing()
			client.ClearActions()
			if _, err := f.Reconcile(t.Context(), reconciler.NewRequest(key, false)); err != nil {
				t.Error(err)
			}
			synctest.Wait()
			writes := f.Writes()
			for _, action := range client.Actions() {
				if verb := action.GetVerb(); verb == "create" || verb == "patch" {
					writes = append(writes, verb+" of the backing channel")
				}
			}
			if len(writes) > 0 {
				t.Errorf("writes are %v", writes)
			}
		}
		follow()
		f.reconcile()
		synctest.Wait()
		channel := f.channel()
		channel.Spec.Delivery.Retry = ptr.To[int32](7)
		if err := f.Fixture.Client.Tracker().Update(messagingv1.SchemeGroupVersion.WithResource("channels"), channel, key.Namespace); err != nil {
			t.Fatal(err)
		}
		follow()
	})
}
