package serving

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
)

// visibilityLabelKey makes a Route cluster-local.
const visibilityLabelKey = "networking.knative.dev/visibility"

// podClient returns a client that sends requests from a Pod of another namespace.
func (s *space) podClient(t *testing.T) *http.Client {
	t.Helper()
	other := s.NewSpace(t, "serving-client")
	other.Apply(t, other.Application(t, "client", nil))
	client := other.Client(t, "client")
	client.Timeout = answerTimeout
	return client
}

// getInside is mustGet from a Pod. The DNS of the cluster may serve a new name later than the gateways do.
func getInside(t *testing.T, inside *http.Client, target string) string {
	t.Helper()
	var a *answer
	until(t, "a Pod resolves "+target, func() (err error) {
		if a, err = ask(t.Context(), inside, http.MethodGet, target, nil, nil); err == nil && a.code == http.StatusBadGateway && strings.Contains(a.body, "lookup ") {
			err = errors.New(a.body)
		}
		return err
	})
	if a.code != http.StatusOK {
		t.Fatalf("GET %s from a Pod: %d %s", target, a.code, a.body)
	}
	return a.body
}

// TestNames covers the names of a Route: outside, by the URL and the NodePort of the gateway's Service; in a Pod of any
// namespace, by the names in the cluster's DNS (serving 6.15).
func TestNames(t *testing.T) {
	t.Parallel()
	s := newSpace(t, "names", nil)
	s.apply(t, s.app("hello", revisionName("one"), env("TARGET", "one")))
	s.ready(t, "hello")
	service := s.deploy(t, s.app("hello", revisionName("two"), env("TARGET", "two"), traffic(
		tagged("old", pinned("hello-one", 0)), tagged("new", pinned("hello-two", 100)))))
	inside := s.podClient(t)

	if got := service.Status.Address; got == nil || host(t, got.URL) != "hello."+s.namespace+".svc.cluster.local" {
		t.Errorf("status.address is %+v, want the name within the cluster", got)
	}
	if got := s.get(t, service.Status.URL); got != "Hello two!\n" {
		t.Errorf("GET %s answers %q", service.Status.URL, got)
	}
	tags := map[string]string{}
	for _, target := range service.Status.Traffic {
		tags[target.Tag] = s.get(t, target.URL)
	}
	if tags["old"] != "Hello one!\n" || tags["new"] != "Hello two!\n" {
		t.Errorf("the tags answer %q", tags)
	}
	for name, want := range map[string]string{"hello": "Hello two!\n", "old-hello": "Hello one!\n", "new-hello": "Hello two!\n"} {
		for _, suffix := range []string{"", ".svc", ".svc.cluster.local"} {
			target := "http://" + name + "." + s.namespace + suffix
			if got := getInside(t, inside, target); got != want {
				t.Errorf("in a Pod %s answers %q, want %q", target, got, want)
			}
		}
	}
	t.Run("private tag", func(t *testing.T) { s.makeTagPrivate(t, service, inside) })
}

// makeTagPrivate covers the visibility label on the core Service of one tag: the tag has no external name until the label is
// removed. The Route and its other tag keep theirs.
func (s *space) makeTagPrivate(t *testing.T, service *servingv1.Service, inside *http.Client) {
	urls := map[string]string{}
	for _, target := range service.Status.Traffic {
		urls[target.Tag] = target.URL
	}
	local := "http://old-hello." + s.namespace + ".svc.cluster.local"
	becomes := func(url string, code int) {
		t.Helper()
		eventually(t, s.Admin.Knative.ServingV1().Services(s.namespace), service.Name, "has the tag at "+url, func(service *servingv1.Service) error {
			for _, target := range service.Status.Traffic {
				if target.Tag == "old" && target.URL != url {
					return fmt.Errorf("it is at %s", target.URL)
				}
			}
			if a, err := ask(t.Context(), s.http, http.MethodGet, urls["old"], nil, nil); err != nil || a.code != code {
				return fmt.Errorf("from outside %s answers %+v, %w, want %d", urls["old"], a, err, code)
			}
			return condition(service, &service.Status.Status, duckv1.ConditionReady, corev1.ConditionTrue, "")
		})
	}

	s.kubectl.Must(t, "", "label", "service", "old-hello", visibilityLabelKey+"=cluster-local")
	becomes(local, http.StatusNotFound)
	if a, err := ask(t.Context(), s.http, http.MethodGet, local, nil, nil); err != nil || a.code != http.StatusNotFound {
		t.Errorf("from outside %s answers %+v, %v, want 404", local, a, err)
	}
	if got := getInside(t, inside, local); got != "Hello one!\n" {
		t.Errorf("in a Pod %s answers %q", local, got)
	}
	for _, target := range []string{service.Status.URL, urls["new"]} {
		if got := s.get(t, target); got != "Hello two!\n" {
			t.Errorf("GET %s answers %q", target, got)
		}
	}

	s.kubectl.Must(t, "", "label", "service", "old-hello", visibilityLabelKey+"-")
	becomes(urls["old"], http.StatusOK)
	if got := s.get(t, urls["old"]); got != "Hello one!\n" {
		t.Errorf("GET %s answers %q", urls["old"], got)
	}
}

// TestClusterLocal checks that a cluster-local Route has no external name.
func TestClusterLocal(t *testing.T) {
	t.Parallel()
	s := newSpace(t, "local", nil)
	service := s.deploy(t, s.app("hello", func(service *servingv1.Service) {
		service.Labels = map[string]string{visibilityLabelKey: "cluster-local"}
	}))
	want := "http://hello." + s.namespace + ".svc.cluster.local"
	if service.Status.URL != want || service.Status.Address == nil || *service.Status.Address != (duckv1.Addressable{URL: want}) {
		t.Errorf("status.url is %q and status.address %+v, want %s", service.Status.URL, service.Status.Address, want)
	}
	if got := getInside(t, s.podClient(t), want); got != "Hello World!\n" {
		t.Errorf("in a Pod it answers %q", got)
	}
	for _, name := range []string{want, "http://hello." + s.namespace, "http://hello." + s.namespace + ".example.com"} {
		if a, err := ask(t.Context(), s.http, http.MethodGet, name, nil, nil); err != nil || a.code != http.StatusNotFound {
			t.Errorf("from outside %s answers %+v, %v, want 404", name, a, err)
		}
	}
}
