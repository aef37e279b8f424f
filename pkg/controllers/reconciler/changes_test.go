package reconciler

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	messagingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/messaging/v1"
)

// Irrelevant updates do not reach a controller; all other events do.
func TestChanges(t *testing.T) {
	informer := &fakeInformer{}
	c := New("test", reconcile(nil))
	same := func(old, current *messagingv1.Channel) bool { return old.UID == current.UID }
	if err := c.Watch(Changes(informer, same), KeyOf); err != nil {
		t.Fatal(err)
	}
	c.watching.Store(true)
	channel := &messagingv1.Channel{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "orders", UID: "uid"}}
	changed := channel.DeepCopy()
	changed.Generation = 2
	recreated := channel.DeepCopy()
	recreated.UID = "new"
	for _, step := range []struct {
		name   string
		happen func()
		want   int
	}{
		{"irrelevant update", func() { informer.OnUpdate(channel, changed) }, 0},
		{"update", func() { informer.OnUpdate(channel, recreated) }, 1},
		{"creation", func() { informer.OnAdd(channel, false) }, 1},
		{"deletion", func() { informer.OnDelete(channel) }, 1},
	} {
		step.happen()
		if got := c.queue.Len(); got != step.want {
			t.Errorf("%s: %d keys, want %d", step.name, got, step.want)
		}
		if c.queue.Len() > 0 {
			key, _ := c.queue.Get()
			c.queue.Done(key)
		}
	}
}
