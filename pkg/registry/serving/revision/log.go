package revision

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"

	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/registry"
	"github.com/knative-apiserver/knative-apiserver/pkg/workload/revisionlog"
)

// LogOptions configure the subresource log.
type LogOptions struct {
	Source revisionlog.Source
	// Stopping is closed before the server stops. It ends followed logs. Nil never closes.
	Stopping <-chan struct{}
}

// revisionStore reads and watches Revisions.
type revisionStore interface {
	rest.Getter
	rest.Watcher
}

// logREST serves the logs of a Revision's backends as text.
type logREST struct {
	LogOptions
	revisions revisionStore
	follows   follows
}

var (
	_ rest.GetterWithOptions = &logREST{}
	_ rest.StorageMetadata   = &logREST{}
)

// New returns an empty object of the parent resource's kind.
func (*logREST) New() runtime.Object { return &servingv1.Revision{} }

// Destroy does nothing: the resource Revisions owns the store.
func (*logREST) Destroy() {}

// NewGetOptions returns empty options. The resource has no subpaths.
func (*logREST) NewGetOptions() (runtime.Object, bool, string) {
	return &servingv1.RevisionLogOptions{}, false, ""
}

// ProducesMIMETypes returns the content type of logs.
func (*logREST) ProducesMIMETypes(string) []string { return []string{"text/plain"} }

// ProducesObject returns a string: logs are text.
func (*logREST) ProducesObject(string) any { return "" }

// Get reads the Revision and returns the stream of its logs.
func (l *logREST) Get(ctx context.Context, name string, options runtime.Object) (runtime.Object, error) {
	asked, ok := options.(*servingv1.RevisionLogOptions)
	if !ok {
		return nil, apierrors.NewInternalError(fmt.Errorf("options of the log are a %T", options))
	}
	revision, err := registry.GetAs[*servingv1.Revision](ctx, l.revisions, name, &metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	if asked.Container != "" && !hasContainer(revision, asked.Container) {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("parameter 'container' must be one of %q, not '%s'", containersOf(revision), asked.Container))
	}
	return &logStream{rest: l, revision: revision, options: asked}, nil
}

func hasContainer(revision *servingv1.Revision, name string) bool {
	for _, container := range containersOf(revision) {
		if container == name {
			return true
		}
	}
	return false
}

// containersOf returns the names of all containers, init containers last.
func containersOf(revision *servingv1.Revision) []string {
	var names []string
	for i := range revision.Spec.Containers {
		names = append(names, revision.Spec.Containers[i].Name)
	}
	for i := range revision.Spec.InitContainers {
		names = append(names, revision.Spec.InitContainers[i].Name)
	}
	return names
}

// logStream represents the log of a Revision as an object, as handlers require.
type logStream struct {
	rest     *logREST
	revision *servingv1.Revision
	options  *servingv1.RevisionLogOptions
}

var _ rest.ResourceStreamer = &logStream{}

// GetObjectKind returns the empty kind: a stream is not an API object.
func (*logStream) GetObjectKind() schema.ObjectKind { return schema.EmptyObjectKind }

// DeepCopyObject is never called: streams cannot be copied.
func (*logStream) DeepCopyObject() runtime.Object {
	panic("the stream of a log cannot be copied")
}

// InputStream returns the log as text. A followed log ends with the request, the Revision or the server.
func (s *logStream) InputStream(ctx context.Context, _, _ string) (_ io.ReadCloser, _ bool, _ string, err error) {
	follow := s.options.Follow
	end := func() {}
	if follow {
		select {
		case <-s.rest.Stopping:
			return nil, false, "", apierrors.NewServiceUnavailable("this replica of the server is shutting down; retry")
		default:
		}
		if end, err = s.rest.follows.begin(userOf(ctx), s.revision.Namespace, s.revision.Name); err != nil {
			return nil, false, "", err
		}
		defer func() {
			if err != nil {
				end()
			}
		}()
		following, cancel := context.WithCancel(request.WithNamespace(ctx, s.revision.Namespace))
		go func() {
			defer cancel()
			s.rest.awaitEnd(following, s.revision)
		}()
		ctx = following
	}
	stream, err := revisionlog.Open(ctx, s.rest.Source, s.revision, s.options)
	if errors.Is(err, revisionlog.ErrNoSource) {
		return nil, false, "", apierrors.NewServiceUnavailable(err.Error())
	}
	if err != nil {
		return nil, false, "", apierrors.NewInternalError(err)
	}
	return &followedStream{stream, end}, follow, "text/plain; charset=utf-8", nil
}

// userOf returns the name of the user who sent the request.
func userOf(ctx context.Context) string {
	if user, ok := request.UserFrom(ctx); ok {
		return user.GetName()
	}
	return ""
}

// rewatchDelay is the delay before a failed watch of a Revision is restarted.
const rewatchDelay = time.Second

// awaitEnd returns when a Revision is deleted, the server stops, or ctx ends.
func (l *logREST) awaitEnd(ctx context.Context, revision *servingv1.Revision) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		defer cancel()
		select {
		case <-l.Stopping:
		case <-ctx.Done():
		}
	}()
	version := revision.ResourceVersion
	for ctx.Err() == nil {
		if l.watchOnce(ctx, revision.Name, version) {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(rewatchDelay):
		}
		// Changes since the watch ended are visible in the Revision.
		obj, err := l.revisions.Get(ctx, revision.Name, &metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return
		}
		if current, ok := obj.(*servingv1.Revision); ok && err == nil {
			if current.UID != revision.UID {
				return
			}
			version = current.ResourceVersion
		}
	}
}

// watchOnce watches a Revision from the given version, and reports whether it was deleted. Otherwise the watch ended.
func (l *logREST) watchOnce(ctx context.Context, name, version string) (deleted bool) {
	watcher, err := l.revisions.Watch(ctx, &internalversion.ListOptions{
		FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, name), ResourceVersion: version,
	})
	if err != nil {
		return false
	}
	defer watcher.Stop()
	for {
		select {
		case <-ctx.Done():
			return false
		case event, open := <-watcher.ResultChan():
			switch {
			case !open || event.Type == watch.Error:
				return false
			case event.Type == watch.Deleted:
				return true
			}
		}
	}
}
