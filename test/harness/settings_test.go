package harness

import (
	"maps"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
)

// TestConfigure covers that restore gives keys their former values, removes added ones, and does not touch others.
func TestConfigure(t *testing.T) {
	former := map[string]string{"changed": "a", "other": "b"}
	host := fake.NewClientset(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "config", Namespace: SystemNamespace}, Data: former})
	data := func() map[string]string {
		configMap, err := host.CoreV1().ConfigMaps(SystemNamespace).Get(t.Context(), "config", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return configMap.Data
	}
	restore, err := Configure(t.Context(), host, "config", map[string]string{"changed": "c", "added": "d"})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := data(), map[string]string{"changed": "c", "added": "d", "other": "b"}; !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if err := restore(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := data(); !maps.Equal(got, former) {
		t.Errorf("after restore: %v, want %v", got, former)
	}
	if _, err := Configure(t.Context(), host, "missing", nil); err == nil {
		t.Error("a missing ConfigMap was changed")
	}
}
