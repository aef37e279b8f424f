package console

import (
	"cmp"
	"context"
	"net/http"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
)

// maxListed bounds the objects of a kind on a page.
const maxListed = 500

// servicesPage has the Services of a namespace.
type servicesPage struct {
	Namespace string
	Services  []servicePage
	// More is true if there are more Services than shown.
	More bool
}

// servicePage is a Service with its Revisions, newest first.
type servicePage struct {
	servingv1.Service
	Revisions []revisionRow
	// Problem is why the Revisions are not shown; empty if they are.
	Problem string
}

// revisionRow is a Revision with its share of the traffic of its Service.
type revisionRow struct {
	servingv1.Revision
	// Percent is the share of requests without a tag. Tags have their own host names.
	Percent int64
	Tags    []tag
}

// tag is a name for a target of traffic.
type tag struct{ Name, URL string }

// Instances returns the number of ready instances.
func (r *revisionRow) Instances() int32 { return ptr.Deref(r.Status.ActualReplicas, 0) }

// Desired returns the number of instances that the autoscaler requests.
func (r *revisionRow) Desired() int32 { return ptr.Deref(r.Status.DesiredReplicas, 0) }

// services loads the page of all Services.
func (c *Console) services(ctx context.Context, r *http.Request) (any, error) {
	namespace := r.PathValue("namespace")
	list, err := c.knative.ServingV1().Services(namespace).List(ctx, metav1.ListOptions{Limit: maxListed})
	if err != nil {
		return nil, err
	}
	p := &servicesPage{Namespace: namespace, More: list.Continue != ""}
	revisions, err := c.knative.ServingV1().Revisions(namespace).List(ctx, metav1.ListOptions{LabelSelector: servingv1.ServiceLabelKey})
	problem := ""
	if err != nil {
		problem, revisions = explain(err), &servingv1.RevisionList{}
	}
	owned := map[string][]servingv1.Revision{}
	for i := range revisions.Items {
		service := revisions.Items[i].Labels[servingv1.ServiceLabelKey]
		owned[service] = append(owned[service], revisions.Items[i])
	}
	for i := range list.Items {
		service := &list.Items[i]
		p.Services = append(p.Services, servicePage{Service: *service, Revisions: rows(service, owned[service.Name], true), Problem: problem})
	}
	return p, nil
}

// service loads the page of one Service.
func (c *Console) service(ctx context.Context, r *http.Request) (any, error) {
	namespace, name := r.PathValue("namespace"), r.PathValue("name")
	service, err := c.knative.ServingV1().Services(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	p := &servicePage{Service: *service}
	revisions, err := c.knative.ServingV1().Revisions(namespace).List(ctx, metav1.ListOptions{LabelSelector: servingv1.ServiceLabelKey + "=" + name, Limit: maxListed})
	if err != nil {
		p.Problem = explain(err)
		return p, nil
	}
	p.Revisions = rows(service, revisions.Items, false)
	return p, nil
}

// rows returns the Revisions of a Service, newest first. If routed is true, only those with traffic.
func rows(service *servingv1.Service, revisions []servingv1.Revision, routed bool) []revisionRow {
	var all []revisionRow
	for i := range revisions {
		row := revisionRow{Revision: revisions[i]}
		used := false
		for _, target := range service.Status.Traffic {
			if target.RevisionName != row.Name {
				continue
			}
			used = true
			row.Percent += ptr.Deref(target.Percent, 0)
			if target.Tag != "" {
				row.Tags = append(row.Tags, tag{target.Tag, target.URL})
			}
		}
		if used || !routed {
			all = append(all, row)
		}
	}
	slices.SortFunc(all, func(a, b revisionRow) int {
		return cmp.Or(b.CreationTimestamp.Compare(a.CreationTimestamp.Time), cmp.Compare(b.Name, a.Name))
	})
	return all
}
