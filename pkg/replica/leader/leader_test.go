package leader

import (
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/go-logr/logr/funcr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"
)

// transport counts the requests that reach it.
type transport struct{ n int }

func (t *transport) RoundTrip(*http.Request) (*http.Response, error) {
	t.n++
	return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody}, nil
}

// Guard refuses writes of a replica that does not own the object, and logs each as a bug.
func TestGuard(t *testing.T) {
	for _, test := range []struct {
		method    string
		following bool
		refused   bool
	}{
		{http.MethodGet, false, false},
		{http.MethodGet, true, false},
		{http.MethodPut, false, false},
		{http.MethodPut, true, true},
		{http.MethodDelete, true, true},
	} {
		var logged int
		ctx := klog.NewContext(t.Context(), funcr.New(func(_, args string) {
			if strings.Contains(args, test.method) {
				logged++
			}
		}, funcr.Options{}))
		if test.following {
			ctx = Following(ctx)
		}
		r, err := http.NewRequestWithContext(ctx, test.method, "http://server/", strings.NewReader("body"))
		if err != nil {
			t.Fatal(err)
		}
		next := &transport{}
		response, err := (&http.Client{Transport: Guard(next)}).Do(r)
		if err == nil {
			response.Body.Close()
		}
		if errors.Is(err, ErrFollowing) != test.refused || (next.n == 0) != test.refused || (logged == 1) != test.refused {
			t.Errorf("%s, following %t: %d requests, error %v, logged %d times", test.method, test.following, next.n, err, logged)
		}
	}
}

func TestRecorder(t *testing.T) {
	fake := record.NewFakeRecorder(10)
	mine, other := &corev1.Pod{}, &corev1.Pod{}
	r := Recorder(fake, func(about runtime.Object) bool { return about == runtime.Object(mine) })
	for _, about := range []*corev1.Pod{other, mine} {
		r.Event(about, corev1.EventTypeNormal, "A", "one")
		r.Eventf(about, corev1.EventTypeNormal, "B", "%s", "two")
		r.AnnotatedEventf(about, nil, corev1.EventTypeNormal, "C", "%s", "three")
	}
	if len(fake.Events) != 3 {
		t.Errorf("%d Events were recorded, want 3", len(fake.Events))
	}
}
