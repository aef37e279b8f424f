package inspect

import (
	"context"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	eventingv1alpha1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1alpha1"
	servingv1beta1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1beta1"
	"github.com/knative-apiserver/knative-apiserver/pkg/generated/clientset/versioned"
)

// Sample is the metrics of objects at a time. Objects without requests and events have none.
type Sample struct {
	at       time.Time
	services map[types.NamespacedName]*servingv1beta1.ServiceMetrics
	events   map[eventsKey]*eventingv1alpha1.EventMetrics
}

type eventsKey struct{ kind, namespace, name string }

// NewSample returns a sample without metrics.
func NewSample(at time.Time) *Sample { return &Sample{at: at} }

// ReadServices reads the metrics of the Services of a namespace, of all namespaces if it is empty.
func (s *Sample) ReadServices(ctx context.Context, client versioned.Interface, namespace string) error {
	list := &servingv1beta1.ServiceMetricsList{}
	if err := client.ServingV1beta1().RESTClient().Get().Namespace(namespace).Resource("servicemetrics").Do(ctx).Into(list); err != nil {
		return err
	}
	s.services = map[types.NamespacedName]*servingv1beta1.ServiceMetrics{}
	for i := range list.Items {
		m := &list.Items[i]
		s.services[types.NamespacedName{Namespace: m.Namespace, Name: m.Name}] = m
	}
	return nil
}

// ReadEvents reads the metrics of the Brokers, Triggers, Channels and Subscriptions of a namespace, of all namespaces if it is empty.
func (s *Sample) ReadEvents(ctx context.Context, client versioned.Interface, namespace string) error {
	list := &eventingv1alpha1.EventMetricsList{}
	if err := client.EventingV1alpha1().RESTClient().Get().Namespace(namespace).Resource("eventmetrics").Do(ctx).Into(list); err != nil {
		return err
	}
	s.events = map[eventsKey]*eventingv1alpha1.EventMetrics{}
	for i := range list.Items {
		m := &list.Items[i]
		s.events[eventsKey{m.Object.Kind, m.Namespace, m.Object.Name}] = m
	}
	return nil
}

// HasEvents reports whether ReadEvents has succeeded.
func (s *Sample) HasEvents() bool { return s.events != nil }

// Missing returns why metrics are missing, which is empty without an error. Other failures than a missing permission remain errors.
func Missing(err error) (reason string, _ error) {
	if apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) {
		return "the permission to list servicemetrics.serving.knative.dev or eventmetrics.eventing.knative.dev is required: " + err.Error(), nil
	}
	return "", err
}

// Interval is two samples of which rates are computed.
type Interval struct{ From, To *Sample }

// counter is a value that grows at a replica until it starts anew.
type counter struct {
	start time.Time
	value int64
}

// perSecond returns the rate of an increase between the samples.
func (i *Interval) perSecond(increase int64) float64 {
	elapsed := i.To.at.Sub(i.From.at)
	if elapsed <= 0 {
		return 0
	}
	return float64(increase) / elapsed.Seconds()
}

// increase returns by how much counters have grown since they were read before, by the name of their replica. before is nil if the object had no
// metrics then. A replica that did not answer before is left out.
func increase(before, after map[string]counter, read time.Time) (sum int64) {
	for name, now := range after {
		had, found := before[name]
		switch {
		case found && had.start.Equal(now.start):
			sum += max(now.value-had.value, 0)
		case before == nil, now.start.After(read):
			sum += now.value
		}
	}
	return sum
}

// increaseOf returns the increase of a value of an object at all its replicas. before are the replicas that were read at a time; nil if the object had no
// metrics then.
func increaseOf[R any](before, after []R, read time.Time, of func(*R) (replica string, start metav1.MicroTime, value int64)) int64 {
	counters := func(replicas []R) map[string]counter {
		if replicas == nil {
			return nil
		}
		all := map[string]counter{}
		for i := range replicas {
			name, start, value := of(&replicas[i])
			all[name] = counter{start.Time, value}
		}
		return all
	}
	return increase(counters(before), counters(after), read)
}
