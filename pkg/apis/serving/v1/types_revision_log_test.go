package v1

import (
	"net/url"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
)

// TestRevisionLogOptions reads query parameters, and names the invalid one.
func TestRevisionLogOptions(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	codec := runtime.NewParameterCodec(scheme)
	for _, tt := range []struct {
		query string
		want  RevisionLogOptions
		err   string
	}{
		{query: ""},
		{query: "follow=true&tailLines=0&sinceSeconds=60&container=side&pretty=true&timeout=5s",
			want: RevisionLogOptions{Follow: true, TailLines: ptr.To[int64](0), SinceSeconds: ptr.To[int64](60), Container: "side"}},
		{query: "follow=yes", err: "parameter 'follow' must be 'true' or 'false', not 'yes'"},
		{query: "tailLines=-1", err: "parameter 'tailLines' must be a whole number of at least 0, not '-1'"},
		{query: "tailLines=many", err: "parameter 'tailLines' must be a whole number of at least 0, not 'many'"},
		{query: "sinceSeconds=0", err: "parameter 'sinceSeconds' must be a whole number of at least 1 and at most 8589934592, not '0'"},
		{query: "sinceSeconds=9999999999", err: "parameter 'sinceSeconds' must be a whole number of at least 1 and at most 8589934592, not '9999999999'"},
		{query: "container=", err: "parameter 'container' must be the name of a container, not ''"},
		{query: "tailLines=1&tailLines=2", err: "parameter 'tailLines' must be set only once"},
		{query: "previous=true", err: "unknown parameter 'previous'; valid parameters are container, follow, sinceSeconds, tailLines"},
	} {
		t.Run(tt.query, func(t *testing.T) {
			query, err := url.ParseQuery(tt.query)
			if err != nil {
				t.Fatal(err)
			}
			var got RevisionLogOptions
			err = codec.DecodeParameters(query, SchemeGroupVersion, &got)
			if tt.err != "" {
				if err == nil || err.Error() != tt.err {
					t.Errorf("got error %v, want %s", err, tt.err)
				}
				return
			}
			if diff := cmp.Diff(tt.want, got); err != nil || diff != "" {
				t.Errorf("error %v, options (-want +got):\n%s", err, diff)
			}
		})
	}
}
