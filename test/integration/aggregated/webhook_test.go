package aggregated

import (
	stdcontext "context"
	"encoding/json"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// webhookTimeout is the maximum timeout of webhooks.
const webhookTimeout = 30 * time.Second

// answer is the response of a webhook; it may block until ctx is canceled.
type answer func(ctx stdcontext.Context, request *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse

// serveWebhook serves a webhook with TLS until the test ends and returns its client configuration.
func serveWebhook(t *testing.T, answer answer) admissionregistrationv1.WebhookClientConfig {
	t.Helper()
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var review admissionv1.AdmissionReview
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		review.Response = answer(r.Context(), review.Request)
		review.Response.UID = review.Request.UID
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(review)
	}))
	t.Cleanup(server.Close)
	return admissionregistrationv1.WebhookClientConfig{
		URL:      ptr.To(server.URL),
		CABundle: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}),
	}
}

// rule matches writes of a resource.
func rule(group, resource string, operations ...admissionregistrationv1.OperationType) admissionregistrationv1.RuleWithOperations {
	return admissionregistrationv1.RuleWithOperations{
		Operations: operations,
		Rule:       admissionregistrationv1.Rule{APIGroups: []string{group}, APIVersions: []string{"v1"}, Resources: []string{resource}},
	}
}

// in selects one namespace, which isolates the tests.
func in(namespace string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{"kubernetes.io/metadata.name": namespace}}
}

// registerValidating registers a validating webhook that all writes must pass, until the test ends.
func registerValidating(t *testing.T, namespace string, rule admissionregistrationv1.RuleWithOperations, answer answer) {
	t.Helper()
	configurations := host.Host.AdmissionregistrationV1().ValidatingWebhookConfigurations()
	created, err := configurations.Create(t.Context(), &admissionregistrationv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"},
		Webhooks: []admissionregistrationv1.ValidatingWebhook{{
			Name:                    "validate.example.com",
			ClientConfig:            serveWebhook(t, answer),
			Rules:                   []admissionregistrationv1.RuleWithOperations{rule},
			NamespaceSelector:       in(namespace),
			FailurePolicy:           ptr.To(admissionregistrationv1.Fail),
			SideEffects:             ptr.To(admissionregistrationv1.SideEffectClassNone),
			TimeoutSeconds:          ptr.To(int32(webhookTimeout / time.Second)),
			AdmissionReviewVersions: []string{"v1"},
		}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := configurations.Delete(context(), created.Name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
}

// registerMutating registers a mutating webhook until the test ends.
func registerMutating(t *testing.T, namespace string, rule admissionregistrationv1.RuleWithOperations, answer answer) {
	t.Helper()
	configurations := host.Host.AdmissionregistrationV1().MutatingWebhookConfigurations()
	created, err := configurations.Create(t.Context(), &admissionregistrationv1.MutatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"},
		Webhooks: []admissionregistrationv1.MutatingWebhook{{
			Name:                    "mutate.example.com",
			ClientConfig:            serveWebhook(t, answer),
			Rules:                   []admissionregistrationv1.RuleWithOperations{rule},
			NamespaceSelector:       in(namespace),
			FailurePolicy:           ptr.To(admissionregistrationv1.Fail),
			SideEffects:             ptr.To(admissionregistrationv1.SideEffectClassNone),
			TimeoutSeconds:          ptr.To(int32(webhookTimeout / time.Second)),
			AdmissionReviewVersions: []string{"v1"},
		}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := configurations.Delete(context(), created.Name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
}

func allow() *admissionv1.AdmissionResponse { return &admissionv1.AdmissionResponse{Allowed: true} }

func deny(message string) *admissionv1.AdmissionResponse {
	return &admissionv1.AdmissionResponse{Result: &metav1.Status{Message: message, Code: http.StatusForbidden, Reason: metav1.StatusReasonForbidden}}
}
