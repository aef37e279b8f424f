package controllertest

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// SyncEventing has the informers of all kinds know what the server has. Call it when all indexes are added.
func (w *World) SyncEventing() {
	w.t.Helper()
	ctx, all := w.t.Context(), metav1.ListOptions{}
	eventing, messaging := w.Factory.Eventing().V1(), w.Factory.Messaging().V1()
	brokers, err := w.Client.EventingV1().Brokers("").List(ctx, all)
	w.replace(eventing.Brokers().Informer(), brokers, err)
	triggers, err := w.Client.EventingV1().Triggers("").List(ctx, all)
	w.replace(eventing.Triggers().Informer(), triggers, err)
	channels, err := w.Client.MessagingV1().Channels("").List(ctx, all)
	w.replace(messaging.Channels().Informer(), channels, err)
	subscriptions, err := w.Client.MessagingV1().Subscriptions("").List(ctx, all)
	w.replace(messaging.Subscriptions().Informer(), subscriptions, err)
	w.Sync()
}
