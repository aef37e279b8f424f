package plugin

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	eventingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1"
	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

func broker(namespace, name string) *eventingv1.Broker {
	return &eventingv1.Broker{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
}

// TestLogs prints the lines of a Service, and continues with the lines of later Revisions until the Service is deleted.
func TestLogs(t *testing.T) {
	const namespace = "logs"
	shared.shop(t, namespace)
	kubectl := harness.NewPlugin(t, shared.Kubeconfig, namespace)
	// line matches the report of an event by an instance of a Revision.
	line := func(revision, id string) *regexp.Regexp {
		return regexp.MustCompile(`(?m)^\[` + revision + `\S*\] .*"` + id + `"`)
	}
	followed := kubectl.Start(t, "logs", "service", "hello", "-f")
	if _, err := followed.WaitForOutput(line("hello-00001", "1001")); err != nil {
		t.Fatal(err)
	}
	fresh := kubectl.Start(t, "logs", "service/hello", "-f", "--tail", "0")
	for _, args := range [][]string{{"logs", "service", "hello"}, {"logs", "hello", "--since", "1h", "--tail", "100"}, {"logs", "revision", "hello-00001"}} {
		if text := succeeds(t, kubectl, args...); !line("hello-00001", "1001").MatchString(text) {
			t.Errorf("%q: no line of the event in:\n%s", args, text)
		}
	}
	result := kubectl.Run(t, "logs", "service", "hello", "-c", "none")
	if result.Code != 1 || !strings.Contains(result.Stderr, "parameter 'container' must be one of") {
		t.Errorf("an unknown container: %+v", result)
	}

	services := shared.Knative.ServingV1().Services(namespace)
	harness.Edit(t, services, "hello", func(s *servingv1.Service) {
		s.Spec.Template.Annotations = map[string]string{"example.com/change": "1"}
	})
	harness.Eventually(t, "the second Revision has the traffic", func() error {
		service, err := services.Get(t.Context(), "hello", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if traffic := service.Status.Traffic; len(traffic) != 1 || traffic[0].RevisionName != "hello-00002" {
			return fmt.Errorf("it is %+v", traffic)
		}
		return nil
	})
	// The second process has printed nothing, so that it may not have begun to follow.
	harness.Eventually(t, "both print an event of the second Revision", func() error {
		shared.send(t, namespace, "1003", shopType)
		for _, process := range []*harness.Process{followed, fresh} {
			if !line("hello-00002", "1003").MatchString(process.Log()) {
				return fmt.Errorf("no line in:\n%s", process.Log())
			}
		}
		return nil
	})
	if err := services.Delete(t.Context(), "hello", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, process := range []*harness.Process{followed, fresh} {
		if code, err := process.ExitCode(); err != nil || code != 0 {
			t.Errorf("after the end of the Service: exit code %d, %v\n%s", code, err, process.Log())
		}
	}
	if n := len(line("hello-00001", "1001").FindAllString(followed.Log(), -1)); n != 1 {
		t.Errorf("the line of the first event was printed %d times:\n%s", n, followed.Log())
	}
	if line("hello-00001", "1001").MatchString(fresh.Log()) {
		t.Errorf("--tail 0 printed an earlier line:\n%s", fresh.Log())
	}
}
