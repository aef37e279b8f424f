package serving

import (
	"context"
	"errors"
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// TestKilledDuringRollout checks that a server that is killed at any point of a rollout resumes it: the result is the same, no
// Revision is created twice and no process is orphaned (serving 7.2-1, 7.2-2, 7.2-7).
func TestKilledDuringRollout(t *testing.T) {
	t.Parallel()
	const ns, name = "default", "rollout"
	dir := t.TempDir()
	s := start(t, dir)
	var revisions []string
	for i, point := range []struct {
		name string
		// reached returns an error until the rollout reaches the point.
		reached func(s *server, revision string) error
	}{
		{"the Service is stored", func(*server, string) error { return nil }},
		{"the Configuration has the template", func(s *server, revision string) error {
			configuration, err := s.Knative.ServingV1().Configurations(ns).Get(t.Context(), name, metav1.GetOptions{})
			if err == nil && configuration.Spec.Template.Spec.Containers[0].Env[0].Value != revision {
				return errors.New("it has the previous one")
			}
			return err
		}},
		{"the Revision is stored", func(s *server, revision string) error {
			_, err := s.Knative.ServingV1().Revisions(ns).Get(t.Context(), revision, metav1.GetOptions{})
			return err
		}},
		{"the Revision is ready", func(s *server, revision string) error {
			r, err := s.Knative.ServingV1().Revisions(ns).Get(t.Context(), revision, metav1.GetOptions{})
			if err != nil {
				return err
			}
			return isReady(r, &r.Status.Status)
		}},
		{"the Route has the Revision", func(s *server, revision string) error {
			r, err := s.Knative.ServingV1().Routes(ns).Get(t.Context(), name, metav1.GetOptions{})
			if err == nil && (len(r.Status.Traffic) != 1 || r.Status.Traffic[0].RevisionName != revision) {
				return fmt.Errorf("traffic %+v", r.Status.Traffic)
			}
			return err
		}},
	} {
		revision := fmt.Sprintf("%s-%05d", name, i+1)
		revisions = append(revisions, revision)
		s.apply(t, app(t, ns, name, env("TARGET", revision)))
		harness.Eventually(t, point.name, func() error { return point.reached(s, revision) })
		s.Kill()
		s = start(t, dir)

		service := s.ready(t, ns, name)
		want := latest(100)
		want.RevisionName = revision
		if diff := cmp.Diff([]servingv1.TrafficTarget{want}, service.Status.Traffic); diff != "" {
			t.Errorf("killed when %s: status.traffic (-want +got):\n%s", point.name, diff)
		}
		if got := s.mustGet(t, service.Status.URL); got != "Hello "+revision+"!\n" {
			t.Errorf("killed when %s: it answers %q", point.name, got)
		}
		s.mustHaveRevisions(t, ns, revisions...)
		s.untilProcessesAreKnown(t, dir)
	}
	if err := s.Knative.ServingV1().Services(ns).Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	s.removed(t, "")
	harness.Eventually(t, "no process remains", func() error {
		if left := s.processes(t, dir); len(left) > 0 {
			return fmt.Errorf("processes %v run", left)
		}
		return nil
	})
}

// untilProcessesAreKnown waits until the number of processes equals the number in the Revisions' statuses.
func (s *server) untilProcessesAreKnown(t testing.TB, dataDir string) {
	t.Helper()
	harness.Eventually(t, "as many processes run as the Revisions report", func() error {
		list, err := s.Knative.ServingV1().Revisions("").List(t.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		var known int32
		for i := range list.Items {
			known += ptr.Deref(list.Items[i].Status.ActualReplicas, 0)
		}
		if found := s.processes(t, dataDir); len(found) != int(known) {
			return fmt.Errorf("%d are known, processes %v run", known, found)
		}
		return nil
	})
}

// scaleInterval is the time that a changed number of processes must last before it is written to a Revision's status.
const scaleInterval = time.Second

// TestNothingIsWrittenWithoutChange checks that neither a restart of the server nor applying an unchanged object causes writes.
func TestNothingIsWrittenWithoutChange(t *testing.T) {
	t.Parallel()
	const ns = "default"
	dir := t.TempDir()
	config := writeSettings(t, map[string]map[string]string{"config-autoscaler": {"allow-zero-initial-scale": "true"}})
	s := start(t, dir, "--config-dir", config.dir)
	manifests := map[string]string{}
	for name, template := range map[string]string{
		"running": `metadata: {annotations: {autoscaling.knative.dev/min-scale: "1"}}, spec: {containers: [{image: ko.local/app, command: [%s]}]}`,
		"waiting": `metadata: {annotations: {autoscaling.knative.dev/initial-scale: "0"}}, spec: {containers: [{image: ko.local/app, command: [%s]}]}`,
		"broken":  `metadata: {annotations: {}}, spec: {containers: [{image: ko.local/app, command: [%s], env: [{name: START_FAIL, value: "3:broken"}]}]}`,
	} {
		manifests[name] = fmt.Sprintf("apiVersion: serving.knative.dev/v1\nkind: Service\nmetadata: {name: %s, labels: {a: b}, annotations: {c: d}}\nspec: {template: {"+template+"}}\n",
			name, harness.AppBinary(t))
	}
	apply := func(kubectl *harness.Kubectl) {
		for _, manifest := range manifests {
			kubectl.Must(t, manifest, "apply", "-f", "-")
		}
	}
	apply(harness.NewKubectl(t, s.Kubeconfig, ns))
	// The objects have settled when all expected changes happened.
	s.ready(t, ns, "running")
	s.ready(t, ns, "waiting")
	s.until(t, ns, "broken", "has failed", func(service *servingv1.Service) error {
		return condition(service, &service.Status.Status, "Ready", "False", "RevisionFailed")
	})
	for name, want := range map[string]int32{"running-00001": 1, "waiting-00001": 0} {
		eventually(t, s.Knative.ServingV1().Revisions(ns), name, "tells its scale", func(r *servingv1.Revision) error {
			if got := ptr.Deref(r.Status.ActualReplicas, -1); got != want || ptr.Deref(r.Status.DesiredReplicas, -1) != want {
				return fmt.Errorf("%d instances", got)
			}
			return nil
		})
	}
	settled := s.settled(t)
	const running = "Revision default/running-00001"
	// URLs contain the port, so it must not change.
	_, port, err := net.SplitHostPort(s.gateway)
	if err != nil {
		t.Fatal(err)
	}

	for _, end := range []string{"stopped", "killed"} {
		if end == "killed" {
			s.Kill()
		} else if err := s.Stop(); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		s = start(t, dir, "--config-dir", config.dir, "--gateway-port", port)
		s.mustGet(t, s.ready(t, ns, "running").Status.URL)
		took := time.Since(began)
		after := s.settled(t)
		if took > scaleInterval && after[running] != settled[running] {
			t.Logf("running-00001 may be written: it had no process for up to %s, and a scale is written after %s", took, scaleInterval)
			settled[running] = after[running]
		}
		if diff := cmp.Diff(settled, after); diff != "" {
			t.Errorf("after the server was %s (-before +after):\n%s", end, diff)
		}
	}
	apply(harness.NewKubectl(t, s.Kubeconfig, ns))
	if diff := cmp.Diff(settled, s.settled(t)); diff != "" {
		t.Errorf("after the same was applied (-before +after):\n%s", diff)
	}
}

// storeRevision returns the last revision of the server's store.
func (s *server) storeRevision(ctx context.Context) (string, error) {
	list, err := s.Knative.ServingV1().Services("default").List(ctx, metav1.ListOptions{Limit: 1})
	if err != nil {
		return "", err
	}
	return list.ResourceVersion, nil
}

// settled waits until no writes have occurred for some time, and returns the versions of the objects of Serving. A slow machine writes the
// Events of many objects for minutes.
func (s *server) settled(t testing.TB) map[string]string {
	t.Helper()
	const quiet = 2 * time.Second
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	var last string
	var since, checked time.Time
	err := harness.Poll(ctx, func() error {
		revision, err := s.storeRevision(t.Context())
		if err != nil {
			return err
		}
		now := time.Now()
		// A long time between two checks shows that a process was stalled, so writes may be pending.
		if revision != last || now.Sub(checked) > quiet/4 {
			last, since = revision, now
		}
		checked = now
		if age := now.Sub(since); age < quiet {
			return fmt.Errorf("revision %s is %s old", last, age)
		}
		return nil
	})
	if err != nil {
		t.Fatalf("wait until no more writes occur: %v", err)
	}
	return s.mustVersions(t, "")
}
