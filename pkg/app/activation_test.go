package app

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/knative-apiserver/knative-apiserver/pkg/routing"
)

// activated records the Revisions whose first backend is started.
type activated struct {
	keys []routing.Key
	err  error
}

func (a *activated) Activate(_ context.Context, key routing.Key) error {
	a.keys = append(a.keys, key)
	return a.err
}

// A replica starts first backends for replicas without the permission.
func TestActivationHandler(t *testing.T) {
	pods := &activated{}
	handler := (&serving{pods: pods}).activationHandler()
	ask := func(method string) int {
		answer := httptest.NewRecorder()
		handler.ServeHTTP(answer, httptest.NewRequest(method, "/?namespace=default&name=hello-00001", http.NoBody))
		return answer.Code
	}
	if got := ask(http.MethodGet); got != http.StatusMethodNotAllowed || len(pods.keys) > 0 {
		t.Errorf("GET: code %d, %v", got, pods.keys)
	}
	if got := ask(http.MethodPost); got != http.StatusNoContent || len(pods.keys) != 1 || pods.keys[0] != (routing.Key{Namespace: "default", Name: "hello-00001"}) {
		t.Errorf("POST: code %d, %v", got, pods.keys)
	}
	pods.err = errors.New("the host is down")
	if got := ask(http.MethodPost); got != http.StatusServiceUnavailable {
		t.Errorf("a failure: code %d", got)
	}
}
