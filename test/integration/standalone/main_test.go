// Package standalone tests the built server without a cluster, by its API only.
package standalone

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"github.com/knative-apiserver/knative-apiserver/pkg/apiserver"
	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// server is shared by all tests that do not start their own; each test uses its own namespaces.
var server *harness.Standalone

var (
	// admin is the administrator of server.
	admin *harness.Clients
	// controllers is the user of --controllers-user.
	controllers *harness.Clients
)

// controllersUser may write status, unlike the administrator.
const controllersUser = "test-controllers"

func TestMain(m *testing.M) {
	harness.Main(m, func(dir string) (*harness.Standalone, error) {
		if err := asControllers(dir, makeControllersObjects); err != nil {
			return nil, fmt.Errorf("storing objects that only controllers may create: %w", err)
		}
		return harness.StartAPI(dir, "--controllers-user="+controllersUser)
	}, func(s *harness.Standalone) (err error) {
		server = s
		if admin, err = harness.ClientsOf(s.Kubeconfig); err != nil {
			return err
		}
		controllers, err = admin.Impersonating(controllersUser, "system:masters")
		return err
	})
}

// asControllers runs a server on dir inside this process with the controllers' identity, which no client of the built server
// can have.
func asControllers(dir string, work func(context.Context, *harness.Clients) error) error {
	klog.SetLogger(logr.Discard())
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	options := apiserver.NewStandaloneOptions()
	options.DataDir, options.SecurePort, options.BindHost = dir, 0, net.IPv4(127, 0, 0, 1)
	session := &controllersSession{work: work, end: cancel, outcome: errors.New("the server was never ready")}
	return errors.Join(options.RunServer(ctx, io.Discard, apiserver.Dependencies{Components: session}, nil), session.outcome)
}

// controllersSession does some work with the identity of the controllers, and ends the server.
type controllersSession struct {
	work    func(context.Context, *harness.Clients) error
	end     func()
	outcome error
}

// Start implements apiserver.Components.
func (c *controllersSession) Start(ctx context.Context, s *apiserver.Server) error {
	defer c.end()
	var clients *harness.Clients
	if clients, c.outcome = harness.NewClients(s.ControllersConfig()); c.outcome == nil {
		c.outcome = c.work(ctx, clients)
	}
	return nil
}

// Ready implements apiserver.Components.
func (c *controllersSession) Ready() error { return nil }

const (
	// controllersNamespace holds the objects that only controllers may create.
	controllersNamespace = "controllers"
	// revisions is the number of Revisions for tests to claim, revision-0 and so on.
	revisions = 300
	// completeRevision returns a Revision as a Configuration creates it.
	completeRevision = "hello-00001"
	// subscribedChannel returns a Channel with one subscriber.
	subscribedChannel = "subscribed"
)

func makeControllersObjects(ctx context.Context, c *harness.Clients) error {
	for i := range revisions {
		revision := harness.KindOf("Revision").Object(controllersNamespace, fmt.Sprintf("revision-%d", i))
		if err := create(ctx, c, revision); err != nil {
			return err
		}
	}
	revision := harness.KindOf("Revision").Object(controllersNamespace, completeRevision)
	revision.SetLabels(map[string]string{"serving.knative.dev/configuration": "hello", "serving.knative.dev/configurationGeneration": "1"})
	revision.SetOwnerReferences([]metav1.OwnerReference{{
		APIVersion: "serving.knative.dev/v1", Kind: "Configuration", Name: "hello", UID: "11111111-1111-1111-1111-111111111111", Controller: ptr.To(true),
	}})
	if err := create(ctx, c, revision); err != nil {
		return err
	}
	channel := harness.KindOf("Channel").Object(controllersNamespace, subscribedChannel)
	set(channel, []any{map[string]any{"uid": "1", "subscriberUri": "http://sink.example.com/"}}, "spec", "subscribers")
	return create(ctx, c, channel)
}

// create stores an object and its Namespace, which writes of the controllers do not create.
func create(ctx context.Context, c *harness.Clients, obj *unstructured.Unstructured) error {
	namespace := &unstructured.Unstructured{Object: object{"apiVersion": "v1", "kind": "Namespace", "metadata": object{"name": obj.GetNamespace()}}}
	_, err := c.Dynamic.Resource(corev1.SchemeGroupVersion.WithResource("namespaces")).Create(ctx, namespace, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	_, err = c.Dynamic.Resource(harness.KindOf(obj.GetKind()).GVR()).Namespace(obj.GetNamespace()).Create(ctx, obj, metav1.CreateOptions{})
	return err
}

var (
	nextNamespace atomic.Int64
	nextRevision  atomic.Int64
)

// namespace returns a namespace that no other test uses.
func namespace(t testing.TB) string {
	name := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
			return r
		}
		return -1
	}, strings.ToLower(t.Name()))
	return fmt.Sprintf("t%d-%.40s", nextNamespace.Add(1), name)
}

// stored returns a stored object of kind k: a new one in its own namespace, or a Revision that no other test has claimed.
func stored(t testing.TB, k harness.Kind, changes ...func(*unstructured.Unstructured)) *unstructured.Unstructured {
	t.Helper()
	if k.Kind == "Revision" {
		i := nextRevision.Add(1) - 1
		if i >= revisions {
			t.Fatal("the tests need more Revisions")
		}
		return get(t, k, controllersNamespace, fmt.Sprintf("revision-%d", i))
	}
	obj := k.Object(namespace(t), "a")
	for _, change := range changes {
		change(obj)
	}
	return admin.Do(t, harness.Request{Method: "POST", Path: k.Collection(obj.GetNamespace()), Body: obj}).Object(t)
}

// get reads an object that must exist.
func get(t testing.TB, k harness.Kind, namespace, name string) *unstructured.Unstructured {
	t.Helper()
	return admin.Do(t, harness.Request{Method: "GET", Path: k.Path(namespace, name)}).Object(t)
}

// reread reads the current state of an object.
func reread(t testing.TB, obj *unstructured.Unstructured) *unstructured.Unstructured {
	t.Helper()
	return get(t, harness.KindOf(obj.GetKind()), obj.GetNamespace(), obj.GetName())
}

// set changes a field of an object.
func set(obj *unstructured.Unstructured, value any, fields ...string) {
	if err := unstructured.SetNestedField(obj.Object, value, fields...); err != nil {
		panic(err)
	}
}

// field returns a field of an object, nil if it is not set.
func field(obj *unstructured.Unstructured, fields ...string) any {
	value, _, err := unstructured.NestedFieldNoCopy(obj.Object, fields...)
	if err != nil {
		return nil
	}
	return value
}

// eachKind runs a test for every kind.
func eachKind(t *testing.T, test func(t *testing.T, k harness.Kind)) {
	t.Helper()
	for _, k := range harness.Kinds() {
		t.Run(k.Kind, func(t *testing.T) { test(t, k) })
	}
}

// eachUserKind runs a test for every kind that users create.
func eachUserKind(t *testing.T, test func(t *testing.T, k harness.Kind)) {
	t.Helper()
	for _, k := range harness.Kinds() {
		if k.Kind != "Revision" {
			t.Run(k.Kind, func(t *testing.T) { test(t, k) })
		}
	}
}
