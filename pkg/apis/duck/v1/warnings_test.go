package v1

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
)

// TestWarnDestination covers fields that need another setting or another scheme.
func TestWarnDestination(t *testing.T) {
	for name, test := range map[string]struct {
		destination   *Destination
		authenticated bool
		want          []string
	}{
		"none":                       {},
		"audience":                   {destination: &Destination{URI: "http://a", Audience: ptr.To("a")}, authenticated: true},
		"audience without tokens":    {destination: &Destination{URI: "http://a", Audience: ptr.To("a")}, want: []string{"subscriber.audience: has no effect"}},
		"certificates":               {destination: &Destination{URI: "https://a", CACerts: ptr.To("c")}},
		"certificates of an object":  {destination: &Destination{Ref: &KReference{}, URI: "/a", CACerts: ptr.To("c")}},
		"certificates without https": {destination: &Destination{URI: "http://a", CACerts: ptr.To("c")}, want: []string{"subscriber.CACerts: has no effect"}},
	} {
		t.Run(name, func(t *testing.T) {
			got := WarnDestination(test.destination, field.NewPath("subscriber"), test.authenticated)
			if len(got) != len(test.want) || len(got) > 0 && !strings.HasPrefix(got[0], test.want[0]) {
				t.Errorf("warnings %q, want %q", got, test.want)
			}
		})
	}
}
