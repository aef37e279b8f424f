package restore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/storage/value"
	"k8s.io/apiserver/pkg/storage/value/encrypt/secretbox"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"github.com/knative-apiserver/knative-apiserver/pkg/etcd"
	"github.com/knative-apiserver/knative-apiserver/pkg/origin"
)

const (
	namespace = "knative-system"
	first     = "0000000001"
	second    = "0000000002"
)

// uid returns the n-th UID of the tests.
func uid(n int) types.UID { return types.UID(fmt.Sprintf("00000000-0000-4000-8000-%012d", n)) }

// fixture is a restored etcd and a host cluster.
type fixture struct {
	Options
	host *fake.Clientset
}

func newFixture(t *testing.T, host ...runtime.Object) *fixture {
	t.Helper()
	server, err := etcd.Start(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Stop)
	client, err := clientv3.New(clientv3.Config{Endpoints: server.Endpoints(), Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	resource := func(group, plural string, transformer value.Transformer) Resource {
		r := schema.GroupResource{Group: group, Resource: plural}
		return Resource{GroupResource: r, Prefix: "/prefix/" + group + "/" + plural + "/", Transformer: transformer}
	}
	f := &fixture{host: fake.NewClientset(host...)}
	f.Options = Options{
		Etcd: client, Prefix: "/prefix", Host: f.host, Namespace: namespace, Logger: klog.Background(),
		Resources: []Resource{
			resource("serving.knative.dev", "services", nil),
			resource("serving.knative.dev", "revisions", secretbox.NewSecretboxTransformer([32]byte{1, 2, 3})),
			resource("messaging.knative.dev", "channels", nil),
		},
	}
	return f
}

// request names a restore in the ConfigMap.
func (f *fixture) request(t *testing.T, id string) {
	t.Helper()
	configMaps := f.host.CoreV1().ConfigMaps(namespace)
	request := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: ConfigMapName}, Data: map[string]string{IDKey: id}}
	if _, err := configMaps.Create(t.Context(), request, metav1.CreateOptions{}); apierrors.IsAlreadyExists(err) {
		_, err = configMaps.Update(t.Context(), request, metav1.UpdateOptions{})
		if err != nil {
			t.Fatal(err)
		}
	} else if err != nil {
		t.Fatal(err)
	}
}

// put stores an object of the i-th resource.
func (f *fixture) put(t *testing.T, i int, name, content string) {
	t.Helper()
	key := f.Resources[i].Prefix + "default/" + name
	data := []byte(content)
	if transformer := f.Resources[i].Transformer; transformer != nil {
		var err error
		if data, err = transformer.TransformToStorage(t.Context(), data, value.DefaultContext(key)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := f.Etcd.Put(t.Context(), key, string(data)); err != nil {
		t.Fatal(err)
	}
}

// content returns all stored objects by key, in JSON.
func (f *fixture) content(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := (&run{Options: &f.Options}).each(t.Context(), func(_ context.Context, o *object) error {
		data, err := json.Marshal(o.content)
		all[strings.TrimPrefix(string(o.stored.Key), f.Prefix+"/")] = string(data)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func (f *fixture) complete(t *testing.T) {
	t.Helper()
	if err := Complete(t.Context(), f.Options); err != nil {
		t.Fatal(err)
	}
}

// putFamily stores a Service, its Revision and a Channel that lists a Subscription.
func (f *fixture) putFamily(t *testing.T) {
	t.Helper()
	for i, object := range []string{service, revision, channel} {
		f.put(t, i, "hello", object)
	}
}

const (
	// The template and the annotation name UIDs, which are the user's.
	service = `{"metadata":{"annotations":{"mine":"00000000-0000-4000-8000-000000000001"},"generation":12345678901234567,` +
		`"ownerReferences":[{"apiVersion":"v1","kind":"ConfigMap","name":"theirs","uid":"00000000-0000-4000-8000-000000000099"}],` +
		`"uid":"00000000-0000-4000-8000-000000000001"},` +
		`"spec":{"template":{"env":"00000000-0000-4000-8000-000000000001"}}}`
	revision = `{"metadata":{"labels":{"mine":"00000000-0000-4000-8000-000000000001",` +
		`"serving.knative.dev/serviceUID":"00000000-0000-4000-8000-000000000001"},` +
		`"managedFields":[{"fieldsV1":{"f:metadata":{"f:ownerReferences":{"k:{\"uid\":\"00000000-0000-4000-8000-000000000001\"}":{}}}}}],` +
		`"ownerReferences":[{"apiVersion":"serving.knative.dev/v1","kind":"Service","name":"hello","uid":"00000000-0000-4000-8000-000000000001"}],` +
		`"uid":"00000000-0000-4000-8000-000000000002"}}`
	channel = `{"metadata":{"uid":"00000000-0000-4000-8000-000000000003"},` +
		`"spec":{"subscribers":[{"uid":"00000000-0000-4000-8000-000000000001"},{"uid":"00000000-0000-4000-8000-000000000099"}]},` +
		`"status":{"subscribers":[{"uid":"00000000-0000-4000-8000-000000000001"}]}}`
)

// restoredFamily returns the objects of putFamily after a restore.
func restoredFamily(id string) map[string]string {
	const uid = `00000000-0000-4000-8000-00000000000`
	replacer := func(content, mark string) string { return strings.ReplaceAll(content, mark, mark+"-r"+id) }
	own := strings.NewReplacer(
		`"uid":"`+uid+`1"`, `"uid":"`+uid+`1-r`+id+`"`,
		`"uid":"`+uid+`2"`, `"uid":"`+uid+`2-r`+id+`"`,
		`"uid":"`+uid+`3"`, `"uid":"`+uid+`3-r`+id+`"`,
		`\"uid\":\"`+uid+`1\"`, `\"uid\":\"`+uid+`1-r`+id+`\"`,
	)
	return map[string]string{
		"serving.knative.dev/services/default/hello":   own.Replace(service),
		"serving.knative.dev/revisions/default/hello":  replacer(own.Replace(revision), `"serving.knative.dev/serviceUID":"`+uid+`1`),
		"messaging.knative.dev/channels/default/hello": own.Replace(channel),
	}
}

// owned returns metadata of a host object.
func owned(name string, owners ...metav1.OwnerReference) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name), OwnerReferences: owners}
}

func ownedBy(apiVersion, kind string, uid types.UID) metav1.OwnerReference {
	return metav1.OwnerReference{
		APIVersion: apiVersion, Kind: kind, Name: "hello", UID: uid, Controller: ptr.To(true), BlockOwnerDeletion: ptr.To(true),
	}
}

// TestComplete checks that all objects get new UIDs, including all references to them, once for each restore. Foreign UIDs and UIDs in user
// content do not change.
func TestComplete(t *testing.T) {
	f := newFixture(t,
		&appsv1.Deployment{ObjectMeta: owned("hello", ownedBy("serving.knative.dev/v1", "Revision", uid(2)))},
		&appsv1.Deployment{ObjectMeta: owned("gone", ownedBy("serving.knative.dev/v1", "Revision", uid(98)))},
		&appsv1.Deployment{ObjectMeta: owned("theirs", ownedBy("apps.example.com/v1", "App", uid(2)))},
		&corev1.Service{ObjectMeta: owned("hello", ownedBy("serving.knative.dev/v1", "Service", uid(1)), ownedBy("v1", "ConfigMap", uid(99)))},
		&corev1.Service{ObjectMeta: owned("alone")},
	)
	f.putFamily(t)
	before := f.content(t)
	f.complete(t)
	if diff := cmp.Diff(before, f.content(t)); diff != "" {
		t.Errorf("without a restore (-before +after):\n%s", diff)
	}
	for _, id := range []string{first, second} {
		f.request(t, id)
		f.complete(t)
		if diff := cmp.Diff(restoredFamily(id), f.content(t)); diff != "" {
			t.Errorf("restore %s (-want +got):\n%s", id, diff)
		}
		want := map[string][]types.UID{
			"Deployment hello": {origin.Restored(uid(2), id)}, "Deployment gone": {uid(98)}, "Deployment theirs": {uid(2)},
			"Service hello": {origin.Restored(uid(1), id), uid(99)}, "Service alone": nil,
		}
		if diff := cmp.Diff(want, f.owners(t)); diff != "" {
			t.Errorf("owners after restore %s (-want +got):\n%s", id, diff)
		}
	}
	// A restart of the server does not change objects, including objects created since the restore.
	f.put(t, 0, "later", `{"metadata":{"uid":"`+string(uid(4))+`"}}`)
	after := f.content(t)
	f.complete(t)
	if diff := cmp.Diff(after, f.content(t)); diff != "" {
		t.Errorf("after a restart (-before +after):\n%s", diff)
	}
}

// owners returns the UIDs of the owners of host objects.
func (f *fixture) owners(t *testing.T) map[string][]types.UID {
	t.Helper()
	all := map[string][]types.UID{}
	add := func(kind string, object metav1.Object) {
		key := kind + " " + object.GetName()
		all[key] = nil
		for _, owner := range object.GetOwnerReferences() {
			all[key] = append(all[key], owner.UID)
		}
	}
	deployments, err := f.host.AppsV1().Deployments("").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range deployments.Items {
		add("Deployment", &deployments.Items[i])
	}
	services, err := f.host.CoreV1().Services("").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range services.Items {
		add("Service", &services.Items[i])
	}
	return all
}

// TestManyObjects restores more objects than a page or a transaction holds, by several replicas at once.
func TestManyObjects(t *testing.T) {
	f := newFixture(t)
	const count = 2*maxBatchObjects + 1
	for i := range count {
		f.put(t, 0, fmt.Sprint("s", i), fmt.Sprintf(`{"metadata":{"uid":%q,"ownerReferences":[{"uid":%q}]}}`, uid(i), uid(count-1-i)))
	}
	f.request(t, first)
	var replicas sync.WaitGroup
	for range 3 {
		replicas.Go(func() {
			if err := Complete(t.Context(), f.Options); err != nil {
				t.Error(err)
			}
		})
	}
	replicas.Wait()
	content := f.content(t)
	for i := range count {
		key := fmt.Sprintf("serving.knative.dev/services/default/s%d", i)
		want := fmt.Sprintf(`{"metadata":{"ownerReferences":[{"uid":%q}],"uid":%q}}`, origin.Restored(uid(count-1-i), first), origin.Restored(uid(i), first))
		if got := content[key]; got != want {
			t.Errorf("object %d is %s, want %s", i, got, want)
		}
	}
}

// TestInterrupted checks that a restore continues that stopped before the owner references of host objects were rewritten, and that it
// tolerates rejections by policies of the host.
func TestInterrupted(t *testing.T) {
	f := newFixture(t,
		&appsv1.Deployment{ObjectMeta: owned("hello", ownedBy("serving.knative.dev/v1", "Revision", uid(2)))},
		&corev1.Service{ObjectMeta: owned("hello", ownedBy("serving.knative.dev/v1", "Service", uid(1)))},
		&corev1.Service{ObjectMeta: owned("refused", ownedBy("serving.knative.dev/v1", "Service", uid(1)))},
	)
	f.putFamily(t)
	f.request(t, first)
	failures := 1
	f.host.PrependReactor("patch", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
		patch := action.(clienttesting.PatchAction)
		switch {
		case patch.GetResource().Resource == "deployments" && failures > 0:
			failures--
			return true, nil, errors.New("connection refused")
		case patch.GetName() == "refused",
			patch.GetResource().Resource == "services" && !strings.Contains(string(patch.GetPatch()), `"blockOwnerDeletion":false`):
			return true, nil, apierrors.NewForbidden(corev1.Resource("services"), patch.GetName(), errors.New("no RESTMapping"))
		}
		return false, nil, nil
	})
	f.complete(t)
	if diff := cmp.Diff(restoredFamily(first), f.content(t)); diff != "" {
		t.Errorf("objects (-want +got):\n%s", diff)
	}
	want := map[string][]types.UID{
		"Deployment hello": {origin.Restored(uid(2), first)}, "Service hello": {origin.Restored(uid(1), first)}, "Service refused": {uid(1)},
	}
	if diff := cmp.Diff(want, f.owners(t)); diff != "" {
		t.Errorf("owners (-want +got):\n%s", diff)
	}
}

// TestOvertaken checks that nothing is written once another replica completed the restore, because objects may have been created since.
func TestOvertaken(t *testing.T) {
	f := newFixture(t)
	f.putFamily(t)
	f.request(t, first)
	slow := &run{Options: &f.Options, id: first, origins: sets.New[types.UID]()}
	f.complete(t)
	f.put(t, 0, "later", `{"metadata":{"uid":"`+string(uid(4))+`"}}`)
	before := f.content(t)
	if err := slow.each(t.Context(), slow.observe); err != nil {
		t.Fatal(err)
	}
	if err := slow.rewriteStorage(t.Context()); !errors.Is(err, errOvertaken) {
		t.Errorf("error %v, want %v", err, errOvertaken)
	}
	if diff := cmp.Diff(before, f.content(t)); diff != "" {
		t.Errorf("objects (-before +after):\n%s", diff)
	}
}

// TestInvalidRequest checks that the error names the ConfigMap.
func TestInvalidRequest(t *testing.T) {
	f := newFixture(t)
	f.request(t, "Yesterday")
	err := Complete(t.Context(), f.Options)
	if err == nil || !strings.Contains(err.Error(), `ConfigMap "knative-system/knative-apiserver-restore"`) {
		t.Errorf("error %v, want one that names the ConfigMap", err)
	}
}
