package v1

import (
	"reflect"
	"strings"
	"testing"
)

func TestFeaturesFromConfigMap(t *testing.T) {
	for _, tc := range []struct {
		name string
		data map[string]string
		want func(*Features)
	}{
		{name: "nothing said", want: func(*Features) {}},
		{
			name: "enabled and allowed in any case",
			data: map[string]string{"kubernetes.podspec-affinity": "Enabled", "kubernetes.podspec-hostipc": " allowed "},
			want: func(f *Features) { f.Affinity, f.HostIPC = true, true },
		},
		{
			name: "defaults can be turned off",
			data: map[string]string{"multi-container": "disabled", "kubernetes.podspec-volumes-emptydir": "Disabled"},
			want: func(f *Features) { f.MultiContainer, f.VolumeEmptyDir = false, false },
		},
		{
			name: "other keys are ignored",
			data: map[string]string{"_example": "anything", "tag-header-based-routing": "perhaps"},
			want: func(*Features) {},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			want := DefaultFeatures()
			tc.want(&want)
			got, err := FeaturesFromConfigMap(tc.data)
			if err != nil || got != want {
				t.Errorf("got %+v, %v; want %+v", got, err, want)
			}
		})
	}
}

func TestFeaturesFromConfigMapNamesBadKeys(t *testing.T) {
	_, err := FeaturesFromConfigMap(map[string]string{"multi-container": "true", "kubernetes.podspec-affinity": ""})
	if err == nil {
		t.Fatal("no error")
	}
	for _, part := range []string{"'multi-container'", "'kubernetes.podspec-affinity'", "'enabled', 'allowed' or 'disabled'", `"true"`} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("error %q lacks %s", err, part)
		}
	}
}

// Each field of Features has its own key; otherwise an operator could not set it.
func TestEveryFeatureHasAKey(t *testing.T) {
	fields := reflect.TypeFor[Features]().NumField()
	flags := (&Features{}).flags()
	if len(flags) != fields {
		t.Fatalf("%d keys for %d fields", len(flags), fields)
	}
	for key := range flags {
		f, err := FeaturesFromConfigMap(map[string]string{key: "enabled"})
		if err != nil || !f.enabled(key) {
			t.Errorf("key %s does not enable its feature: %v", key, err)
		}
	}
}
