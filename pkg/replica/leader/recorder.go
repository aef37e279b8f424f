package leader

import (
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/record"
)

// Recorder returns a recorder of Events that drops Events about objects for which owns returns false: the owner
// observes the same and records them. owns may be called concurrently.
func Recorder(next record.EventRecorder, owns func(about runtime.Object) bool) record.EventRecorder {
	return recorder{next, owns}
}

type recorder struct {
	next record.EventRecorder
	owns func(runtime.Object) bool
}

// Event implements record.EventRecorder.
func (r recorder) Event(about runtime.Object, eventtype, reason, message string) {
	if r.owns(about) {
		r.next.Event(about, eventtype, reason, message)
	}
}

// Eventf implements record.EventRecorder.
func (r recorder) Eventf(about runtime.Object, eventtype, reason, messageFmt string, args ...any) {
	if r.owns(about) {
		r.next.Eventf(about, eventtype, reason, messageFmt, args...)
	}
}

// AnnotatedEventf implements record.EventRecorder.
func (r recorder) AnnotatedEventf(about runtime.Object, annotations map[string]string, eventtype, reason, messageFmt string, args ...any) {
	if r.owns(about) {
		r.next.AnnotatedEventf(about, annotations, eventtype, reason, messageFmt, args...)
	}
}
