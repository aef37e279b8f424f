// Package events writes Kubernetes Events about our objects: what happened to them that a user would ask about.
package events

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

// NewRecorder returns what writes Events in the name of a component, about objects of our kinds, through the
// API server of config. It ends with ctx or by stop, whichever comes first; an error means that config makes no
// client.
//
// Recording never blocks: Events are written one after another in the background, those alike as one that
// counts. Some are lost: those that the server does not take, those that find 1,000 others waiting, as when
// very many objects are made at once, and those of one object and reason beyond 25 and then one each 5 minutes. What must
// not be lost is in the status of objects.
func NewRecorder(ctx context.Context, config *rest.Config, component string) (recorder record.EventRecorder, stop func(), err error) {
	client, err := typedcorev1.NewForConfig(config)
	if err != nil {
		return nil, nil, fmt.Errorf("making a client for the Events of %s: %w", component, err)
	}
	broadcaster := record.NewBroadcaster(record.WithContext(ctx), record.WithCorrelatorOptions(record.CorrelatorOptions{SpamKeyFunc: spamKey}))
	broadcaster.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: client.Events("")})
	return broadcaster.NewRecorder(scheme.Scheme, corev1.EventSource{Component: component}), broadcaster.Shutdown, nil
}

// spamKey is what has a budget of Events of its own: each reason of each object, so that a Revision that scales
// a lot can still tell that it failed.
func spamKey(event *corev1.Event) string {
	about := &event.InvolvedObject
	return strings.Join([]string{event.Source.Component, about.APIVersion, about.Kind, about.Namespace, about.Name, string(about.UID), event.Reason}, "/")
}
