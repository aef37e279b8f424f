package inspect

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
)

// TestParseDestination parses what users write.
func TestParseDestination(t *testing.T) {
	ref := func(version, kind, name string) *duckv1.Destination {
		return &duckv1.Destination{Ref: &duckv1.KReference{APIVersion: version, Kind: kind, Name: name}}
	}
	for value, want := range map[string]*duckv1.Destination{
		"":                         nil,
		"http://sink.example.com/": {URI: "http://sink.example.com/"},
		"service/audit":            ref("serving.knative.dev/v1", "Service", "audit"),
		"broker/other":             ref("eventing.knative.dev/v1", "Broker", "other"),
		"channel/mails":            ref("messaging.knative.dev/v1", "Channel", "mails"),
	} {
		got, err := ParseDestination(value)
		if err != nil {
			t.Error(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%q: -want +got:\n%s", value, diff)
		}
	}
	for _, value := range []string{"audit", "service/", "pod/a", "/"} {
		if to, err := ParseDestination(value); err == nil || !strings.Contains(err.Error(), "must be a URL") {
			t.Errorf("%q: %v, %v", value, to, err)
		}
	}
}
