package kubernetes

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"

	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/settings"
	"github.com/knative-apiserver/knative-apiserver/pkg/workload"
	"github.com/knative-apiserver/knative-apiserver/pkg/workload/kubernetes/images"
	"github.com/knative-apiserver/knative-apiserver/pkg/workload/podspec"
)

var key = types.NamespacedName{Namespace: "shop", Name: "cart-00001"}

// newRevision returns a stored Revision.
func newRevision(change ...func(*servingv1.Revision)) *servingv1.Revision {
	r := &servingv1.Revision{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: key.Namespace, Name: key.Name, UID: "uid-1",
			Labels: map[string]string{
				servingv1.ServiceLabelKey: "cart", servingv1.ConfigurationLabelKey: "cart",
				servingv1.RoutingStateLabelKey: servingv1.RoutingStateActive,
			},
		},
		Spec: servingv1.RevisionSpec{
			PodSpec:        corev1.PodSpec{Containers: []corev1.Container{{Name: "user-container", Image: "registry.example/cart:v1"}}},
			TimeoutSeconds: ptr.To[int64](60),
		},
	}
	r.Spec.SetDefaults()
	for _, c := range change {
		c(r)
	}
	return r
}

// resolver is a Resolver that resolves all images except those with errors.
type resolver struct {
	mu    sync.Mutex
	asked []string
	image images.Image
	errs  map[string]error
}

func (r *resolver) Resolve(_ context.Context, _ images.Pull, image string) (images.Image, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asked = append(r.asked, image)
	found := r.image
	if found.Reference == "" {
		found.Reference = image + "@digest"
	}
	return found, r.errs[image]
}

// harness is a Runtime with a fake host, for use in a synctest bubble.
type harness struct {
	*Runtime
	t        *testing.T
	client   *fake.Clientset
	resolver *resolver

	mu sync.Mutex
	// states are the States published to subscribers.
	states []workload.State
}

func newHarness(t *testing.T, change func(*Options), objects ...kruntime.Object) *harness {
	t.Helper()
	h := &harness{t: t, client: fake.NewClientset(objects...), resolver: &resolver{image: images.Image{User: "65532", Known: true}}}
	current := settings.Default("example.com")
	o := Options{Client: h.client, Images: h.resolver, Settings: func() *settings.Settings { return &current }}
	if change != nil {
		change(&o)
	}
	var err error
	if h.Runtime, err = New(o); err != nil {
		t.Fatal(err)
	}
	h.Subscribe(func(_ types.NamespacedName, state workload.State) {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.states = append(h.states, state)
	})
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(func() {
		cancel()
		synctest.Wait()
	})
	if err := h.Start(ctx); err != nil {
		t.Fatal(err)
	}
	return h
}

// apply applies a Revision until no work remains, as the controller does.
func (h *harness) apply(ctx context.Context, revision *servingv1.Revision) {
	h.t.Helper()
	h.applyAs(ctx, revision, true)
}

// applyAs applies a Revision on the replica that writes or on another one.
func (h *harness) applyAs(ctx context.Context, revision *servingv1.Revision, writes bool) {
	h.t.Helper()
	for range 3 {
		if err := h.Apply(ctx, revision, writes); err != nil {
			h.t.Fatalf("Apply: %v", err)
		}
		synctest.Wait()
	}
}

func (h *harness) state() workload.State {
	h.t.Helper()
	synctest.Wait()
	state, ok := h.State(key)
	if !ok {
		h.t.Fatal("the revision is unknown")
	}
	return state
}

func (h *harness) deployment() *appsv1.Deployment {
	h.t.Helper()
	d, err := h.client.AppsV1().Deployments(key.Namespace).Get(h.t.Context(), DeploymentName(key.Name), metav1.GetOptions{})
	if err != nil {
		h.t.Fatal(err)
	}
	return d
}

// writes returns all requests to the host except reads.
func (h *harness) writes() []string {
	var all []string
	for _, action := range h.client.Actions() {
		switch action.GetVerb() {
		case "get", "list", "watch":
		default:
			what := action.GetVerb() + " " + action.GetResource().Resource
			if patch, ok := action.(clienttesting.PatchAction); ok {
				what += " " + string(patch.GetPatch())
			}
			all = append(all, what)
		}
	}
	return all
}

// put creates or updates a Pod on the host.
func (h *harness) put(pod *corev1.Pod) {
	h.t.Helper()
	pods := h.client.CoreV1().Pods(pod.Namespace)
	if _, err := pods.Create(h.t.Context(), pod, metav1.CreateOptions{}); err != nil {
		if _, err = pods.Update(h.t.Context(), pod, metav1.UpdateOptions{}); err != nil {
			h.t.Fatal(err)
		}
	}
	synctest.Wait()
}

// newBackendPod returns a Pod of the Revision with a running container.
func newBackendPod(name string, change ...func(*corev1.Pod)) *corev1.Pod {
	now := metav1.NewTime(time.Now())
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: key.Namespace, Name: name, UID: types.UID(name), CreationTimestamp: now,
			Labels: map[string]string{podspec.RevisionLabelKey: key.Name, podspec.RevisionUIDLabelKey: "uid-1"},
		},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{
			Name: "user-container", Ports: []corev1.ContainerPort{{ContainerPort: 8080}},
		}}},
		Status: corev1.PodStatus{
			Phase: corev1.PodRunning, PodIP: "10.1.2.3",
			Conditions: []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionTrue}},
			ContainerStatuses: []corev1.ContainerStatus{{
				Name: "user-container", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: now}},
			}},
		},
	}
	for _, c := range change {
		c(p)
	}
	return p
}

func isReady(p *corev1.Pod) {
	p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionTrue})
}

func isDeleted(p *corev1.Pod) {
	now := metav1.NewTime(time.Now())
	p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &now, ptr.To[int64](60)
}

// published returns the number of published States.
func (h *harness) published() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.states)
}
