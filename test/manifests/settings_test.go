package manifests

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/yaml"

	"github.com/knative-apiserver/knative-apiserver/pkg/settings"
)

// TestSettings installs every ConfigMap of settings. Each sets nothing, and lists under _example exactly the keys that are
// read, with values that are accepted.
func TestSettings(t *testing.T) {
	each(t, func(t *testing.T, objects objects) {
		seen := sets.New[string]()
		for _, c := range of[corev1.ConfigMap](t, objects, "ConfigMap") {
			if !settings.Known(c.Name) {
				if _, ok := c.Data["_example"]; ok {
					t.Errorf("ConfigMap %s is read by nothing", c.Name)
				}
				continue
			}
			seen.Insert(c.Name)
			var example map[string]string
			if err := yaml.UnmarshalStrict([]byte(c.Data["_example"]), &example); err != nil || len(c.Data) != 1 {
				t.Errorf("%s has %d keys, want _example alone, which must be a YAML map of strings: %v", c.Name, len(c.Data), err)
				continue
			}
			if faults := settings.NewStore(settings.Default("example.com")).Update(map[string]map[string]string{c.Name: example}); len(faults) > 0 {
				t.Errorf("the example of %s: %v", c.Name, faults[c.Name])
			}
			if unused := settings.Unused(c.Name, example); len(unused) > 0 {
				t.Errorf("the example of %s has keys that are not read: %v", c.Name, unused)
			}
			for _, key := range settings.Keys(c.Name) {
				if _, ok := example[key]; !ok {
					t.Errorf("the example of %s lacks %s", c.Name, key)
				}
			}
		}
		if want := slices.Sorted(slices.Values(settings.Names())); !slices.Equal(sets.List(seen), want) {
			t.Errorf("ConfigMaps are %v, want %v", sets.List(seen), want)
		}
	})
}
