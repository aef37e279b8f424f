package serving

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// saying makes a container print lines before it starts the application.
func saying(c *corev1.Container, lines ...string) {
	c.Command = slices.Concat([]string{"/bin/sh", "-c", `printf '%s\n' ` + strings.Join(lines, " ") + `; exec "$@"`, "sh"}, c.Command)
}

// TestLog reads the log of a Revision by its subresource, like kubectl get --raw (serving 9.4.3-4).
func TestLog(t *testing.T) {
	t.Parallel()
	service := app(t, namespace(), "log", annotation("autoscaling.knative.dev/initial-scale", "1"))
	containers := &service.Spec.Template.Spec.Containers
	(*containers)[0].Name = "web"
	(*containers)[0].Ports = []corev1.ContainerPort{{ContainerPort: 8080}}
	saying(&(*containers)[0], "one", "two")
	side := corev1.Container{Name: "side", Image: "ko.local/side", Command: []string{"sleep", "infinity"}}
	saying(&side, "three", "four")
	*containers = append(*containers, side)
	revision := shared.deploy(t, service).Status.LatestReadyRevisionName

	kubectl := harness.NewKubectl(t, shared.Kubeconfig, "")
	path := servingv1.RevisionLogPath(service.Namespace, revision)
	said := func(query string) string {
		var lines []string
		for line := range strings.Lines(kubectl.Must(t, "", "get", "--raw", path+query)) {
			prefix, text, found := strings.Cut(strings.TrimSuffix(line, "\n"), "] ")
			instance, container, several := strings.Cut(strings.TrimPrefix(prefix, "["), " ")
			if !found || instance == "" || several == strings.Contains(query, "container=") {
				t.Errorf("%s: line %q does not name its origin", query, line)
			}
			lines = append(lines, strings.TrimSpace(container+" "+text))
		}
		// Containers start concurrently, in any order.
		slices.Sort(lines)
		return strings.Join(lines, ", ")
	}
	for query, want := range map[string]string{
		"":                           "side four, side three, web one, web two",
		"?tailLines=1":               "side four, web two",
		"?tailLines=0":               "",
		"?container=web":             "one, two",
		"?container=web&tailLines=1": "two",
		"?sinceSeconds=3600":         "side four, side three, web one, web two",
	} {
		harness.Eventually(t, "the log is complete", func() error {
			if got := said(query); got != want {
				return fmt.Errorf("%q has %q, want %q", query, got, want)
			}
			return nil
		})
	}
	for query, want := range map[string]string{
		"?tailLines=-1":   "parameter 'tailLines' must be a whole number of at least 0, not '-1'",
		"?sinceSeconds=0": "parameter 'sinceSeconds' must be a whole number of at least 1",
		"?follow=maybe":   "parameter 'follow' must be 'true' or 'false', not 'maybe'",
		"?container=none": `parameter 'container' must be one of ["web" "side"], not 'none'`,
		"?lines=1":        "unknown parameter 'lines'",
	} {
		kubectl.MustFail(t, want, "", "get", "--raw", path+query)
		if answer := shared.Do(t, harness.Request{Method: "GET", Path: path + query}); answer.Code != 400 {
			t.Errorf("%s: code %d, want 400", query, answer.Code)
		}
	}
	kubectl.MustFail(t, `revisions.serving.knative.dev "none" not found`, "", "get", "--raw", servingv1.RevisionLogPath(service.Namespace, "none"))
}
