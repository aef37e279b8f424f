package console

import (
	"context"
	"net/http"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/knative-apiserver/knative-apiserver/pkg/inspect"
)

// eventsPage finds events.
type eventsPage struct {
	Namespace string
	// Streams are the Brokers and Channels, such as brokers/default. At is the selected one.
	Streams []string
	At      string
	// ID, Source and TraceID select events.
	ID, Source, TraceID string
	// Asked is true if the user asked for an event. Then Trees have a tree for each event that did not follow from another one, Incomplete
	// lists reasons why records may be missing, and Problem is why there is no answer.
	Asked      bool
	Trees      []*inspect.Node
	Incomplete []string
	Problem    string
}

// events loads the page that finds events.
func (c *Console) events(ctx context.Context, r *http.Request) (any, error) {
	query := r.URL.Query()
	p := &eventsPage{
		Namespace: r.PathValue("namespace"), At: query.Get("at"),
		ID: query.Get("id"), Source: query.Get("source"), TraceID: query.Get("traceid"),
	}
	var err error
	if p.Streams, err = c.streams(ctx, p.Namespace); err != nil {
		return nil, err
	}
	if p.At == "" && len(p.Streams) > 0 {
		p.At = p.Streams[0]
	}
	if p.Asked = p.ID != "" || p.TraceID != ""; !p.Asked {
		return p, nil
	}
	resource, name, _ := strings.Cut(p.At, "/")
	trace, err := inspect.Trace(ctx, c.knative, resource, p.Namespace, name, inspect.TraceOptions{ID: p.ID, Source: p.Source, TraceID: p.TraceID})
	if err != nil {
		p.Problem = explain(err)
		return p, nil
	}
	p.Trees, p.Incomplete = inspect.TraceTrees(trace, false), trace.Incomplete
	return p, nil
}

// streams returns the Brokers and Channels of a namespace that the user may list.
func (c *Console) streams(ctx context.Context, namespace string) ([]string, error) {
	var names []string
	brokers, err := c.knative.EventingV1().Brokers(namespace).List(ctx, metav1.ListOptions{Limit: maxListed})
	if err != nil && !apierrors.IsForbidden(err) {
		return nil, err
	}
	if err == nil {
		for i := range brokers.Items {
			names = append(names, "brokers/"+brokers.Items[i].Name)
		}
	}
	channels, err := c.knative.MessagingV1().Channels(namespace).List(ctx, metav1.ListOptions{Limit: maxListed})
	if err != nil && !apierrors.IsForbidden(err) {
		return nil, err
	}
	if err == nil {
		for i := range channels.Items {
			names = append(names, "channels/"+channels.Items[i].Name)
		}
	}
	slices.Sort(names)
	return names, nil
}
