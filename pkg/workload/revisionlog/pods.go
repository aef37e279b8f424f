package revisionlog

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/utils/lru"

	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/origin"
)

// revisionUIDLabelKey on Pods holds the original UID of their Revision.
const revisionUIDLabelKey = servingv1.GroupName + "/revisionUID"

// Pods is the Source for Revisions that run as Pods of the host cluster.
type Pods struct {
	// Client may list and watch Pods, and get pods/log.
	Client kubernetes.Interface

	// mu guards rates, the rate limiters of namespaces with recent requests.
	mu    sync.Mutex
	rates *lru.Cache
}

const (
	// requestsPerSecond and requestsAtOnce limit the requests to the host for the logs of one namespace.
	requestsPerSecond, requestsAtOnce = 20, 100
	// maxRates bounds the number of rate limiters.
	maxRates = 1024
)

// wait blocks until the rate limit of a namespace admits a request.
func (p *Pods) wait(ctx context.Context, namespace string) error {
	p.mu.Lock()
	if p.rates == nil {
		p.rates = lru.New(maxRates)
	}
	found, ok := p.rates.Get(namespace)
	if !ok {
		found = flowcontrol.NewTokenBucketRateLimiter(requestsPerSecond, requestsAtOnce)
		p.rates.Add(namespace, found)
	}
	p.mu.Unlock()
	if err := found.(flowcontrol.RateLimiter).Wait(ctx); err != nil {
		return fmt.Errorf("wait for rate limit of namespace %q: %w", namespace, err)
	}
	return nil
}

var _ Source = (*Pods)(nil)

// Copy implements Source.
func (p *Pods) Copy(ctx context.Context, revision *servingv1.Revision, options *servingv1.RevisionLogOptions, write func(Line) error) error {
	if err := p.wait(ctx, revision.Namespace); err != nil {
		return err
	}
	selector := labels.Set{revisionUIDLabelKey: string(origin.UID(revision.UID))}.String()
	pods, err := p.Client.CoreV1().Pods(revision.Namespace).List(ctx, metav1.ListOptions{LabelSelector: selector})
	if err != nil {
		return fmt.Errorf("list Pods of Revision \"%s/%s\": %w", revision.Namespace, revision.Name, err)
	}
	containers := Containers(revision, options)
	if options.Follow {
		return p.follow(ctx, revision.Namespace, selector, containers, options, write)
	}
	slices.SortFunc(pods.Items, func(a, b corev1.Pod) int {
		if order := a.CreationTimestamp.Compare(b.CreationTimestamp.Time); order != 0 {
			return order
		}
		return strings.Compare(a.Name, b.Name)
	})
	for i := range pods.Items {
		for _, container := range containers {
			if started(&pods.Items[i], container) == "" {
				continue
			}
			if err := p.copy(ctx, &pods.Items[i], logOptions(container, options), write); err != nil {
				return err
			}
		}
	}
	return nil
}

func logOptions(container string, options *servingv1.RevisionLogOptions) *corev1.PodLogOptions {
	return &corev1.PodLogOptions{Container: container, Follow: options.Follow, TailLines: options.TailLines, SinceSeconds: options.SinceSeconds}
}

// copy copies the log of one container. It returns the error of write or of ctx. If a log cannot be read, it writes a line
// with the cause and returns nil, so that the other logs are still copied.
func (p *Pods) copy(ctx context.Context, pod *corev1.Pod, options *corev1.PodLogOptions, write func(Line) error) error {
	var writeErr error
	writeLine := func(line Line) error {
		writeErr = write(line)
		return writeErr
	}
	if err := p.wait(ctx, pod.Namespace); err != nil {
		return err
	}
	stream, err := p.Client.CoreV1().Pods(pod.Namespace).GetLogs(pod.Name, options).Stream(ctx)
	if err == nil {
		err = errors.Join(CopyLines(stream, pod.Name, options.Container, writeLine), stream.Close())
	}
	switch {
	case writeErr != nil:
		return writeErr
	case ctx.Err() != nil:
		return ctx.Err()
	case err == nil, apierrors.IsNotFound(err):
		return nil
	}
	return write(Line{Instance: pod.Name, Container: options.Container, Text: []byte("the log cannot be read: " + err.Error())})
}

// started returns the ID of the latest run of a container, whose log the host serves, or "" if the container has not run
// yet.
func started(pod *corev1.Pod, container string) string {
	for _, statuses := range [][]corev1.ContainerStatus{pod.Status.ContainerStatuses, pod.Status.InitContainerStatuses} {
		for i := range statuses {
			s := &statuses[i]
			switch {
			case s.Name != container:
			case s.State.Running != nil || s.State.Terminated != nil:
				return s.ContainerID
			case s.LastTerminationState.Terminated != nil:
				return s.LastTerminationState.Terminated.ContainerID
			}
		}
	}
	return ""
}

// running reports whether a run of a container has not ended.
func running(pod *corev1.Pod, container, run string) bool {
	for _, statuses := range [][]corev1.ContainerStatus{pod.Status.ContainerStatuses, pod.Status.InitContainerStatuses} {
		for i := range statuses {
			if s := &statuses[i]; s.Name == container && s.ContainerID == run {
				return s.State.Running != nil
			}
		}
	}
	return false
}
