package serving

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// routed waits until a Route is ready.
func (s *server) routed(t testing.TB, namespace, name string) *servingv1.Route {
	t.Helper()
	return eventually(t, s.Knative.ServingV1().Routes(namespace), name, "is ready",
		func(r *servingv1.Route) error { return isReady(r, &r.Status.Status) })
}

// TestTags checks that each tag has a URL that contains it, independent of its share, that the tag header selects it if
// enabled, and that a removed tag is unknown (serving 8-3, 10.2-1, 10.2-3 to 10.2-7, 10.2-11).
func TestTags(t *testing.T) {
	t.Parallel()
	ns := namespace()
	shared.deploy(t, app(t, ns, "tags", env("TARGET", "old"), revisionName("old")))
	service := shared.deploy(t, app(t, ns, "tags", env("TARGET", "new"), revisionName("new"),
		traffic(tagged("stable", pinned("tags-old", 100)), tagged("next", latest(0)))))
	base := service.Status.URL
	stable, next := strings.Replace(base, "tags.", "stable-tags.", 1), strings.Replace(base, "tags.", "next-tags.", 1)
	want := []servingv1.TrafficTarget{tagged("stable", pinned("tags-old", 100)), tagged("next", latest(0))}
	want[0].URL, want[1].URL, want[1].RevisionName = stable, next, "tags-new"
	if diff := cmp.Diff(want, service.Status.Traffic); diff != "" {
		t.Errorf("status.traffic (-want +got):\n%s", diff)
	}
	for url, want := range map[string]string{base: "old", stable: "old", next: "new"} {
		if got := shared.mustGet(t, url); got != "Hello "+want+"!\n" {
			t.Errorf("%s answers %q, want %s", url, got, want)
		}
	}
	for tag, want := range map[string]string{"next": "new", "stable": "old", "none": "old"} {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, base, nil)
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Knative-Serving-Tag", tag)
		if a, err := shared.do(request); err != nil || a.body != "Hello "+want+"!\n" {
			t.Errorf("with the header for %s: %+v, %v, want %s", tag, a, err, want)
		}
	}

	shared.apply(t, app(t, ns, "tags", env("TARGET", "new"), revisionName("new"), traffic(latest(100))))
	harness.Eventually(t, "the tags are unknown", func() error {
		for _, url := range []string{stable, next} {
			if a, err := shared.get(t.Context(), url); err != nil || a.code != http.StatusNotFound {
				return fmt.Errorf("%s: %+v, %w", url, a, err)
			}
		}
		return nil
	})
	if got := shared.mustGet(t, base); got != "Hello new!\n" {
		t.Errorf("at the end %q answers", got)
	}
}

// TestTrafficIsChecked checks that invalid traffic is rejected (serving 10.2-3, 10.2-4, 10.2-8 to 10.2-10).
func TestTrafficIsChecked(t *testing.T) {
	t.Parallel()
	ns := namespace()
	for name, test := range map[string]struct {
		traffic []servingv1.TrafficTarget
		field   string
	}{
		"no-share":   {[]servingv1.TrafficTarget{latest(0)}, "spec.traffic"},
		"too-little": {[]servingv1.TrafficTarget{latest(60), pinned("x-1", 30)}, "spec.traffic"},
		"too-much":   {[]servingv1.TrafficTarget{latest(60), pinned("x-1", 50)}, "spec.traffic"},
		"url":        {[]servingv1.TrafficTarget{{LatestRevision: ptr.To(true), Percent: ptr.To[int64](100), URL: "http://example.com"}}, "spec.traffic[0].url"},
		"not-latest": {[]servingv1.TrafficTarget{{LatestRevision: ptr.To(false), Percent: ptr.To[int64](100)}}, "spec.traffic[0].latestRevision"},
		"both":       {[]servingv1.TrafficTarget{{LatestRevision: ptr.To(true), RevisionName: "x-1", Percent: ptr.To[int64](100)}}, "spec.traffic[0].latestRevision"},
	} {
		_, err := shared.Knative.ServingV1().Services(ns).Create(t.Context(), app(t, ns, name, traffic(test.traffic...)), metav1.CreateOptions{})
		if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), test.field) {
			t.Errorf("%s: %v, want an error of %s", name, err, test.field)
		}
	}
}

// TestMissingRevision checks that a missing Revision is reported while the last valid traffic assignment serves (serving 6-6,
// 9.3.3-1, 9.3.3-3, 9.3.3-4, 10.2-1).
func TestMissingRevision(t *testing.T) {
	t.Parallel()
	ns := namespace()
	address := shared.deploy(t, app(t, ns, "missing", revisionName("one"))).Status.URL
	shared.apply(t, app(t, ns, "missing", revisionName("one"), traffic(pinned("missing-two", 100))))
	shared.until(t, ns, "missing", "reports the missing Revision", func(s *servingv1.Service) error {
		if len(s.Status.Traffic) != 1 || s.Status.Traffic[0].RevisionName != "missing-one" {
			return fmt.Errorf("traffic %+v", s.Status.Traffic)
		}
		return errors.Join(
			condition(s, &s.Status.Status, servingv1.ServiceConditionRoutesReady, corev1.ConditionFalse, "RevisionMissing"),
			condition(s, &s.Status.Status, duckv1.ConditionReady, corev1.ConditionFalse, "RevisionMissing"))
	})
	eventually(t, shared.Knative.ServingV1().Routes(ns), "missing", "reports the missing Revision", func(r *servingv1.Route) error {
		return condition(r, &r.Status.Status, servingv1.RouteConditionAllTrafficAssigned, corev1.ConditionFalse, "RevisionMissing")
	})
	if got := shared.mustGet(t, address); got != "Hello World!\n" {
		t.Errorf("the previously assigned Revision answers %q", got)
	}
	// Once the Revision exists, it receives the traffic.
	shared.deploy(t, app(t, ns, "missing", env("TARGET", "two"), revisionName("two"), traffic(pinned("missing-two", 100))))
	if got := shared.mustGet(t, address); got != "Hello two!\n" {
		t.Errorf("the formerly missing Revision answers %q", got)
	}
}

// TestGradualRollout checks that a gradual rollout moves the share of the latest Revision step by step, in two targets that
// together keep the share, and is not ready meanwhile (serving 6-7, 6-13, 8-6, 9.3.3-10).
func TestGradualRollout(t *testing.T) {
	t.Parallel()
	// A stalled server skips the steps that it is late for.
	const duration = 15 * time.Second
	ns := namespace()
	client := shared.Knative.ServingV1()
	slowly := object(func(s *servingv1.Service) {
		s.Annotations = map[string]string{servingv1.RolloutDurationAnnotationKey: duration.String()}
	})
	address := shared.deploy(t, app(t, ns, "gradual", slowly, scaling("min-scale", "1"))).Status.URL
	watched, err := client.Routes(ns).Watch(t.Context(), metav1.ListOptions{ResourceVersion: read(t, client.Routes(ns), "gradual").ResourceVersion})
	if err != nil {
		t.Fatal(err)
	}
	defer watched.Stop()
	shared.apply(t, app(t, ns, "gradual", env("TARGET", "new"), scaling("min-scale", "1")))

	timeout := time.After(4 * duration)
	var shares []int64
	var began time.Time
	for len(shares) == 0 || shares[len(shares)-1] < 100 {
		select {
		case <-timeout:
			t.Fatalf("the rollout has not ended, its steps were %v", shares)
		case event := <-watched.ResultChan():
			route, ok := event.Object.(*servingv1.Route)
			if !ok {
				t.Fatalf("the watch ended with %+v", event)
			}
			share, sum := int64(0), int64(0)
			for _, target := range route.Status.Traffic {
				sum += *target.Percent
				if target.RevisionName == "gradual-00002" {
					share = *target.Percent
				}
			}
			if sum != 100 {
				t.Fatalf("the shares sum to %d: %+v", sum, route.Status.Traffic)
			}
			if share == 0 || len(shares) > 0 && share == shares[len(shares)-1] {
				continue
			}
			if len(shares) == 0 {
				began = time.Now()
			}
			shares = append(shares, share)
			if share == 100 {
				break
			}
			if len(route.Status.Traffic) != 2 {
				t.Errorf("at %d %%: %+v", share, route.Status.Traffic)
			}
			if err := condition(route, &route.Status.Status, servingv1.RouteConditionIngressReady, corev1.ConditionUnknown, "RolloutInProgress"); err != nil {
				t.Error(err)
			}
			if err := condition(route, &route.Status.Status, duckv1.ConditionReady, corev1.ConditionUnknown, "RolloutInProgress"); err != nil {
				t.Error(err)
			}
		}
	}
	// The first step may be observed late.
	if took := time.Since(began); took < duration/2 {
		t.Errorf("the rollout took %s, want %s", took, duration)
	}
	if len(shares) < 4 || shares[0] != 1 {
		t.Errorf("the steps were %v, want some, from 1 to 100", shares)
	}
	for i := range len(shares) - 1 {
		if shares[i] >= shares[i+1] {
			t.Errorf("the steps were %v, want increasing ones", shares)
		}
	}
	service := shared.ready(t, ns, "gradual")
	want := latest(100)
	want.RevisionName = "gradual-00002"
	if diff := cmp.Diff([]servingv1.TrafficTarget{want}, service.Status.Traffic); diff != "" {
		t.Errorf("status.traffic in the end (-want +got):\n%s", diff)
	}
	if got := shared.mustGet(t, address); got != "Hello new!\n" {
		t.Errorf("at the end %q answers", got)
	}
}

// TestClusterLocal checks that a cluster-local Service has a cluster-local name and no public one, and that removing the label
// adds the public one (serving 8-3, 9.1.3-6 to 9.1.3-9).
func TestClusterLocal(t *testing.T) {
	t.Parallel()
	ns := namespace()
	service := shared.deploy(t, app(t, ns, "inner", object(func(s *servingv1.Service) {
		s.Labels = map[string]string{servingv1.VisibilityLabelKey: servingv1.VisibilityClusterLocal}
	})))
	inner := service.Status.URL
	if host := hostOf(t, inner); host != "inner."+ns+".svc.cluster.local" || service.Status.Address == nil || service.Status.Address.URL != inner {
		t.Errorf("the URL is %s, the address %+v", inner, service.Status.Address)
	}
	shared.mustGet(t, inner)
	public := strings.Replace(inner, ".svc.cluster.local", ".localhost", 1)
	if a, err := shared.get(t.Context(), public); err != nil || a.code != http.StatusNotFound {
		t.Errorf("by its public name: %+v, %v, want 404", a, err)
	}

	harness.Edit(t, shared.Knative.ServingV1().Services(ns), "inner", func(s *servingv1.Service) { delete(s.Labels, servingv1.VisibilityLabelKey) })
	shared.until(t, ns, "inner", "has a public URL", func(s *servingv1.Service) error {
		if s.Status.URL != public {
			return fmt.Errorf("status %+v", s.Status)
		}
		return isReady(s, &s.Status.Status)
	})
	shared.mustGet(t, public)
	shared.mustGet(t, inner)
}

// TestClusterDomain checks that the cluster-local address of a Route is under the domain of --cluster-domain, and serves there
// only (serving 8-3).
func TestClusterDomain(t *testing.T) {
	t.Parallel()
	s := start(t, t.TempDir(), "--cluster-domain=corp.example")
	service := s.deploy(t, app(t, "default", "inner", object(func(s *servingv1.Service) {
		s.Labels = map[string]string{servingv1.VisibilityLabelKey: servingv1.VisibilityClusterLocal}
	})))
	route, err := s.Knative.ServingV1().Routes("default").Get(t.Context(), "inner", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	address := route.Status.URL
	if host := hostOf(t, address); host != "inner.default.svc.corp.example" || route.Status.Address == nil || route.Status.Address.URL != address || service.Status.URL != address {
		t.Errorf("Route %q, address %+v, Service %q, want host inner.default.svc.corp.example", address, route.Status.Address, service.Status.URL)
	}
	s.mustGet(t, address)
	other := strings.Replace(address, "corp.example", "cluster.local", 1)
	if a, err := s.get(t.Context(), other); err != nil || a.code != http.StatusNotFound {
		t.Errorf("%s: %+v, %v, want 404", other, a, err)
	}
}

// TestHostnameConflict checks that a host name belongs to the older of two Routes, and that the other one reports the conflict
// until the name is free (serving 8-3).
func TestHostnameConflict(t *testing.T) {
	t.Parallel()
	ns := namespace()
	client := shared.Knative.ServingV1()
	// Tag b of Route c has the name of Route b-c.
	shared.deploy(t, app(t, ns, "b-c", env("TARGET", "whole")))
	eventually(t, client.Services(ns), "b-c", "is older by at least a second, the precision of creation times", func(s *servingv1.Service) error {
		if age := time.Since(s.CreationTimestamp.Time); age < time.Second {
			return fmt.Errorf("it is %s old", age)
		}
		return nil
	})
	shared.apply(t, app(t, ns, "c", env("TARGET", "tag"), traffic(tagged("b", latest(100)))))
	shared.until(t, ns, "c", "names the owner of the host name", func(s *servingv1.Service) error {
		err := condition(s, &s.Status.Status, duckv1.ConditionReady, corev1.ConditionFalse, "HostnameConflict")
		if err == nil && !strings.Contains(s.Status.Conditions.Get(duckv1.ConditionReady).Message, ns+"/b-c") {
			return fmt.Errorf("the message is %q", s.Status.Conditions.Get(duckv1.ConditionReady).Message)
		}
		if err == nil && len(s.Status.Traffic) == 0 {
			return errors.New("nothing is assigned yet")
		}
		return err
	})
	gateway, err := url.Parse(shared.Gateway)
	if err != nil {
		t.Fatal(err)
	}
	disputed := "http://b-c." + ns + ".localhost:" + gateway.Port()
	if got := shared.mustGet(t, disputed); got != "Hello whole!\n" {
		t.Errorf("the older Route's name answers %q", got)
	}
	if got := shared.mustGet(t, "http://c."+ns+".localhost:"+gateway.Port()); got != "Hello tag!\n" {
		t.Errorf("the other Route's own name answers %q", got)
	}
	if err := client.Services(ns).Delete(t.Context(), "b-c", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	shared.ready(t, ns, "c")
	if got := shared.mustGet(t, disputed); got != "Hello tag!\n" {
		t.Errorf("the free name answers %q", got)
	}
}

// TestKubectlColumns checks the columns of kubectl get.
func TestKubectlColumns(t *testing.T) {
	t.Parallel()
	ns := namespace()
	site := shared.newSiteIn(t, ns, "columns", instances("1"))
	site.untilScale(t, 1)
	kubectl := harness.NewKubectl(t, shared.Kubeconfig, ns)
	address := regexp.QuoteMeta(site.url)
	for resource, want := range map[string]string{
		"ksvc": `^NAME\s+URL\s+LATESTCREATED\s+LATESTREADY\s+READY\s+REASON\ncolumns\s+` + address + `\s+columns-00001\s+columns-00001\s+True\s+\n$`,
		"cfg":  `^NAME\s+LATESTCREATED\s+LATESTREADY\s+READY\s+REASON\ncolumns\s+columns-00001\s+columns-00001\s+True\s+\n$`,
		"rev":  `^NAME\s+CONFIG NAME\s+GENERATION\s+READY\s+REASON\s+ACTUAL REPLICAS\s+DESIRED REPLICAS\ncolumns-00001\s+columns\s+1\s+True\s+1\s+1\n$`,
		"rt":   `^NAME\s+URL\s+READY\s+REASON\ncolumns\s+` + address + `\s+True\s+\n$`,
	} {
		if got := kubectl.Must(t, "", "get", resource); !regexp.MustCompile(want).MatchString(got) {
			t.Errorf("kubectl get %s does not match %s:\n%s", resource, want, got)
		}
	}
}
