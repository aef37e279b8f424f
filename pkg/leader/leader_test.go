package leader

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/record"
)

// transport counts the requests that reach it.
type transport struct{ n int }

func (t *transport) RoundTrip(*http.Request) (*http.Response, error) {
	t.n++
	return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody}, nil
}

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
		ctx := t.Context()
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
		if errors.Is(err, ErrFollowing) != test.refused || (next.n == 0) != test.refused {
			t.Errorf("%s, following %t: %d requests, error %v", test.method, test.following, next.n, err)
		}
	}
}

func TestOnlyFollowing(t *testing.T) {
	refused := fmt.Errorf("writing: %w", &url.Error{Op: "Put", URL: "http://server/", Err: ErrFollowing})
	for name, test := range map[string]struct {
		err  error
		want bool
	}{
		"none":                         {nil, false},
		"another":                      {context.Canceled, false},
		"refused":                      {refused, true},
		"joined with nothing":          {errors.Join(refused, nil), true},
		"twice":                        {errors.Join(refused, refused), true},
		"with a failure":               {errors.Join(refused, context.Canceled), false},
		"with a failure further in":    {fmt.Errorf("all: %w", errors.Join(refused, context.Canceled)), false},
		"with a failure by the format": {fmt.Errorf("%w, %w", refused, context.Canceled), false},
	} {
		if got := OnlyFollowing(test.err); got != test.want {
			t.Errorf("%s: %t", name, got)
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
