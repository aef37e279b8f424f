package broker

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	eventingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/internal/controllertest"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/reconciler"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/streams"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
	"github.com/knative-apiserver/knative-apiserver/pkg/settings"
)

// fakeArchives has the archives that were set.
type fakeArchives struct {
	set  map[types.UID]*eventing.Archive
	kept int
	err  error
}

func (f *fakeArchives) Set(_ eventing.Key, uid types.UID, config *eventing.Archive) error {
	f.set[uid] = config
	return f.err
}

func (f *fakeArchives) Keep(context.Context, eventing.Key, types.UID) error {
	f.kept++
	return f.err
}

func (f *fakeArchives) Remove(eventing.Key) { clear(f.set) }

func configured(namespace, name string) func(*eventingv1.Broker) {
	return func(b *eventingv1.Broker) {
		b.Spec.Config = &duckv1.KReference{APIVersion: "v1", Kind: "ConfigMap", Namespace: namespace, Name: name}
	}
}

func configMap(namespace, name, retention, size string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Data: map[string]string{settings.KeyArchiveRetention: retention, settings.KeyArchiveMaxBytes: size}}
}

// archiving starts a Reconciler that reads ConfigMaps.
func archiving(t *testing.T, broker *eventingv1.Broker, configs ...runtime.Object) (*fixture, *fakeArchives, *fake.Clientset) {
	t.Helper()
	f := start(t, broker)
	archives, client := &fakeArchives{set: map[types.UID]*eventing.Archive{}}, fake.NewClientset(configs...)
	f.Archiving = &Archiving{Archives: archives, ConfigMaps: client.CoreV1(), SystemNamespace: "knative-system", MaxRetention: 48 * time.Hour, MaxBytes: 1 << 30}
	return f, archives, client
}

// TestArchive sets the archive that the ConfigMap of a Broker configures. Ready does not depend on it.
func TestArchive(t *testing.T) {
	day := &eventing.Archive{Retention: 24 * time.Hour, MaxBytes: 512 << 20}
	for name, test := range map[string]struct {
		broker    func(*eventingv1.Broker)
		config    *corev1.ConfigMap
		want      *eventing.Archive
		kept      int
		condition string
		message   string
	}{
		"own namespace":     {configured("default", "a"), configMap("default", "a", "24h", "512Mi"), day, 0, "True", ""},
		"system namespace":  {configured("knative-system", "a"), configMap("knative-system", "a", "24h", "512Mi"), day, 0, "True", ""},
		"another namespace": {configured("other", "a"), configMap("other", "a", "24h", "512Mi"), nil, 0, "", ""},
		"missing":           {configured("default", "b"), configMap("default", "a", "24h", "512Mi"), nil, 0, "", ""},
		"no config":         {func(*eventingv1.Broker) {}, configMap("default", "a", "24h", "512Mi"), nil, 0, "", ""},
		"another kind": {func(b *eventingv1.Broker) {
			b.Spec.Config = &duckv1.KReference{APIVersion: "v1", Kind: "Secret", Namespace: "default", Name: "a"}
		}, configMap("default", "a", "24h", "512Mi"), nil, 0, "", ""},
		"disabled": {configured("default", "a"), configMap("default", "a", "0", "512Mi"), nil, 0, "", ""},
		"invalid":  {configured("default", "a"), configMap("default", "a", "x", "512Mi"), nil, 1, "False ConfigInvalid", `ConfigMap in namespace "default": key 'archive-retention' of a must be 0 or a duration of at least 1m, such as 24h, not "x"`},
		"long":     {configured("default", "a"), configMap("default", "a", "100h", "1Gi"), &eventing.Archive{Retention: 100 * time.Hour, MaxBytes: 1 << 30}, 0, "True ArchiveLimited", "archive-retention 100h0m0s exceeds the operator's limit: events are deleted after 48h0m0s."},
		"large":    {configured("default", "a"), configMap("default", "a", "1h", "2Gi"), &eventing.Archive{Retention: time.Hour, MaxBytes: 2 << 30}, 0, "True ArchiveLimited", "archive-max-bytes 2Gi exceeds the operator's limit: the archives of the namespace have at most 1Gi."},
		"partitioned": {func(b *eventingv1.Broker) {
			configured("default", "a")(b)
			b.Annotations[eventingv1.BrokerPartitionsAnnotationKey] = "3"
		}, configMap("default", "a", "24h", "512Mi"), nil, 0, "False Partitioned", "The Broker has several partitions; only Brokers with one are archived."},
		"no longer": {func(b *eventingv1.Broker) {
			configured("default", "a")(b)
			b.Status.Conditions = duckv1.Conditions{{Type: eventingv1.BrokerConditionArchiveReady, Status: corev1.ConditionTrue}}
		}, configMap("default", "a", "0", "1Gi"), nil, 0, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			f, archives, _ := archiving(t, newBroker(test.broker), test.config)
			status := f.status(t)
			if diff := cmp.Diff(test.want, archives.set["one"]); diff != "" || archives.kept != test.kept {
				t.Errorf("kept %d times, archive (-want +got):\n%s", archives.kept, diff)
			}
			conditions := brief(status.Conditions)
			if conditions["Ready"] != "True" || conditions[string(eventingv1.BrokerConditionArchiveReady)] != test.condition {
				t.Errorf("conditions %v, want %q", conditions, test.condition)
			}
			if c := status.Conditions.Get(eventingv1.BrokerConditionArchiveReady); c != nil && (!strings.HasPrefix(c.Message, test.message) || c.Severity != duckv1.ConditionSeverityWarning) {
				t.Errorf("condition %+v, want message %q", c, test.message)
			}
			f.status(t)
			if writes := f.Writes(); len(writes) > 0 {
				t.Errorf("writes at rest: %v", writes)
			}
		})
	}
}

// TestArchiveUnavailable keeps the archive while the ConfigMap cannot be read, and says so. The ConfigMap is read again without a change.
func TestArchiveUnavailable(t *testing.T) {
	f, archives, client := archiving(t, newBroker(configured("default", "a")), configMap("default", "a", "24h", "512Mi"))
	reconcile := func() (reconciler.Result, string) {
		t.Helper()
		f.SyncEventing()
		result, err := f.Reconcile(t.Context(), reconciler.NewRequest(key, true))
		if err != nil {
			t.Fatal(err)
		}
		return result, brief(f.stored(t).Status.Conditions)[string(eventingv1.BrokerConditionArchiveReady)]
	}
	failing := true
	client.PrependReactor("get", "configmaps", func(clienttesting.Action) (bool, runtime.Object, error) {
		return failing, nil, apierrors.NewForbidden(schema.GroupResource{Resource: "configmaps"}, "a", errors.New("no"))
	})
	if result, condition := reconcile(); result.RequeueAfter != retryInterval || condition != "Unknown ConfigUnavailable" || archives.kept != 1 || len(archives.set) > 0 {
		t.Errorf("result %+v, condition %q, kept %d times, set %v", result, condition, archives.kept, archives.set)
	}
	if len(f.streams.set) != 1 {
		t.Error("the Broker has no stream")
	}
	failing = false
	if result, condition := reconcile(); result.RequeueAfter != pollInterval || condition != "True" || archives.set["one"] == nil {
		t.Errorf("result %+v, condition %q, set %v", result, condition, archives.set)
	}
	if err := f.Fixture.Client.EventingV1().Brokers(key.Namespace).Delete(t.Context(), key.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	f.SyncEventing()
	if err := controllertest.Reconcile(t.Context(), f, key); err != nil || len(archives.set) > 0 {
		t.Errorf("of a deleted Broker: %v: %v", archives.set, err)
	}
}

// TestArchiveFirst makes no stream before it is known whether its events are archived.
func TestArchiveFirst(t *testing.T) {
	f, archives, _ := archiving(t, newBroker())
	archives.err = errors.New("no log")
	f.SyncEventing()
	if err := controllertest.Reconcile(t.Context(), f, key); !errors.Is(err, archives.err) || len(f.streams.set) > 0 {
		t.Errorf("streams %v: %v", f.streams.set, err)
	}
}

// TestArchiveDisabled reports that the operator disabled archives.
func TestArchiveDisabled(t *testing.T) {
	f, _, _ := archiving(t, newBroker(configured("default", "a")), configMap("default", "a", "24h", "512Mi"))
	f.Archiving.Archives = nil
	if got := brief(f.status(t).Conditions); got[string(eventingv1.BrokerConditionArchiveReady)] != "False ArchiveDisabled" || got["Ready"] != "True" || f.streams.set[streams.BrokerKey(key)].UID != "one" {
		t.Errorf("conditions %v", got)
	}
	if err := f.Fixture.Client.EventingV1().Brokers(key.Namespace).Delete(t.Context(), key.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	f.SyncEventing()
	if err := controllertest.Reconcile(t.Context(), f, key); err != nil {
		t.Error(err)
	}
}
