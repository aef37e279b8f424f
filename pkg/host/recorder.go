package host

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"

	"github.com/knative-apiserver/knative-apiserver/pkg/generated/clientset/versioned/scheme"
)

// NewRecorder returns a recorder that writes Events from a component about Knative objects to the API server of config.
// It stops when ctx is canceled or stop is called. It fails if config is invalid.
//
// Recording never blocks: a background goroutine writes the Events one by one and aggregates equal Events into one with a
// count. Events are dropped if the server rejects them, if 1,000 others are queued, for example while many objects are
// created at once, and if an object exceeds its budget for a reason: 25 Events, then one every 5 minutes. Information that
// must not be lost belongs in the status of the object.
func NewRecorder(ctx context.Context, config *rest.Config, component string) (recorder record.EventRecorder, stop func(), err error) {
	client, err := typedcorev1.NewForConfig(config)
	if err != nil {
		return nil, nil, fmt.Errorf("create client for Events of %s: %w", component, err)
	}
	broadcaster := record.NewBroadcaster(record.WithContext(ctx), record.WithCorrelatorOptions(record.CorrelatorOptions{SpamKeyFunc: spamKey}))
	broadcaster.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: client.Events("")})
	return broadcaster.NewRecorder(scheme.Scheme, corev1.EventSource{Component: component}), broadcaster.Shutdown, nil
}

// spamKey returns the key of an Event's rate limit. Each reason of each object has its own budget, so that a Revision that
// scales often can still report a failure.
func spamKey(event *corev1.Event) string {
	about := &event.InvolvedObject
	return strings.Join([]string{event.Source.Component, about.APIVersion, about.Kind, about.Namespace, about.Name, string(about.UID), event.Reason}, "/")
}
