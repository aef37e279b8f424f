package v1

import (
	"net/url"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// TestEventTraceOptions reads query parameters, and names the one that is wrong.
func TestEventTraceOptions(t *testing.T) {
	scheme, gv := runtime.NewScheme(), schema.GroupVersion{Group: "eventing.knative.dev", Version: "v1"}
	if err := AddEventTrace(scheme, gv); err != nil {
		t.Fatal(err)
	}
	codec := runtime.NewParameterCodec(scheme)
	const id, traceID = "one of the parameters 'id' and 'traceid' must be set", "4bf92f3577b34da6a3ce929d0e0e4736"
	const invalid = "parameter 'traceid' must be 32 lower-case hexadecimal digits, not all zero, such as " + traceID
	for _, tt := range []struct {
		query string
		want  EventTraceOptions
		err   string
	}{
		{query: "id=a%20b&source=/s&pretty=true&timeout=5s", want: EventTraceOptions{ID: "a b", Source: "/s"}},
		{query: "traceid=" + traceID, want: EventTraceOptions{TraceID: traceID}},
		{query: "id=" + strings.Repeat("i", maxTraceParameter), want: EventTraceOptions{ID: strings.Repeat("i", maxTraceParameter)}},
		{query: "source=/s", err: id},
		{query: "id=", err: "parameter 'id' must not be empty"},
		{query: "id=1&id=2", err: "parameter 'id' must be set only once"},
		{query: "id=1&traceid=" + traceID, err: "only one of the parameters 'id' and 'traceid' may be set"},
		{query: "source=/s&traceid=" + traceID, err: "parameter 'source' requires parameter 'id'"},
		{query: "traceid=" + strings.ToUpper(traceID), err: invalid},
		{query: "traceid=" + strings.Repeat("0", 32), err: invalid},
		{query: "traceid=1", err: invalid},
		{query: "id=" + strings.Repeat("i", maxTraceParameter+1), err: "parameter 'id' must have at most 65536 bytes"},
		{query: "id=1&ids=2", err: "unknown parameter 'ids'; valid parameters are id, source, traceid"},
	} {
		t.Run(tt.query[:min(len(tt.query), 40)], func(t *testing.T) {
			query, err := url.ParseQuery(tt.query)
			if err != nil {
				t.Fatal(err)
			}
			var got EventTraceOptions
			err = codec.DecodeParameters(query, gv, &got)
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
