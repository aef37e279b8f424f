package http1

import (
	"context"
	"io"
	"testing"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/serving"
)

// TestPanic expects a panic in one request to end only that request and its connection.
func TestPanic(t *testing.T) {
	klog.SetLogger(logr.Discard())
	t.Cleanup(klog.ClearLogger)
	router := newFakeRouter(answering(t, hi, nil))
	addr := serve(t, &Server{Handler: router})
	other := dial(t, addr)
	write(t, other, getA)
	expect(t, other, hi)
	router.result(t)

	faulty := newFakeRouter("")
	faulty.acquire = func(context.Context) (*Upstream, *serving.Rejection) { panic("a fault") }
	conn := dial(t, serve(t, &Server{Handler: faulty}))
	write(t, conn, getA)
	if rest, err := io.ReadAll(conn); err != nil || len(rest) > 0 {
		t.Errorf("the client got %q, %v", rest, err)
	}
	if r := faulty.result(t); r.Err == nil || r.Err.Error() != "panic: a fault" {
		t.Errorf("result %+v", r)
	}
	write(t, other, getA)
	expect(t, other, hi)
}
