package aggregated

import (
	stdcontext "context"
	"fmt"
	"net/http"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// TestValidatingWebhook checks that a webhook of the host rejects objects of every kind (P7).
func TestValidatingWebhook(t *testing.T) {
	t.Parallel()
	ns := host.Namespace(t, "webhook", nil)
	for _, kind := range harness.Kinds() {
		registerValidating(t, ns, rule(kind.Group, kind.Resource, admissionregistrationv1.Create),
			func(_ stdcontext.Context, r *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
				if r.Name == "refused" {
					return deny("not this " + r.Kind.Kind)
				}
				return allow()
			})
	}
	for _, kind := range harness.Kinds() {
		creator := host.Admin
		if kind.Kind == "Revision" {
			creator = controllers(t)
		}
		refused := kind.Object(ns, "refused")
		within(t, rediscovery, "the webhook is called for "+kind.Resource, func() error {
			if response := post(t, creator, refused, "dryRun=All"); response.Code != http.StatusForbidden {
				return fmt.Errorf("code %d: %.500s", response.Code, response.Body)
			}
			return nil
		})
		wantStatus(t, post(t, creator, refused), http.StatusForbidden, metav1.StatusReasonForbidden,
			`admission webhook "validate.example.com" denied the request: not this `+kind.Kind)
		wantCode(t, post(t, creator, kind.Object(ns, "accepted")), http.StatusCreated)
	}
}

// TestMutatingWebhook checks that a webhook of the host changes objects, and that the result is validated (P7).
func TestMutatingWebhook(t *testing.T) {
	t.Parallel()
	ns := host.Namespace(t, "mutate", nil)
	registerMutating(t, ns, rule("eventing.knative.dev", "triggers", admissionregistrationv1.Create),
		func(_ stdcontext.Context, r *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
			broker := "changed"
			if r.Name == "broken" {
				broker = ""
			}
			return &admissionv1.AdmissionResponse{
				Allowed:   true,
				PatchType: ptr.To(admissionv1.PatchTypeJSONPatch),
				Patch:     fmt.Appendf(nil, `[{"op":"replace","path":"/spec/broker","value":%q}]`, broker),
			}
		})
	trigger := harness.KindOf("Trigger").Object(ns, "hello")
	within(t, rediscovery, "the webhook changes objects", func() error {
		created := post(t, host.Admin, trigger, "dryRun=All").Object(t)
		if broker := created.Object["spec"].(map[string]any)["broker"]; broker != "changed" {
			return fmt.Errorf("spec.broker is %v", broker)
		}
		return nil
	})
	trigger.SetName("broken")
	wantCause(t, wantStatus(t, post(t, host.Admin, trigger), http.StatusUnprocessableEntity, metav1.StatusReasonInvalid), "spec.broker", "")
}

// TestValidatingAdmissionPolicy checks that a policy of the host rejects objects (P7).
func TestValidatingAdmissionPolicy(t *testing.T) {
	t.Parallel()
	ns := host.Namespace(t, "policy", nil)
	validatePolicy(t, ns, rule("serving.knative.dev", "services", admissionregistrationv1.Create, admissionregistrationv1.Update),
		"object.spec.template.spec.containerConcurrency > 0", "concurrency must be limited")
	service := harness.KindOf("Service").Object(ns, "hello")
	within(t, rediscovery, "the policy is in effect", func() error {
		if response := post(t, host.Admin, fresh(service), "dryRun=All"); response.Code != http.StatusUnprocessableEntity {
			return fmt.Errorf("code %d: %.500s", response.Code, response.Body)
		}
		return nil
	})
	wantStatus(t, post(t, host.Admin, service), http.StatusUnprocessableEntity, metav1.StatusReasonInvalid,
		"ValidatingAdmissionPolicy 'test-"+ns+"'", "denied request: concurrency must be limited")
	setNested(t, service, int64(1), "spec", "template", "spec", "containerConcurrency")
	created := post(t, host.Admin, service).Object(t)
	wantStatus(t, patch(t, host.Admin, pathOf(created), `{"spec":{"template":{"spec":{"containerConcurrency":0}}}}`),
		http.StatusUnprocessableEntity, metav1.StatusReasonInvalid, "concurrency must be limited")
}

// TestMutatingAdmissionPolicy checks that a policy of the host changes objects (P7).
func TestMutatingAdmissionPolicy(t *testing.T) {
	t.Parallel()
	ns := host.Namespace(t, "mutation", nil)
	mutatePolicy(t, ns, rule("messaging.knative.dev", "channels", admissionregistrationv1.Create),
		`Object{metadata: Object.metadata{labels: {"policy": "fired"}}}`)
	channel := harness.KindOf("Channel").Object(ns, "orders")
	within(t, rediscovery, "the policy is in effect", func() error {
		response := post(t, host.Admin, channel, "dryRun=All")
		if response.Code == http.StatusServiceUnavailable {
			// The library needs the OpenAPI document of the kinds from the host, and polls for it every 5 s.
			return fmt.Errorf("%s", response.Body)
		}
		if label := response.Object(t).GetLabels()["policy"]; label != "fired" {
			return fmt.Errorf("the label is %q", label)
		}
		return nil
	})
}
