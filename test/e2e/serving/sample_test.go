package serving

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// sample returns the Service of artifacts/samples. It runs the image of the sample application, because the original image
// (python3) cannot be downloaded.
func (s *space) sample(t *testing.T) string {
	t.Helper()
	root, err := harness.Root()
	if err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(filepath.Join(root, "artifacts", "samples", "hello.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var object map[string]any
	if err := yaml.Unmarshal(content, &object); err != nil {
		t.Fatal(err)
	}
	containers, _, err := unstructured.NestedSlice(object, "spec", "template", "spec", "containers")
	if err != nil || len(containers) != 1 {
		t.Fatalf("the sample must have one container, but has %v, %v", containers, err)
	}
	only := containers[0].(map[string]any)
	only["image"] = s.image
	delete(only, "command")
	delete(only, "args")
	if err := unstructured.SetNestedSlice(object, containers, "spec", "template", "spec", "containers"); err != nil {
		t.Fatal(err)
	}
	if content, err = yaml.Marshal(object); err != nil {
		t.Fatal(err)
	}
	return string(content)
}

// TestSample uses only kubectl: apply, wait, the URL, a response, the Revision, a change, and delete, after which the host has
// no object left.
func TestSample(t *testing.T) {
	t.Parallel()
	s := newSpace(t, "sample", nil)
	manifest := s.sample(t)
	s.applyManifest(t, manifest)
	s.kubectl.Must(t, "", "wait", "ksvc/hello", "--for=condition=Ready", "--timeout="+patience.String())
	url := s.kubectl.Must(t, "", "get", "ksvc", "hello", "-o", "jsonpath={.status.url}")
	if got := s.get(t, url); got != "Hello World!\n" {
		t.Errorf("GET %s answers %q", url, got)
	}
	s.applyManifest(t, strings.ReplaceAll(manifest, "World", "Cluster"))
	s.kubectl.Must(t, "", "wait", "ksvc/hello", "--for=condition=Ready", "--timeout="+patience.String())
	if got := s.get(t, url); got != "Hello Cluster!\n" {
		t.Errorf("after a change %s answers %q", url, got)
	}
	if got := s.kubectl.Must(t, "", "get", "rev", "-o", "name"); got != "revision.serving.knative.dev/hello-00001\nrevision.serving.knative.dev/hello-00002\n" {
		t.Errorf("Revisions are %q", got)
	}
	s.kubectl.Must(t, "", "delete", "ksvc", "hello")
	for _, revision := range []string{"hello-00001", "hello-00002"} {
		deleted(t, s.Admin.Knative.ServingV1().Revisions(s.namespace), revision)
		deleted(t, s.Host.AppsV1().Deployments(s.namespace), revision+"-deployment")
		s.untilPods(t, revision, 0)
	}
	deleted(t, s.Host.CoreV1().Services(s.namespace), "hello")
}

// TestObjects covers the objects of a Service on both servers and their owner references, by which the host's garbage collector
// deletes them.
func TestObjects(t *testing.T) {
	t.Parallel()
	s := newSpace(t, "objects", nil)
	service := s.deploy(t, s.app("hello", traffic(tagged("now", servingv1.TrafficTarget{LatestRevision: new(true), Percent: new(int64(100))}))))
	knative := s.Admin.Knative.ServingV1()
	route, configuration := read(t, knative.Routes(s.namespace), "hello"), read(t, knative.Configurations(s.namespace), "hello")
	revision := s.revision(t, service)
	deployment := read(t, s.Host.AppsV1().Deployments(s.namespace), revision.Name+"-deployment")
	for _, owned := range []struct{ object, owner metav1.Object }{
		{route, service}, {configuration, service}, {revision, configuration}, {deployment, revision},
		{read(t, s.Host.CoreV1().Services(s.namespace), "hello"), route},
		{read(t, s.Host.CoreV1().Services(s.namespace), "now-hello"), route},
	} {
		if !metav1.IsControlledBy(owned.object, owned.owner) {
			t.Errorf("%T %s has the owners %+v, want %s", owned.object, owned.object.GetName(), owned.object.GetOwnerReferences(), owned.owner.GetName())
		}
	}
	for what, containers := range map[string][]corev1.Container{
		"the Deployment": deployment.Spec.Template.Spec.Containers,
		"the Pod":        s.untilPods(t, revision.Name, 1)[0].Spec.Containers,
	} {
		if len(containers) != 1 || containers[0].Name != "user-container" {
			t.Errorf("%s has containers %+v, want only the user's", what, containers)
		}
	}
	services, err := s.Host.CoreV1().Services(s.namespace).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if len(services.Items) != 2 {
		t.Errorf("got %d core Services, want one for the Route and one for its tag", len(services.Items))
	}
}

// TestDigest checks that a tag is resolved when the Revision is created, in the status and in the Pod (serving 7.2).
func TestDigest(t *testing.T) {
	t.Parallel()
	s := newSpace(t, "digest", nil)
	reference, err := name.ParseReference(s.image, name.Insecure)
	if err != nil {
		t.Fatal(err)
	}
	head, err := remote.Head(reference, remote.WithContext(t.Context()))
	if err != nil {
		t.Fatal(err)
	}
	want := reference.Context().Digest(head.Digest.String()).String()
	revision := s.revision(t, s.deploy(t, s.app("hello")))
	if got := revision.Status.ContainerStatuses; len(got) != 1 || got[0].Name != "user-container" || got[0].ImageDigest != want {
		t.Errorf("status.containerStatuses is %+v, want the digest %s", got, want)
	}
	if got := revision.Spec.Containers[0].Image; got != s.image {
		t.Errorf("the Revision's spec has the image %s, want the template's", got)
	}
	if got := s.untilPods(t, revision.Name, 1)[0].Spec.Containers[0].Image; got != want {
		t.Errorf("the Pod runs %s, want %s", got, want)
	}
}

// TestEnvironment covers the variables of the runtime contract (serving 10.5), and the port of the template.
func TestEnvironment(t *testing.T) {
	t.Parallel()
	s := newSpace(t, "env", nil)
	service := s.deploy(t, s.app("hello", env("GREETING", "from $(K_REVISION)"), container(func(c *corev1.Container) {
		c.Ports = []corev1.ContainerPort{{ContainerPort: 9000}}
	})))
	got := decoded[infoReport](t, s.get(t, service.Status.URL+"/info")).Env
	for key, want := range map[string]string{
		"PORT": "9000", "K_SERVICE": "hello", "K_CONFIGURATION": "hello", "K_REVISION": "hello-00001", "GREETING": "from hello-00001",
		"HOSTNAME": s.untilPods(t, "hello-00001", 1)[0].Name,
	} {
		if got[key] != want {
			t.Errorf("%s is %q, want %q", key, got[key], want)
		}
	}
	for key := range got {
		// enableServiceLinks is off by default.
		if strings.HasSuffix(key, "_SERVICE_HOST") && key != "KUBERNETES_SERVICE_HOST" {
			t.Errorf("the variable %s is set", key)
		}
	}
}
