package inspect

import (
	"context"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/generated/clientset/versioned"
)

// Explanation returns why a Revision has its scale.
func Explanation(ctx context.Context, client versioned.Interface, namespace, revision string) (*servingv1.RevisionExplanation, error) {
	explanation := &servingv1.RevisionExplanation{}
	err := client.ServingV1().RESTClient().Get().Namespace(namespace).Resource("revisions").Name(revision).SubResource("explain").Do(ctx).Into(explanation)
	return explanation, err
}

// Revisions returns the names of all Revisions of a Service, newest first.
func Revisions(ctx context.Context, client versioned.Interface, namespace, service string) (names []string, err error) {
	list, err := client.ServingV1().Revisions(namespace).List(ctx, metav1.ListOptions{LabelSelector: servingv1.ServiceLabelKey + "=" + service})
	if err != nil {
		return nil, err
	}
	slices.SortStableFunc(list.Items, func(a, b servingv1.Revision) int { return b.CreationTimestamp.Compare(a.CreationTimestamp.Time) })
	for i := range list.Items {
		names = append(names, list.Items[i].Name)
	}
	return names, nil
}

// Routed returns the names of the Revisions of a Service that have traffic or a tag, and the latest one.
func Routed(service *servingv1.Service) (names []string) {
	add := func(name string) {
		if name != "" && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	for _, target := range service.Status.Traffic {
		add(target.RevisionName)
	}
	add(service.Status.LatestCreatedRevisionName)
	return names
}
