package serving

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// site is the sample application as a Service in its own namespace, reached through the gateway.
type site struct {
	*server
	namespace, name string
	// url is the URL of the Service, host the Host header of requests.
	url, host string
}

// newSite deploys a site, and deletes it when the test ends.
func (s *server) newSite(t testing.TB, name string, options ...option) *site {
	t.Helper()
	return s.newSiteIn(t, namespace(), name, options...)
}

func (s *server) newSiteIn(t testing.TB, namespace, name string, options ...option) *site {
	t.Helper()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 10*time.Second)
		defer cancel()
		// Servers that the test stopped and Services that it deleted are ignored.
		_ = s.Knative.ServingV1().Services(namespace).Delete(ctx, name, metav1.DeleteOptions{})
	})
	service := s.deploy(t, app(t, namespace, name, options...))
	address, err := url.Parse(service.Status.URL)
	if err != nil || address.Host == "" {
		t.Fatalf("status.url %q must be a URL with a host (%v)", service.Status.URL, err)
	}
	return &site{server: s, namespace: namespace, name: name, url: service.Status.URL, host: address.Host}
}

// revision returns the newest Revision of the site.
func (s *site) revision(t testing.TB) *servingv1.Revision {
	t.Helper()
	service, err := s.Knative.ServingV1().Services(s.namespace).Get(t.Context(), s.name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	revision, err := s.Knative.ServingV1().Revisions(s.namespace).Get(t.Context(), service.Status.LatestCreatedRevisionName, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return revision
}

// untilScale waits until that many backends of the newest Revision are ready and no more are desired.
func (s *site) untilScale(t testing.TB, instances int32) {
	t.Helper()
	harness.Eventually(t, fmt.Sprintf("%s has %d instances", s.name, instances), func() error {
		status := s.revision(t).Status
		if ptr.Deref(status.ActualReplicas, 0) != instances || ptr.Deref(status.DesiredReplicas, 0) != instances {
			return fmt.Errorf("actualReplicas %v, desiredReplicas %v", ptr.Deref(status.ActualReplicas, 0), ptr.Deref(status.DesiredReplicas, 0))
		}
		return nil
	})
}

// hold sends a request that stays in flight until release is called or the test ends, so that the site does not scale to zero.
func (s *site) hold(t testing.TB) (release func()) {
	t.Helper()
	w := s.mustDial(t)
	if _, err := io.WriteString(w, get(s.host, "/hang")); err != nil {
		t.Fatal(err)
	}
	return func() { w.Close() }
}

// remove deletes the site and waits until the API has neither the Service nor its Revisions.
func (s *site) remove(t testing.TB) {
	t.Helper()
	client := s.Knative.ServingV1()
	if err := client.Services(s.namespace).Delete(t.Context(), s.name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		t.Fatal(err)
	}
	harness.Eventually(t, "the Revisions are deleted", func() error {
		left, err := client.Revisions(s.namespace).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		if len(left.Items) > 0 {
			return fmt.Errorf("%d remain", len(left.Items))
		}
		return nil
	})
}

// The types below are reports of the sample application.
type (
	countReport       struct{ Total, Aborted int64 }
	concurrencyReport struct{ Current, Max int64 }
	infoReport        struct {
		PID      int
		Instance string
		Revision string
	}
	uploadReport struct {
		Bytes  int64
		SHA256 string
	}
	headersReport struct {
		Method, URI, Proto, Host string
		Header                   http.Header
	}
)

// report reads the application's report at a path.
func report[T any](t testing.TB, s *site, path string) T {
	t.Helper()
	return decoded[T](t, s.mustGet(t, s.url+path))
}

func decoded[T any](t testing.TB, body string) T {
	t.Helper()
	var v T
	if err := json.Unmarshal([]byte(body), &v); err != nil {
		t.Fatalf("decoding %.500q: %v", body, err)
	}
	return v
}

// parsed decodes a successful response.
func parsed[T any](response *harness.Response) (*T, error) {
	if response.Code != http.StatusOK {
		return nil, fmt.Errorf("the API answered %d %s", response.Code, response.Body)
	}
	v := new(T)
	return v, json.Unmarshal(response.Body, v)
}

// scaling sets an annotation of the autoscaler.
func scaling(name, value string) option { return annotation("autoscaling.knative.dev/"+name, value) }

// instances fixes the number of backends.
func instances(n string) option {
	return func(s *servingv1.Service) {
		scaling("min-scale", n)(s)
		scaling("max-scale", n)(s)
	}
}

// h2c makes the application speak HTTP/2.
func h2c(s *servingv1.Service) {
	env("PROTOCOL", "h2c")(s)
	s.Spec.Template.Spec.Containers[0].Ports = []corev1.ContainerPort{{Name: "h2c", ContainerPort: 8080}}
}

// timeouts sets the timeouts of requests in seconds; 0 keeps the default.
func timeouts(total, responseStart, idle int64) option {
	return func(s *servingv1.Service) {
		spec := &s.Spec.Template.Spec
		for _, timeout := range []struct {
			field   **int64
			seconds int64
		}{{&spec.TimeoutSeconds, total}, {&spec.ResponseStartTimeoutSeconds, responseStart}, {&spec.IdleTimeoutSeconds, idle}} {
			if timeout.seconds > 0 {
				*timeout.field = ptr.To(timeout.seconds)
			}
		}
	}
}

// metric returns the sum of the series of a metric that have all the labels, each written name="value". It returns false
// without such a series.
func (s *server) metric(ctx context.Context, name string, labels ...string) (sum float64, found bool, err error) {
	response, err := s.Send(ctx, harness.Request{Method: http.MethodGet, Path: "/metrics", Accept: "text/plain"})
	if err != nil {
		return 0, false, err
	}
	if response.Code != http.StatusOK {
		return 0, false, fmt.Errorf("reading the metrics: %d %s", response.Code, response.Body)
	}
series:
	for line := range strings.Lines(string(response.Body)) {
		rest, ok := strings.CutPrefix(line, name+"{")
		if !ok {
			continue
		}
		for _, label := range labels {
			if !strings.Contains(rest, label) {
				continue series
			}
		}
		var value float64
		if _, err := fmt.Sscan(rest[strings.LastIndexByte(rest, '}')+1:], &value); err != nil {
			return 0, false, fmt.Errorf("reading %q: %w", line, err)
		}
		sum, found = sum+value, true
	}
	return sum, found, nil
}

// untilMetric waits until a metric of a site has a value.
func (s *site) untilMetric(t testing.TB, name string, want float64, labels ...string) {
	t.Helper()
	labels = append(labels, fmt.Sprintf("namespace=%q", s.namespace))
	harness.Eventually(t, fmt.Sprintf("%s is %v", name, want), func() error {
		value, _, err := s.metric(t.Context(), name, labels...)
		if err != nil {
			return err
		}
		if value != want {
			return fmt.Errorf("it is %v", value)
		}
		return nil
	})
}
