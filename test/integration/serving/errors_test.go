package serving

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// TestMistakes checks that Revision, Configuration and Service report a mistake of the user with its cause, and that correcting
// it makes the Service ready (serving 6-6, 6-12, 7.1-6, 7.2-5).
func TestMistakes(t *testing.T) {
	for name, test := range map[string]struct {
		mistake option
		// reason is the reason of the Revision, message a part of the messages of all three.
		reason, message string
	}{
		"no-command": {
			mistake: command(),
			reason:  "ContainerMissing",
			message: "Standalone runs the command and args of a container as a process of this machine, not its image: set spec.template.spec.containers[0].command.",
		},
		"not-found": {
			mistake: command("/no/such/program"),
			reason:  "RunContainerError",
			message: "Starting /no/such/program failed:",
		},
		"exits": {
			mistake: env("START_FAIL", "3:the licence has expired"),
			reason:  "ExitCode3",
			message: "Container failed with: the licence has expired (exit code 3)",
		},
		"other-port": {
			mistake: func(s *servingv1.Service) {
				container := &s.Spec.Template.Spec.Containers[0]
				container.Command = append([]string{"env", "PORT=0"}, container.Command...)
				metav1.SetMetaDataAnnotation(&s.Spec.Template.ObjectMeta, servingv1.ProgressDeadlineAnnotationKey, "1s")
			},
			reason:  "ProgressDeadlineExceeded",
			message: "The revision did not become ready within 1s (serving.knative.dev/progress-deadline).",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ns := namespace()
			client := shared.Knative.ServingV1()
			shared.apply(t, app(t, ns, name, test.mistake))
			applied := time.Now()
			tells := func(object metav1.Object, status *duckv1.Status, reason string) error {
				if err := condition(object, status, duckv1.ConditionReady, corev1.ConditionFalse, reason); err != nil {
					return err
				}
				if message := status.Conditions.Get(duckv1.ConditionReady).Message; !strings.Contains(message, test.message) {
					return fmt.Errorf("the message is %q", message)
				}
				return nil
			}
			harness.Eventually(t, "the mistake is reported", func() error {
				revision, err := client.Revisions(ns).Get(t.Context(), name+"-00001", metav1.GetOptions{})
				if err != nil {
					return err
				}
				configuration, err := client.Configurations(ns).Get(t.Context(), name, metav1.GetOptions{})
				if err != nil {
					return err
				}
				service, err := client.Services(ns).Get(t.Context(), name, metav1.GetOptions{})
				if err != nil {
					return err
				}
				return errors.Join(
					tells(revision, &revision.Status.Status, test.reason),
					tells(configuration, &configuration.Status.Status, "RevisionFailed"),
					tells(service, &service.Status.Status, "RevisionFailed"))
			})
			t.Logf("reported %s after it was applied", time.Since(applied).Round(time.Millisecond))
			if got := shared.mustGet(t, shared.deploy(t, app(t, ns, name)).Status.URL); got != "Hello World!\n" {
				t.Errorf("corrected, it answers %q", got)
			}
		})
	}
}
