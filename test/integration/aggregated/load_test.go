package aggregated

import (
	stdcontext "context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// load sends requests until it is stopped, and records failures.
type load struct {
	stop   stdcontext.CancelFunc
	done   sync.WaitGroup
	served atomic.Int64

	mu       sync.Mutex
	failures []failure // guarded by mu
}

// failure is a call that failed.
type failure struct {
	at  time.Time
	err error
}

// startLoad creates, reads, lists and deletes objects through the aggregator concurrently, and repeats each of the other calls.
func startLoad(t *testing.T, namespace string, others ...func(ctx stdcontext.Context) error) *load {
	t.Helper()
	ctx, cancel := stdcontext.WithCancel(t.Context())
	l := &load{stop: cancel}
	kind := harness.KindOf("Broker")
	for worker := range 3 {
		object := kind.Object(namespace, fmt.Sprintf("load-%d", worker))
		path := kind.Path(namespace, object.GetName())
		others = append(others, func(ctx stdcontext.Context) error {
			for _, step := range []struct {
				request harness.Request
				code    int
			}{
				{harness.Request{Method: http.MethodPost, Path: kind.Collection(namespace), Body: object}, http.StatusCreated},
				{harness.Request{Method: http.MethodGet, Path: path}, http.StatusOK},
				{harness.Request{Method: http.MethodGet, Path: kind.Collection(namespace)}, http.StatusOK},
				{harness.Request{Method: http.MethodDelete, Path: path}, http.StatusOK},
			} {
				response, err := host.Admin.Send(ctx, step.request)
				if err != nil {
					return fmt.Errorf("%s: %w", step.request.Method, err)
				}
				if response.Code != step.code {
					return fmt.Errorf("%s: code %d, want %d: %.300s", step.request.Method, response.Code, step.code, response.Body)
				}
				l.served.Add(1)
			}
			return nil
		})
	}
	for _, work := range others {
		l.done.Go(func() {
			for ctx.Err() == nil {
				if err := work(ctx); err != nil && ctx.Err() == nil {
					l.mu.Lock()
					l.failures = append(l.failures, failure{time.Now(), err})
					l.mu.Unlock()
					return
				}
			}
		})
	}
	t.Cleanup(func() { cancel(); l.done.Wait() })
	return l
}

// more waits until n more requests succeeded.
func (l *load) more(t *testing.T, n int64) {
	t.Helper()
	want := l.served.Load() + n
	harness.Eventually(t, fmt.Sprintf("%d more requests are served", n), func() error {
		if err := l.failed(time.Now()); err != nil {
			t.Fatal(err)
		}
		if served := l.served.Load(); served < want {
			return fmt.Errorf("%d are missing", want-served)
		}
		return nil
	})
}

// failed returns the failures before a time.
func (l *load) failed(before time.Time) (err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, f := range l.failures {
		if f.at.Before(before) {
			err = errors.Join(err, f.err)
		}
	}
	return err
}
