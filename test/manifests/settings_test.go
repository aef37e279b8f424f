package manifests

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/yaml"

	"github.com/knative-apiserver/knative-apiserver/pkg/settings"
)

// TestSettings installs every ConfigMap of settings. None sets a value; each lists under _example every key that is read, with
// valid values, and every key of Knative's releases without effect, with the reason.
func TestSettings(t *testing.T) {
	each(t, func(t *testing.T, objects objects) {
		seen := sets.New[string]()
		for _, c := range of[corev1.ConfigMap](t, objects, "ConfigMap") {
			if !settings.Known(c.Name) {
				if _, ok := c.Data["_example"]; ok {
					t.Errorf("ConfigMap %s is not read", c.Name)
				}
				continue
			}
			seen.Insert(c.Name)
			var example map[string]string
			if err := yaml.UnmarshalStrict([]byte(c.Data["_example"]), &example); err != nil || len(c.Data) != 1 {
				t.Errorf("%s has %d keys, want only _example, which must be a YAML map of strings: %v", c.Name, len(c.Data), err)
				continue
			}
			if faults := settings.NewStore(settings.Default("example.com")).Update(map[string]map[string]string{c.Name: example}); len(faults) > 0 {
				t.Errorf("the example of %s: %v", c.Name, faults[c.Name])
			}
			comments := commentsOf(c.Data["_example"])
			unused := map[string]string{}
			for _, key := range settings.Unused(c.Name, example) {
				unused[key.Key] = "Without effect: " + key.Reason + "."
			}
			for key := range example {
				comment := comments[key]
				if want := unused[key]; comment == "" || !strings.HasSuffix(comment, want) || want == "" && strings.Contains(comment, "Without effect") {
					t.Errorf("in the example of %s the comment of %s is %q, want its effect in it: %q", c.Name, key, comment, want)
				}
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

// commentsOf returns the comment of each key of an example: the lines before the key, or before a group of keys.
func commentsOf(example string) map[string]string {
	comments, comment := map[string]string{}, ""
	for line := range strings.Lines(example) {
		line = strings.TrimSuffix(line, "\n")
		text, commented := strings.CutPrefix(line, "# ")
		switch key, _, found := strings.Cut(line, ":"); {
		case line == "":
			comment = ""
		case commented:
			comment = strings.TrimSpace(comment + " " + text)
		case found && !strings.HasPrefix(line, " "):
			comments[key] = comment
		}
	}
	return comments
}
