// Package noloss tests that no request fails while Pods of a Service terminate for any reason: a rollout, the autoscaler, a
// user who deletes or evicts them, a drained node. The tests run under a steady load through the gateway, with long requests in
// flight.
package noloss

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

const (
	// name is the name of the Service in the namespace of each test.
	name = "steady"
	// patience is the timeout of every wait: Pods start slowly if many tests share few cores.
	patience = 3 * time.Minute
)

func TestMain(m *testing.M) { os.Exit(m.Run()) }

var openNode = sync.OnceValues(harness.OpenNode)

// stage is a Service for one test.
type stage struct {
	*harness.Node
	namespace, image string
	// host is the host name of the Service's URL.
	host string
}

// newStage deploys a Service with a minimum number of backends, each with a concurrency limit (serving 7.3). It skips the test
// without a cluster.
func newStage(t *testing.T, instances, concurrency int) *stage {
	t.Helper()
	node, err := openNode()
	if errors.Is(err, harness.ErrNoNode) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	image, err := node.AppImage()
	if err != nil {
		t.Fatal(err)
	}
	s := &stage{Node: node, image: image, namespace: node.AsCluster().Namespace(t, "noloss", nil)}
	limit := int64(concurrency)
	service := &servingv1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: servingv1.ServiceSpec{ConfigurationSpec: servingv1.ConfigurationSpec{Template: servingv1.RevisionTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{
				servingv1.MinScaleAnnotationKey: strconv.Itoa(instances),
				servingv1.WindowAnnotationKey:   "6s",
			}},
			Spec: servingv1.RevisionSpec{ContainerConcurrency: &limit, PodSpec: corev1.PodSpec{Containers: []corev1.Container{{
				Image: image, Env: []corev1.EnvVar{{Name: "TARGET", Value: "1"}},
			}}}},
		}}},
	}
	eventually(t, "the Service is created", func(ctx context.Context) error {
		_, err := node.Admin.Knative.ServingV1().Services(s.namespace).Create(ctx, service, metav1.CreateOptions{})
		return err
	})
	s.host = s.awaitReady(t, 1)
	return s
}

// awaitReady waits until the Revision of a generation is the latest ready one, and the Service is ready. It returns the host
// name of its URL.
func (s *stage) awaitReady(t *testing.T, generation int) (host string) {
	t.Helper()
	eventually(t, "the Service is ready", func(ctx context.Context) error {
		service, err := s.Admin.Knative.ServingV1().Services(s.namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		ready := service.Status.Conditions.Get("Ready")
		if service.Status.LatestReadyRevisionName != revision(generation) || ready == nil || ready.Status != corev1.ConditionTrue {
			return fmt.Errorf("%q is the latest ready Revision, Ready is %+v", service.Status.LatestReadyRevisionName, ready)
		}
		host = name + "." + s.namespace + ".example.com"
		return nil
	})
	return host
}

// revision returns the name of the Revision of a generation.
func revision(generation int) string { return fmt.Sprintf("%s-%05d", name, generation) }

// pods returns the Pods of a generation, including terminating ones.
func (s *stage) pods(ctx context.Context, generation int) ([]corev1.Pod, error) {
	list, err := s.Host.CoreV1().Pods(s.namespace).List(ctx, metav1.ListOptions{LabelSelector: "serving.knative.dev/revision=" + revision(generation)})
	if err != nil {
		return nil, err
	}
	return list.Items, nil
}

// awaitPods waits until exactly that many Pods of a generation are ready, and none of the given earlier ones exists. It returns
// them.
func (s *stage) awaitPods(t *testing.T, generation, count int, before ...corev1.Pod) (pods []corev1.Pod) {
	t.Helper()
	old := map[types.UID]bool{}
	for i := range before {
		old[before[i].UID] = true
	}
	eventually(t, fmt.Sprintf("%d new Pods of %s exist", count, revision(generation)), func(ctx context.Context) (err error) {
		if pods, err = s.pods(ctx, generation); err != nil {
			return err
		}
		ready := 0
		for i := range pods {
			if pods[i].DeletionTimestamp == nil && !old[pods[i].UID] && podReady(&pods[i]) {
				ready++
			}
		}
		if ready != count || len(pods) != count {
			return fmt.Errorf("got %d, of which %d are new and ready", len(pods), ready)
		}
		return nil
	})
	return pods
}

func podReady(p *corev1.Pod) bool {
	for i := range p.Status.Conditions {
		if c := &p.Status.Conditions[i]; c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

func eventually(t *testing.T, what string, probe func(context.Context) error) {
	t.Helper()
	harness.EventuallyWithin(t, patience, what, probe)
}
