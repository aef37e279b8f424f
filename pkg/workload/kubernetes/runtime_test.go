package kubernetes

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kruntime "k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"

	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/origin"
	"github.com/knative-apiserver/knative-apiserver/pkg/workload"
	"github.com/knative-apiserver/knative-apiserver/pkg/workload/kubernetes/images"
	"github.com/knative-apiserver/knative-apiserver/pkg/workload/podspec"
)

func TestApplyCreatesOneDeployment(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, nil)
		h.resolver.image.Warning = "its tag was not resolved"
		h.apply(t.Context(), newRevision())
		if diff := cmp.Diff([]string{"create deployments"}, h.writes()); diff != "" {
			t.Errorf("writes (-want +got):\n%s", diff)
		}
		got := h.state()
		want := workload.State{
			UID: "uid-1", Desired: 1, Warning: "its tag was not resolved",
			Containers:     []servingv1.ContainerStatus{{Name: "user-container", ImageDigest: "registry.example/cart:v1@digest"}},
			InitContainers: []servingv1.ContainerStatus{},
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("State (-want +got):\n%s", diff)
		}
	})
}

func TestApplyOfFollowersWritesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, nil)
		h.applyAs(t.Context(), newRevision(), false)
		if writes := h.writes(); len(writes) > 0 || len(h.resolver.asked) > 0 {
			t.Errorf("writes %q, resolved %q, want none", writes, h.resolver.asked)
		}
		if got := h.state(); got.UID != "uid-1" {
			t.Errorf("State %+v, want the UID of the Revision", got)
		}
		// The replica becomes the leader.
		h.apply(t.Context(), newRevision())
		h.deployment()
	})
}

func TestApplyKeepsDigestsOfTheStatus(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, nil)
		h.apply(t.Context(), newRevision(func(r *servingv1.Revision) {
			r.Status.ContainerStatuses = []servingv1.ContainerStatus{{Name: "user-container", ImageDigest: "registry.example/cart@old"}}
		}))
		if diff := cmp.Diff([]string{"registry.example/cart@old"}, h.resolver.asked); diff != "" {
			t.Errorf("asked about (-want +got):\n%s", diff)
		}
	})
}

func TestApplyOfRunningRevisionResolvesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		running := newDeployment(newRevision(), plan{replicas: 3})
		running.UID = "deployment"
		h := newHarness(t, nil, running)
		h.apply(t.Context(), newRevision())
		if writes := h.writes(); len(writes) > 0 || len(h.resolver.asked) > 0 {
			t.Errorf("writes %q, resolved %q, want none", writes, h.resolver.asked)
		}
		if got := h.state(); got.Desired != 3 {
			t.Errorf("Desired %d, want 3", got.Desired)
		}
	})
}

func TestApplyFailures(t *testing.T) {
	foreign := func(owners ...metav1.OwnerReference) *appsv1.Deployment {
		return &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{
			Namespace: key.Namespace, Name: DeploymentName(key.Name), UID: "other", OwnerReferences: owners,
		}}
	}
	tests := map[string]struct {
		objects []kruntime.Object
		err     error // of create
		image   error
		want    *workload.Failure
		wantErr string
	}{
		"a Deployment of another owner": {
			objects: []kruntime.Object{foreign()},
			want:    &workload.Failure{Resources: true, Reason: "NotOwned", Message: `There is an existing Deployment "cart-00001-deployment" that does not belong to the Revision: delete it, or use another name.`},
		},
		"the registry has no such image": {
			image: &images.MissingError{Image: "registry.example/cart:v1", Err: errors.New("manifest unknown")},
			want:  &workload.Failure{Reason: "ContainerMissing", Message: `Unable to fetch image "registry.example/cart:v1": manifest unknown`},
		},
		"a webhook denies it": {
			err:  apierrors.NewForbidden(appsv1.Resource("deployments"), "cart-00001-deployment", errors.New("denied by policy")),
			want: &workload.Failure{Resources: true, Reason: "FailedCreate", Message: `deployments.apps "cart-00001-deployment" is forbidden: denied by policy`},
		},
		"the host has an internal error": {
			err:     apierrors.NewInternalError(errors.New("etcd")),
			wantErr: "Internal error occurred: etcd",
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHarness(t, nil, test.objects...)
				h.resolver.errs = map[string]error{"registry.example/cart:v1": test.image}
				if test.err != nil {
					h.client.PrependReactor("create", "deployments", func(clienttesting.Action) (bool, kruntime.Object, error) {
						return true, nil, test.err
					})
				}
				err := h.Apply(t.Context(), newRevision(), true)
				synctest.Wait()
				if err == nil {
					err = h.Apply(t.Context(), newRevision(), true)
				}
				if test.wantErr != "" {
					if err == nil || !strings.Contains(err.Error(), test.wantErr) {
						t.Fatalf("Apply: %v, want %q", err, test.wantErr)
					}
					return
				}
				if err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(test.want, h.state().Failure); diff != "" {
					t.Fatalf("Failure (-want +got):\n%s", diff)
				}
				// The creation is retried after a delay, and the failure holds until an attempt succeeds.
				before := len(h.client.Actions())
				h.apply(t.Context(), newRevision())
				if after := len(h.client.Actions()); after != before {
					t.Errorf("%d more calls right after a failure", after-before)
				}
				h.resolver.errs = nil
				h.client.ReactionChain = h.client.ReactionChain[boolToInt(test.err != nil):]
				if len(test.objects) > 0 {
					if err := h.client.AppsV1().Deployments(key.Namespace).Delete(t.Context(), DeploymentName(key.Name), metav1.DeleteOptions{}); err != nil {
						t.Fatal(err)
					}
				}
				published := h.published()
				<-time.After(firstRetry)
				synctest.Wait()
				if h.published() == published {
					t.Fatal("subscribers were not notified to apply the revision again")
				}
				h.apply(t.Context(), newRevision())
				h.deployment()
				if failure := h.state().Failure; failure != nil {
					t.Errorf("Failure %+v, want none", failure)
				}
			})
		})
	}
}

func boolToInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

func TestApplyDeletesTheDeploymentOfAnEarlierRevision(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		earlier := newDeployment(newRevision(func(r *servingv1.Revision) { r.UID = "uid-0" }), plan{replicas: 1})
		earlier.UID = "earlier"
		h := newHarness(t, nil, earlier)
		h.apply(t.Context(), newRevision())
		if diff := cmp.Diff([]string{"create deployments", "delete deployments"}, h.writes()); diff != "" {
			t.Fatalf("writes (-want +got):\n%s", diff)
		}
		<-time.After(firstRetry)
		h.apply(t.Context(), newRevision())
		if got := h.deployment(); got.OwnerReferences[0].UID != "uid-1" {
			t.Errorf("owner %q, want uid-1", got.OwnerReferences[0].UID)
		}
	})
}

func TestDeletedDeploymentComesBackAtItsScale(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		running := newDeployment(newRevision(), plan{replicas: 4})
		running.UID = "deployment"
		h := newHarness(t, nil, running)
		h.apply(t.Context(), newRevision())
		if err := h.client.AppsV1().Deployments(key.Namespace).Delete(t.Context(), running.Name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		h.apply(t.Context(), newRevision())
		if got := *h.deployment().Spec.Replicas; got != 4 {
			t.Errorf("%d replicas, want 4", got)
		}
	})
}

func TestScale(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, nil)
		var patches []string
		h.client.PrependReactor("patch", "deployments", func(a clienttesting.Action) (bool, kruntime.Object, error) {
			patches = append(patches, a.GetSubresource()+" "+string(a.(clienttesting.PatchAction).GetPatch()))
			return true, &appsv1.Deployment{}, nil
		})
		scale := func(n int32) {
			t.Helper()
			if err := h.Scale(t.Context(), key, n); err != nil {
				t.Fatal(err)
			}
		}
		scale(2) // unknown
		if err := h.Apply(t.Context(), newRevision(), true); err != nil {
			t.Fatal(err)
		}
		scale(2) // does not exist yet
		h.apply(t.Context(), newRevision())
		if got := *h.deployment().Spec.Replicas; got != 2 {
			t.Fatalf("created with %d replicas, want 2", got)
		}
		scale(2)
		scale(3)
		scale(3)
		scale(2)
		want := []string{`scale {"spec":{"replicas":3}}`, `scale {"spec":{"replicas":2}}`}
		if diff := cmp.Diff(want, patches); diff != "" {
			t.Errorf("patches (-want +got):\n%s", diff)
		}
	})
}

func TestActivate(t *testing.T) {
	tests := map[string]struct {
		replicas int32
		want     int32
		writes   int
	}{
		"nothing runs":   {replicas: 0, want: 1, writes: 1},
		"something runs": {replicas: 2, want: 2, writes: 0},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				running := newDeployment(newRevision(), plan{replicas: test.replicas})
				running.UID = "deployment"
				h := newHarness(t, nil, running)
				h.applyAs(t.Context(), newRevision(), false)
				for range 3 {
					if err := h.Activate(t.Context(), key); err != nil {
						t.Fatal(err)
					}
					synctest.Wait()
				}
				if got := *h.deployment().Spec.Replicas; got != test.want {
					t.Errorf("%d replicas, want %d", got, test.want)
				}
				if writes := h.writes(); len(writes) != test.writes {
					t.Errorf("writes %q, want %d", writes, test.writes)
				}
			})
		})
	}
}

func TestActivateAfterAnotherClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		running := newDeployment(newRevision(), plan{replicas: 0})
		running.UID = "deployment"
		h := newHarness(t, nil, running)
		h.apply(t.Context(), newRevision())
		h.client.PrependReactor("patch", "deployments", func(clienttesting.Action) (bool, kruntime.Object, error) {
			return true, nil, apierrors.NewGenericServerResponse(422, "patch", appsv1.Resource("deployments"), running.Name, "testing path failed", 0, true)
		})
		if err := h.Activate(t.Context(), key); err != nil {
			t.Errorf("Activate: %v, want no error", err)
		}
	})
}

func TestRemove(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, nil)
		h.apply(t.Context(), newRevision())
		h.put(newBackendPod("a", isReady))
		if err := h.Remove(t.Context(), key, "other", true); err != nil {
			t.Fatal(err)
		}
		h.deployment()
		if err := h.Remove(t.Context(), key, "uid-1", true); err != nil {
			t.Fatal(err)
		}
		if !slices.Contains(h.writes(), "delete deployments") {
			t.Errorf("writes %q, want the Deployment deleted", h.writes())
		}
		if got := h.state(); len(got.Instances) != 1 {
			t.Errorf("State %+v, want the remaining backend", got)
		}
		if err := h.client.CoreV1().Pods(key.Namespace).Delete(t.Context(), "a", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if state, ok := h.State(key); ok {
			t.Errorf("State %+v, want none", state)
		}
		h.mu.Lock()
		defer h.mu.Unlock()
		if last := h.states[len(h.states)-1]; last.UID != "" {
			t.Errorf("subscribers received %+v last, want the zero State", last)
		}
	})
}

// TestRemoveOfFollowersWritesNothing checks that only the replica that writes deletes the Deployment.
func TestRemoveOfFollowersWritesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, nil)
		h.apply(t.Context(), newRevision())
		if err := h.Remove(t.Context(), key, "uid-1", false); err != nil {
			t.Fatal(err)
		}
		if slices.Contains(h.writes(), "delete deployments") {
			t.Errorf("writes %q, want the Deployment kept", h.writes())
		}
	})
}

// TestRestored checks that a restored Revision keeps its Pods, which have the label of its original UID.
func TestRestored(t *testing.T) {
	const created = "00000000-0000-4000-8000-000000000001"
	synctest.Test(t, func(t *testing.T) {
		before := newRevision(func(r *servingv1.Revision) { r.UID = created })
		after := newRevision(func(r *servingv1.Revision) { r.UID = origin.Restored(created, "0123456789") })
		running := newDeployment(before, plan{replicas: 1})
		running.UID = "deployment"
		// pkg/restore leaves the Deployment in this state.
		running.OwnerReferences[0].UID = after.UID
		h := newHarness(t, nil, running)
		h.apply(t.Context(), after)
		h.put(newBackendPod("a", isReady, func(p *corev1.Pod) { p.Labels[podspec.RevisionUIDLabelKey] = created }))
		if got := h.state(); got.UID != after.UID || got.Ready != 1 || got.Failure != nil {
			t.Errorf("state %+v, want the Pod that ran before the restore", got)
		}
		if diff := cmp.Diff(running.Spec, newDeployment(after, plan{replicas: 1}).Spec); diff != "" {
			t.Errorf("Deployment before and after the restore (-before +after):\n%s", diff)
		}
	})
}

func TestInstances(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		running := newDeployment(newRevision(), plan{replicas: 3})
		running.UID = "deployment"
		h := newHarness(t, nil, running)
		h.apply(t.Context(), newRevision())
		older := func(p *corev1.Pod) { p.CreationTimestamp.Time = p.CreationTimestamp.Add(-time.Hour) }
		at := func(ip string) func(*corev1.Pod) { return func(p *corev1.Pod) { p.Status.PodIP = ip } }
		h.put(newBackendPod("a", at("10.0.0.1"), isReady))
		h.put(newBackendPod("b", at("10.0.0.2"), isReady, older))
		h.put(newBackendPod("c", at("10.0.0.3"), func(p *corev1.Pod) { p.Status.ContainerStatuses[0].State = corev1.ContainerState{} }))
		h.put(newBackendPod("d", at("10.0.0.4"), isReady, func(p *corev1.Pod) { p.Labels[podspec.RevisionUIDLabelKey] = "uid-0" }))
		got := h.state()
		want := []workload.Instance{{Name: "b", Address: "10.0.0.2:8080"}, {Name: "a", Address: "10.0.0.1:8080"}}
		if diff := cmp.Diff(want, got.Instances); diff != "" || got.Ready != 2 {
			t.Fatalf("%d ready, backends (-want +got):\n%s", got.Ready, diff)
		}
		h.put(newBackendPod("b", at("10.0.0.2"), older, isDeleted))
		got = h.state()
		want[0].Draining = true
		if diff := cmp.Diff(want, got.Instances); diff != "" || got.Ready != 1 {
			t.Fatalf("%d ready, backends (-want +got):\n%s", got.Ready, diff)
		}
		h.put(newBackendPod("b", at("10.0.0.2"), older, isDeleted, func(p *corev1.Pod) {
			p.Status.ContainerStatuses[0].State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}}
		}))
		if diff := cmp.Diff(want[1:], h.state().Instances); diff != "" {
			t.Errorf("backends once the container has ended (-want +got):\n%s", diff)
		}
		h.put(newBackendPod("a", at("10.0.0.1"), isReady, func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }))
		if got := h.state(); got.Ready != 0 {
			t.Errorf("%d ready, want none once the Pod was evicted", got.Ready)
		}
	})
}

func TestDesiredFollowsTheDeployment(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, nil)
		h.apply(t.Context(), newRevision())
		d := h.deployment()
		d.Spec.Replicas = ptr.To[int32](7)
		if _, err := h.client.AppsV1().Deployments(key.Namespace).Update(t.Context(), d, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		if got := h.state(); got.Desired != 7 {
			t.Errorf("Desired %d, want 7", got.Desired)
		}
	})
}
