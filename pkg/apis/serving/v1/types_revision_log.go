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

	// Follow continues with new log lines, including lines of instances that start later, until the client closes the
	// request or the Revision is deleted.
	// +optional
	Follow bool `json:"follow,omitempty"`

	// TailLines is the number of most recent lines of each container to begin with. Optional; defaults to all.
	// +optional
	TailLines *int64 `json:"tailLines,omitempty"`

	// SinceSeconds omits lines older than this number of seconds. Optional; defaults to no limit.
	// +optional
	SinceSeconds *int64 `json:"sinceSeconds,omitempty"`

	// Container selects the log of one container. Optional; defaults to all except init containers.
	// +optional
	Container string `json:"container,omitempty"`
}

// SwaggerDoc describes the parameters.
func (RevisionLogOptions) SwaggerDoc() map[string]string {
	return map[string]string{
		"follow":       "Continue with new log lines, including lines of instances that start later, until the client closes the request or the Revision is deleted.",
		"tailLines":    "Number of most recent lines of each container to begin with. Defaults to all.",
		"sinceSeconds": "Omit lines older than this number of seconds. Defaults to no limit.",
		"container":    "Container whose log is returned. Defaults to all except init containers.",
	}
}

// RevisionLogPath returns the path of the log of a Revision in the API.
func RevisionLogPath(namespace, name string) string {
	return fmt.Sprintf("/apis/%s/%s/namespaces/%s/revisions/%s/log", GroupName, SchemeGroupVersion.Version, namespace, name)
}

// logParameters parse the parameters of a request. Each returns the valid values, or "" if the value is valid.
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
		// The maximum of a time.Duration.
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

// convertLogParameters parses the parameters of a request. It rejects unknown ones, because a misspelt parameter would change the
// meaning of the request.
func convertLogParameters(in *url.Values, out *RevisionLogOptions, _ conversion.Scope) error {
	for _, name := range slices.Sorted(maps.Keys(*in)) {
		values := (*in)[name]
		read, known := logParameters[name]
		switch {
		case name == "pretty" || name == "timeout":
			// These parameters concern the request, not the log.
			continue
		case !known:
			return fmt.Errorf("unknown parameter '%s'; valid parameters are %s", name, strings.Join(slices.Sorted(maps.Keys(logParameters)), ", "))
		case len(values) != 1:
			return fmt.Errorf("parameter '%s' must be set only once", name)
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
