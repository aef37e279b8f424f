package inspect

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	eventingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1"
	eventingv1alpha1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1alpha1"
	messagingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/messaging/v1"
	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/generated/clientset/versioned"
)

// Redrive asks for the dead letters of a Trigger or Subscription to be delivered again. resource is triggers or subscriptions.
func Redrive(ctx context.Context, client versioned.Interface, resource, namespace, name string, asked *eventingv1alpha1.Redrive) (*eventingv1alpha1.EventRun, error) {
	of := client.EventingV1().RESTClient()
	if resource == "subscriptions" {
		of = client.MessagingV1().RESTClient()
	}
	return createRun(ctx, of.Post().Namespace(namespace).Resource(resource).Name(name).SubResource("redrive"), asked)
}

// Replay asks for the archived events of a Broker to be delivered again.
func Replay(ctx context.Context, client versioned.Interface, namespace, broker string, asked *eventingv1alpha1.Replay) (*eventingv1alpha1.EventRun, error) {
	return createRun(ctx, client.EventingV1().RESTClient().Post().Namespace(namespace).Resource("brokers").Name(broker).SubResource("replay"), asked)
}

// createRun returns the EventRun that a request with a body creates.
func createRun(ctx context.Context, request *rest.Request, asked any) (*eventingv1alpha1.EventRun, error) {
	// The client would write its own API version into the body.
	body, err := json.Marshal(asked)
	if err != nil {
		return nil, err
	}
	run := &eventingv1alpha1.EventRun{}
	return run, request.SetHeader("Content-Type", "application/json").Body(body).Do(ctx).Into(run)
}

// Queued describes how many events of an EventRun are queued for delivery, such as "3 of 7".
func Queued(run *eventingv1alpha1.EventRun) string {
	if run.Status.Total == nil {
		return fmt.Sprint(run.Status.Queued)
	}
	return fmt.Sprintf("%d of %d", run.Status.Queued, *run.Status.Total)
}

// RunMessage returns why the events of an EventRun wait, or why it failed; empty without a reason.
func RunMessage(run *eventingv1alpha1.EventRun) string {
	if c := run.Status.Conditions.Get(eventingv1alpha1.EventRunConditionSucceeded); c != nil {
		return c.Message
	}
	return ""
}

// ParseDestination returns a destination that a user wrote: a URL, or service/NAME, broker/NAME or channel/NAME. It returns nil for an empty text.
func ParseDestination(text string) (*duckv1.Destination, error) {
	if text == "" {
		return nil, nil
	}
	if strings.Contains(text, "://") {
		return &duckv1.Destination{URI: text}, nil
	}
	versions := map[string]schema.GroupVersionKind{
		"service": servingv1.SchemeGroupVersion.WithKind("Service"), "broker": eventingv1.SchemeGroupVersion.WithKind("Broker"),
		"channel": messagingv1.SchemeGroupVersion.WithKind("Channel"),
	}
	resource, name, _ := strings.Cut(text, "/")
	kind, known := versions[resource]
	if !known || name == "" {
		return nil, fmt.Errorf("must be a URL, or service/NAME, broker/NAME or channel/NAME, not '%.100s'", text)
	}
	return &duckv1.Destination{Ref: &duckv1.KReference{APIVersion: kind.GroupVersion().String(), Kind: kind.Kind, Name: name}}, nil
}
