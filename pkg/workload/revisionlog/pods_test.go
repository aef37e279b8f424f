package revisionlog

import (
	"context"
	"errors"
	"io"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
)

func newRevision(containers ...string) *servingv1.Revision {
	r := &servingv1.Revision{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "hello-1", UID: "uid"}}
	for _, name := range containers {
		r.Spec.Containers = append(r.Spec.Containers, corev1.Container{Name: name})
	}
	return r
}

// newPod returns a Pod of a Revision with an age in seconds. runs are pairs of a container's name and the ID of its run.
func newPod(name, revision string, age int64, runs ...string) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: "default", Name: name, UID: types.UID(name), Labels: map[string]string{revisionUIDLabelKey: revision}, CreationTimestamp: metav1.Unix(1000-age, 0),
	}}
	for run := range slices.Chunk(runs, 2) {
		status := corev1.ContainerStatus{Name: run[0], ContainerID: run[1]}
		if run[1] == "" {
			status.State.Waiting = &corev1.ContainerStateWaiting{}
		} else {
			status.State.Terminated = &corev1.ContainerStateTerminated{}
		}
		pod.Status.ContainerStatuses = append(pod.Status.ContainerStatuses, status)
	}
	return pod
}

// TestPods reads the logs of a Revision's Pods, oldest first, of containers that have run.
func TestPods(t *testing.T) {
	client := fake.NewClientset(
		newPod("young", "uid", 1, "main", "m2", "side", "s2"),
		newPod("old", "uid", 9, "main", "m1", "side", "s1"),
		newPod("starting", "uid", 0, "main", "", "side", ""),
		newPod("other", "another", 5, "main", "m3"),
	)
	for _, tt := range []struct {
		name     string
		revision *servingv1.Revision
		options  servingv1.RevisionLogOptions
		want     string
	}{
		{"one container", newRevision("main"), servingv1.RevisionLogOptions{}, "[old] fake logs\n[young] fake logs\n"},
		{"several containers", newRevision("main", "side"), servingv1.RevisionLogOptions{},
			"[old main] fake logs\n[old side] fake logs\n[young main] fake logs\n[young side] fake logs\n"},
		{"one of several", newRevision("main", "side"), servingv1.RevisionLogOptions{Container: "side"}, "[old] fake logs\n[young] fake logs\n"},
		{"no Pods", func() *servingv1.Revision { r := newRevision("main"); r.UID = "idle"; return r }(), servingv1.RevisionLogOptions{}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			stream, err := Open(t.Context(), &Pods{Client: client}, tt.revision, &tt.options)
			if err != nil {
				t.Fatal(err)
			}
			defer stream.Close()
			got, err := io.ReadAll(stream)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, string(got)); diff != "" {
				t.Errorf("log (-want +got):\n%s", diff)
			}
		})
	}
}

// TestPodsForbidden checks that Open fails before any line is sent.
func TestPodsForbidden(t *testing.T) {
	client := fake.NewClientset()
	client.PrependReactor("list", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(corev1.Resource("pods"), "", errors.New("no"))
	})
	_, err := Open(t.Context(), &Pods{Client: client}, newRevision("main"), &servingv1.RevisionLogOptions{})
	if !apierrors.IsForbidden(err) {
		t.Errorf("got %v, want Forbidden", err)
	}
}

// TestPodsFollow checks that the logs of new Pods and restarted containers are copied, each run once.
func TestPodsFollow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		client := fake.NewClientset(newPod("first", "uid", 9, "main", "m1"))
		var mu sync.Mutex
		var lines []string
		ended := make(chan error, 1)
		go func() {
			ended <- (&Pods{Client: client}).Copy(ctx, newRevision("main"), &servingv1.RevisionLogOptions{Follow: true}, func(line Line) error {
				mu.Lock()
				defer mu.Unlock()
				lines = append(lines, line.Instance+" "+string(line.Text))
				return nil
			})
		}()
		expect := func(what string, want ...string) {
			t.Helper()
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			if diff := cmp.Diff(want, lines); diff != "" {
				t.Errorf("%s (-want +got):\n%s", what, diff)
			}
			lines = nil
		}
		pods := client.CoreV1().Pods("default")
		expect("at first", "first fake logs")
		if _, err := pods.Create(ctx, newPod("second", "uid", 0, "main", ""), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		expect("another Pod")
		for _, step := range []struct {
			pod  *corev1.Pod
			want []string
		}{
			{newPod("second", "uid", 0, "main", "m2"), []string{"second fake logs"}},
			{newPod("second", "uid", 0, "main", "m2"), nil},
			{newPod("second", "uid", 0, "main", "m3"), []string{"second fake logs"}},
		} {
			if _, err := pods.Update(ctx, step.pod, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
			expect("run "+step.pod.Status.ContainerStatuses[0].ContainerID, step.want...)
		}
		stop()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("ended with %v", err)
		}
	})
}

// TestLate checks that reading fails until the Source is set.
func TestLate(t *testing.T) {
	var late Late
	options := &servingv1.RevisionLogOptions{}
	if _, err := Open(t.Context(), &late, newRevision("main"), options); !errors.Is(err, ErrNoSource) {
		t.Errorf("got %v, want %v", err, ErrNoSource)
	}
	late.Set(&Pods{Client: fake.NewClientset()})
	stream, err := Open(t.Context(), &late, newRevision("main"), options)
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Close(); err != nil {
		t.Error(err)
	}
}

// TestRequestRate checks that the requests to the host are limited per namespace.
func TestRequestRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pods := &Pods{}
		start := time.Now()
		for range requestsAtOnce + 2*requestsPerSecond {
			if err := pods.wait(t.Context(), "flood"); err != nil {
				t.Fatal(err)
			}
		}
		if took := time.Since(start).Round(time.Second / 10); took != 2*time.Second {
			t.Errorf("the requests take %v", took)
		}
		start = time.Now()
		if err := pods.wait(t.Context(), "calm"); err != nil || time.Since(start) > 0 {
			t.Errorf("another namespace waits %v, %v", time.Since(start), err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := pods.wait(ctx, "flood"); !errors.Is(err, context.Canceled) {
			t.Errorf("a canceled context: %v", err)
		}
	})
}
