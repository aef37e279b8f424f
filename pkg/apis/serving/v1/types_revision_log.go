package v1

import (
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/conversion"
	"k8s.io/apimachinery/pkg/runtime"
)

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// RevisionLogOptions are the query parameters of a Revision's subresource log.
type RevisionLogOptions struct {
	metav1.TypeMeta `json:",inline"`

	// Follow goes on with what is logged from then on, also by instances that start later, until the client ends the
	// request or the Revision is deleted.
	// +optional
	Follow bool `json:"follow,omitempty"`

	// TailLines is how many of the last lines of each container come first. Optional; defaults to all.
	// +optional
	TailLines *int64 `json:"tailLines,omitempty"`

	// SinceSeconds leaves out what was logged longer ago. Optional; defaults to nothing.
	// +optional
	SinceSeconds *int64 `json:"sinceSeconds,omitempty"`

	// Container is the one whose log is wanted. Optional; defaults to all but init containers.
	// +optional
	Container string `json:"container,omitempty"`
}

// SwaggerDoc describes the parameters.
func (RevisionLogOptions) SwaggerDoc() map[string]string {
	return map[string]string{
		"follow":       "Go on with what is logged from then on, also by instances that start later, until the client ends the request or the Revision is deleted.",
		"tailLines":    "How many of the last lines of each container come first. Defaults to all.",
		"sinceSeconds": "Leave out what was logged longer ago than this number of seconds. Defaults to nothing.",
		"container":    "The container whose log is wanted. Defaults to all but init containers.",
	}
}

// RevisionLogPath is where the API serves the log of a Revision.
func RevisionLogPath(namespace, name string) string {
	return fmt.Sprintf("/apis/%s/%s/namespaces/%s/revisions/%s/log", GroupName, SchemeGroupVersion.Version, namespace, name)
}

// logParameters read the parameters of a request. Each returns what its value must be, or "".
var logParameters = map[string]func(o *RevisionLogOptions, value string) (must string){
	"follow": func(o *RevisionLogOptions, value string) string {
		var err error
		if o.Follow, err = strconv.ParseBool(value); err != nil {
			return "'true' or 'false'"
		}
		return ""
	},
	"tailLines": func(o *RevisionLogOptions, value string) string {
		n, err := strconv.ParseInt(value, 10, 64)
		if o.TailLines = &n; err != nil || n < 0 {
			return "a whole number of at least 0"
		}
		return ""
	},
	"sinceSeconds": func(o *RevisionLogOptions, value string) string {
		n, err := strconv.ParseInt(value, 10, 64)
		// As much as a time.Duration holds.
		if o.SinceSeconds = &n; err != nil || n < 1 || n > 1<<33 {
			return "a whole number of at least 1 and at most 8589934592"
		}
		return ""
	},
	"container": func(o *RevisionLogOptions, value string) string {
		if o.Container = value; value == "" {
			return "the name of a container"
		}
		return ""
	},
}

// convertLogParameters reads the parameters of a request. Those it does not know are refused: a misspelt one would ask
// for something else than was meant.
func convertLogParameters(in *url.Values, out *RevisionLogOptions, _ conversion.Scope) error {
	for _, name := range slices.Sorted(maps.Keys(*in)) {
		values := (*in)[name]
		read, known := logParameters[name]
		switch {
		case name == "pretty" || name == "timeout":
			// They are about the request, not about the log.
			continue
		case !known:
			return fmt.Errorf("parameter '%s' is not known here; there are %s", name, strings.Join(slices.Sorted(maps.Keys(logParameters)), ", "))
		case len(values) != 1:
			return fmt.Errorf("parameter '%s' must be given once", name)
		}
		if must := read(out, values[0]); must != "" {
			return fmt.Errorf("parameter '%s' must be %s, not '%s'", name, must, values[0])
		}
	}
	return nil
}

func addLogOptions(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(SchemeGroupVersion, &RevisionLogOptions{})
	return scheme.AddConversionFunc((*url.Values)(nil), (*RevisionLogOptions)(nil), func(a, b any, scope conversion.Scope) error {
		return convertLogParameters(a.(*url.Values), b.(*RevisionLogOptions), scope)
	})
}
