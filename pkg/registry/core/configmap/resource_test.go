package configmap

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/knative-apiserver/knative-apiserver/pkg/registry/core"
)

func TestValidate(t *testing.T) {
	large := strings.Repeat("x", core.MaxDataSize)
	tests := map[string]struct {
		name, oldData string
		data          map[string]string
		binary        map[string][]byte
		immutable     *bool
		// want are the paths of the fields with errors.
		want []string
	}{
		"keys of both":          {data: map[string]string{"a": "1"}, binary: map[string][]byte{"b": {0}}},
		"a key in both":         {data: map[string]string{"a": "1"}, binary: map[string][]byte{"a": {0}}, want: []string{"data[a]"}},
		"a path as key":         {data: map[string]string{"a/b": ""}, want: []string{"data[a/b]"}},
		"a path as binary key":  {binary: map[string][]byte{"../b": nil}, want: []string{"binaryData[../b]"}},
		"maximum size":          {data: map[string]string{"a": large}},
		"too large together":    {data: map[string]string{"a": large}, binary: map[string][]byte{"b": {0}}, want: []string{"data"}},
		"a name that is a path": {name: "..", want: []string{"metadata.name"}},
		"an upper case name":    {name: "A", want: []string{"metadata.name"}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if test.name == "" {
				test.name = "a"
			}
			c := &corev1.ConfigMap{
				ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: test.name}, Data: test.data, BinaryData: test.binary, Immutable: test.immutable,
			}
			var got []string
			for _, fault := range core.NewStrategy(Resource(), nil).Validate(t.Context(), c) {
				got = append(got, fault.Field)
			}
			if !slices.Equal(slices.Compact(got), test.want) {
				t.Errorf("faults at %q, want %q", got, test.want)
			}
		})
	}
}

func TestImmutable(t *testing.T) {
	old := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "a", ResourceVersion: "1"}, Data: map[string]string{"a": "1"}, Immutable: ptr.To(true),
	}
	obj := old.DeepCopy()
	obj.Immutable, obj.Data, obj.BinaryData = ptr.To(false), nil, map[string][]byte{"b": {1}}
	var got []string
	for _, fault := range core.NewStrategy(Resource(), nil).ValidateUpdate(t.Context(), obj, old) {
		got = append(got, fault.Field)
	}
	slices.Sort(got)
	if want := []string{"binaryData", "data", "immutable"}; !slices.Equal(got, want) {
		t.Errorf("faults at %q, want %q", got, want)
	}
}

// TestWarnings checks that keys of the operator's settings without effect cause warnings, only in the namespace of the settings.
func TestWarnings(t *testing.T) {
	data := map[string]string{"_example": "", "activator-capacity": "100", "stable-window": "60s", "stabel-window": "60s"}
	want := []string{
		"data[activator-capacity]: has no effect: there is no activator",
		"data[stabel-window]: has no effect: it is misspelt or not a setting of this server",
	}
	tests := map[string]struct {
		namespace, name string
		want            []string
	}{
		"settings":          {"knative-system", "config-autoscaler", want},
		"another namespace": {"ns", "config-autoscaler", nil},
		"another name":      {"knative-system", "other", nil},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			c := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: test.namespace, Name: test.name}, Data: data}
			strategy := core.NewStrategy(Resource(), nil)
			if got := strategy.WarningsOnCreate(t.Context(), c); !slices.Equal(got, test.want) {
				t.Errorf("warnings of a create are %q, want %q", got, test.want)
			}
			if got := strategy.WarningsOnUpdate(t.Context(), c, c); !slices.Equal(got, test.want) {
				t.Errorf("warnings of an update are %q, want %q", got, test.want)
			}
		})
	}
}
