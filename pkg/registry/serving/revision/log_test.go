package revision

import (
	"context"
	"errors"
	"io"
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/registry/rest"

	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/workload/revisionlog"
)

// watchedRevisions adds watches.
type watchedRevisions struct {
	fakeRevisions
	watcher *watch.FakeWatcher
}

func (w watchedRevisions) Watch(context.Context, *internalversion.ListOptions) (watch.Interface, error) {
	return w.watcher, nil
}

// source returns one line, then fails or follows.
type source struct{ err error }

func (s source) Copy(ctx context.Context, _ *servingv1.Revision, options *servingv1.RevisionLogOptions, write func(revisionlog.Line) error) error {
	if s.err != nil {
		return s.err
	}
	if err := write(revisionlog.Line{Instance: "pod", Container: "main", Text: []byte("line")}); err != nil || !options.Follow {
		return err
	}
	<-ctx.Done()
	return ctx.Err()
}

func logged() watchedRevisions {
	r := &servingv1.Revision{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "hello-1", UID: "u", ResourceVersion: "7"}}
	r.Spec.Containers = []corev1.Container{{Name: "main"}}
	r.Spec.InitContainers = []corev1.Container{{Name: "init"}}
	return watchedRevisions{fakeRevisions{"hello-1": r}, watch.NewFake()}
}

func open(ctx context.Context, l *logREST, name string, options *servingv1.RevisionLogOptions) (io.ReadCloser, error) {
	obj, err := l.Get(ctx, name, options)
	if err != nil {
		return nil, err
	}
	stream, flush, mediaType, err := obj.(rest.ResourceStreamer).InputStream(ctx, "", "")
	if err == nil && (flush != options.Follow || mediaType != "text/plain; charset=utf-8") {
		return nil, errors.New("flushed or typed wrongly")
	}
	return stream, err
}

// TestLog covers conventions Types-8, conventions HTTP Status Codes-12 and -13.
func TestLog(t *testing.T) {
	stopped := make(chan struct{})
	close(stopped)
	for name, tt := range map[string]struct {
		source   LogOptions
		revision string
		options  servingv1.RevisionLogOptions
		refused  func(error) bool
	}{
		"all":               {source: LogOptions{Source: source{}}, revision: "hello-1"},
		"container":         {source: LogOptions{Source: source{}}, revision: "hello-1", options: servingv1.RevisionLogOptions{Container: "init"}},
		"no such Revision":  {source: LogOptions{Source: source{}}, revision: "none", refused: apierrors.IsNotFound},
		"no such container": {source: LogOptions{Source: source{}}, revision: "hello-1", options: servingv1.RevisionLogOptions{Container: "x"}, refused: apierrors.IsBadRequest},
		"no source":         {source: LogOptions{Source: &revisionlog.Late{}}, revision: "hello-1", refused: apierrors.IsServiceUnavailable},
		"broken source":     {source: LogOptions{Source: source{errors.New("broken")}}, revision: "hello-1", refused: apierrors.IsInternalError},
		"following a server that ends": {source: LogOptions{Source: source{}, Stopping: stopped}, revision: "hello-1",
			options: servingv1.RevisionLogOptions{Follow: true}, refused: apierrors.IsServiceUnavailable},
	} {
		t.Run(name, func(t *testing.T) {
			stream, err := open(t.Context(), &logREST{LogOptions: tt.source, revisions: logged()}, tt.revision, &tt.options)
			if tt.refused != nil {
				if !tt.refused(err) {
					t.Errorf("got %v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			defer stream.Close()
			if got, err := io.ReadAll(stream); err != nil || string(got) != "[pod] line\n" {
				t.Errorf("got %q, %v", got, err)
			}
		})
	}
}

// TestLogFollow follows a log until the end of the Revision, the server or the request.
func TestLogFollow(t *testing.T) {
	for name, end := range map[string]func(revisions watchedRevisions, stop, cancel func()){
		"Revision deleted": func(revisions watchedRevisions, _, _ func()) {
			revisions.watcher.Modify(revisions.fakeRevisions["hello-1"])
			revisions.watcher.Delete(revisions.fakeRevisions["hello-1"])
		},
		"Revision deleted while not watched": func(revisions watchedRevisions, _, _ func()) {
			delete(revisions.fakeRevisions, "hello-1")
			revisions.watcher.Stop()
		},
		"server":  func(_ watchedRevisions, stop, _ func()) { stop() },
		"request": func(_ watchedRevisions, _, cancel func()) { cancel() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				stopping, stop := context.WithCancel(t.Context())
				defer stop()
				revisions := logged()
				l := &logREST{LogOptions: LogOptions{Source: source{}, Stopping: stopping.Done()}, revisions: revisions}
				stream, err := open(ctx, l, "hello-1", &servingv1.RevisionLogOptions{Follow: true})
				if err != nil {
					t.Fatal(err)
				}
				line := make([]byte, 64)
				if n, err := stream.Read(line); err != nil || string(line[:n]) != "[pod] line\n" {
					t.Errorf("got %q, %v", line[:n], err)
				}
				synctest.Wait()
				end(revisions, stop, cancel)
				if _, err := stream.Read(line); !errors.Is(err, io.EOF) {
					t.Errorf("ended with %v, want EOF", err)
				}
				if err := stream.Close(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}
