package v1

import (
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
)

// paths returns the paths of warnings.
func paths(t *testing.T, warnings []string) []string {
	t.Helper()
	var paths []string
	for _, warning := range warnings {
		path, why, _ := strings.Cut(warning, ": ")
		if !strings.HasPrefix(why, "has no effect: ") {
			t.Errorf("the warning is %q", warning)
		}
		paths = append(paths, path)
	}
	return paths
}

// Fields without effect cause a warning, unless a foreign implementation may read them.
func TestWarnChannel(t *testing.T) {
	c := &Channel{ObjectMeta: metav1.ObjectMeta{
		Labels: map[string]string{"messaging.knative.dev/a": "b", "app": "a"},
		Annotations: map[string]string{
			"messaging.knative.dev/scope": "namespace", "eventing.knative.dev/scope": "namespace",
			"eventing.knative.dev/allow-from": "a", "messaging.knative.dev/creator": "a", "example.com/a": "b",
		},
	}}
	c.Spec.ChannelTemplate = &ChannelTemplateSpec{
		TypeMeta: metav1.TypeMeta{APIVersion: "messaging.knative.dev/v1", Kind: ChannelKindInMemory},
		Spec:     &runtime.RawExtension{Raw: []byte(`{"numPartitions":3,"delivery":{"retry":1,"deadLetterSink":{"uri":"http://a","audience":"a"}},"delivry":{}}`)},
	}
	c.SetCreateDefaults(DefaultSettings())
	want := []string{
		"metadata.labels[messaging.knative.dev/a]", "metadata.annotations[eventing.knative.dev/scope]",
		"metadata.annotations[messaging.knative.dev/scope]", "spec.channelTemplate.spec.delivry", "spec.channelTemplate.spec.numPartitions",
		"spec.delivery.deadLetterSink.audience",
	}
	if got := paths(t, WarnChannel(c, false)); !slices.Equal(got, want) {
		t.Errorf("warned of\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	c.Spec.ChannelTemplate.Kind = "KafkaChannel"
	if got := WarnChannel(c, false); len(got) > 0 {
		t.Errorf("warnings about a foreign Channel: %q", got)
	}
	plain := &Channel{}
	plain.SetCreateDefaults(DefaultSettings())
	if got := WarnChannel(plain, false); len(got) > 0 {
		t.Errorf("warnings about a plain Channel: %q", got)
	}
}

func TestWarnSubscription(t *testing.T) {
	s := &Subscription{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{
		"messaging.knative.dev/a": "b", "eventing.knative.dev/delivery.order": "ordered", "kafka.eventing.knative.dev/delivery.order": "ordered",
	}}}
	s.Spec.Channel = duckv1.KReference{APIVersion: "messaging.knative.dev/v1", Kind: "Channel", Name: "a"}
	s.Spec.Reply = &duckv1.Destination{Audience: ptr.To("a")}
	want := []string{"metadata.annotations[messaging.knative.dev/a]", "spec.reply.audience"}
	if got := paths(t, WarnSubscription(s, false)); !slices.Equal(got, want) {
		t.Errorf("warned of %q, want %q", got, want)
	}
	s.Spec.Channel.Kind = "KafkaChannel"
	if got := WarnSubscription(s, false); len(got) > 0 {
		t.Errorf("warnings about a Subscription to a foreign channel: %q", got)
	}
}
