package aggregated

import (
	stdcontext "context"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

const notChecked = "the template was not checked against the host cluster"

// TestTemplateCoreValidation checks that a template is rejected if core validation of the host rejects its Pod. The causes are
// the host's, at the field paths of the template.
func TestTemplateCoreValidation(t *testing.T) {
	t.Parallel()
	ns := host.Namespace(t, "template", nil)
	for name, test := range map[string]struct {
		change       func(container map[string]any)
		field, cause string
	}{
		"huge pages alone": {
			func(c map[string]any) {
				c["resources"] = map[string]any{"limits": map[string]any{"hugepages-2Mi": "2Mi"}}
			},
			"spec.template.spec.containers[0].resources", "HugePages require cpu or memory",
		},
		"half a device": {
			func(c map[string]any) {
				c["resources"] = map[string]any{"limits": map[string]any{"example.com/gpu": "500m"}}
			},
			"spec.template.spec.containers[0].resources.limits[example.com/gpu]", "must be an integer",
		},
		"termination message policy": {
			func(c map[string]any) { c["terminationMessagePolicy"] = "Nonsense" },
			"spec.template.spec.containers[0].terminationMessagePolicy", "Nonsense",
		},
	} {
		for _, kind := range []string{"Service", "Configuration"} {
			t.Run(name+" "+kind, func(t *testing.T) {
				t.Parallel()
				bad := harness.KindOf(kind).Object(ns, strings.ToLower(strings.ReplaceAll(name, " ", "-")))
				good := bad.DeepCopy()
				test.change(container(bad))
				check := func(response *harness.Response) {
					t.Helper()
					wantCause(t, wantStatus(t, response, http.StatusUnprocessableEntity, metav1.StatusReasonInvalid), test.field, test.cause)
				}
				check(post(t, host.Admin, bad))
				check(post(t, host.Admin, bad, "dryRun=All"))
				check(put(t, host.Admin, bad))
				check(apply(t, host.Admin, bad))
				mustCreate(t, good)
				check(put(t, host.Admin, bad))
			})
		}
	}
}

// TestTemplatePodSecurity checks that a template is rejected if the Pod Security level of the namespace rejects it.
func TestTemplatePodSecurity(t *testing.T) {
	t.Parallel()
	ns := host.Namespace(t, "restricted", map[string]string{"pod-security.kubernetes.io/enforce": "restricted"})
	service := harness.KindOf("Service").Object(ns, "hello")
	container(service)["securityContext"] = map[string]any{"allowPrivilegeEscalation": true}
	status := wantStatus(t, post(t, host.Admin, service), http.StatusUnprocessableEntity, metav1.StatusReasonInvalid, `violates PodSecurity "restricted:latest"`)
	wantCause(t, status, "spec.template", "allowPrivilegeEscalation != false")
	// Unset fields are defaulted so that the level admits them.
	delete(container(service), "securityContext")
	response := post(t, host.Admin, service)
	wantCode(t, response, http.StatusCreated)
	if warnings := response.Header.Values("Warning"); len(warnings) > 0 {
		t.Errorf("got warnings %q, want none", warnings)
	}
}

// TestTemplatePolicy checks that a template is rejected if a policy of the host on Pods rejects it.
func TestTemplatePolicy(t *testing.T) {
	t.Parallel()
	ns := host.Namespace(t, "podpolicy", nil)
	validatePolicy(t, ns, rule("", "pods", admissionregistrationv1.Create),
		"object.spec.containers.all(c, c.image.startsWith('trusted.example.com/'))", "images must be trusted")
	service := harness.KindOf("Service").Object(ns, "hello")
	within(t, rediscovery, "the policy is in effect", func() error {
		if response := post(t, host.Admin, fresh(service), "dryRun=All"); response.Code == http.StatusCreated {
			return fmt.Errorf("the Service is accepted")
		}
		return nil
	})
	status := wantStatus(t, post(t, host.Admin, service), http.StatusUnprocessableEntity, metav1.StatusReasonInvalid)
	wantCause(t, status, "spec.template", "images must be trusted")
	container(service)["image"] = "trusted.example.com/hello"
	wantCode(t, post(t, host.Admin, service), http.StatusCreated)
}

// TestTemplateWebhook checks that a template is rejected if a webhook of the host on Pods rejects it.
func TestTemplateWebhook(t *testing.T) {
	t.Parallel()
	ns := host.Namespace(t, "podwebhook", nil)
	registerValidating(t, ns, rule("", "pods", admissionregistrationv1.Create),
		func(stdcontext.Context, *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
			return deny("no Pods today")
		})
	configuration := harness.KindOf("Configuration").Object(ns, "hello")
	within(t, rediscovery, "the webhook is registered", func() error {
		if response := post(t, host.Admin, fresh(configuration), "dryRun=All"); response.Code == http.StatusCreated {
			return fmt.Errorf("the Configuration is accepted")
		}
		return nil
	})
	status := wantStatus(t, post(t, host.Admin, configuration), http.StatusUnprocessableEntity, metav1.StatusReasonInvalid)
	wantCause(t, status, "spec.template", `admission webhook "validate.example.com" denied the request: no Pods today`)
}

// TestTemplateChanged checks that only changed templates cause a dry run.
func TestTemplateChanged(t *testing.T) {
	t.Parallel()
	ns := host.Namespace(t, "changed", nil)
	var asked atomic.Int32
	registerValidating(t, ns, rule("", "pods", admissionregistrationv1.Create),
		func(_ stdcontext.Context, r *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
			if r.DryRun == nil || !*r.DryRun {
				return deny("no Pod may be made for a template")
			}
			asked.Add(1)
			return allow()
		})
	service := harness.KindOf("Service").Object(ns, "hello")
	within(t, rediscovery, "the webhook is registered", func() error {
		post(t, host.Admin, fresh(service), "dryRun=All").Object(t)
		if asked.Load() == 0 {
			return fmt.Errorf("it is not")
		}
		return nil
	})
	asked.Store(0)
	mustCreate(t, fresh(service))
	path := pathOf(service)
	for _, step := range []struct {
		what, path, patch string
		want              int32
	}{
		{"nothing more", path, `{}`, 1},
		{"a label", path, `{"metadata":{"labels":{"a":"b"}}}`, 1},
		{"the traffic", path, `{"spec":{"traffic":[{"latestRevision":true,"percent":100,"tag":"now"}]}}`, 1},
		{"the status", path + "/status", `{"status":{"url":"http://hello.example.com"}}`, 1},
		{"the template", path, `{"spec":{"template":{"spec":{"serviceAccountName":"default"}}}}`, 2},
		{"the template's metadata", path, `{"spec":{"template":{"metadata":{"labels":{"a":"b"}}}}}`, 3},
	} {
		wantCode(t, patch(t, controllers(t), step.path, step.patch), http.StatusOK)
		if got := asked.Load(); got != step.want {
			t.Errorf("after a change of %s the host got %d dry runs in all, want %d", step.what, got, step.want)
		}
	}
	// Other tests register webhooks, each of which clears the cache of accepted templates.
	concurrency := 7
	harness.Eventually(t, "a change outside the Pod causes no dry run", func() error {
		before := asked.Load()
		concurrency++
		wantCode(t, patch(t, host.Admin, path, fmt.Sprintf(`{"spec":{"template":{"spec":{"containerConcurrency":%d}}}}`, concurrency)), http.StatusOK)
		if got := asked.Load(); got != before {
			return fmt.Errorf("the host got %d more dry runs", got-before)
		}
		return nil
	})
}

// TestTemplateSlowHost checks that the object is stored with a warning if the host does not respond within a second.
func TestTemplateSlowHost(t *testing.T) {
	t.Parallel()
	ns := host.Namespace(t, "slow", nil)
	registerValidating(t, ns, rule("", "pods", admissionregistrationv1.Create),
		func(ctx stdcontext.Context, _ *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
			<-ctx.Done()
			return allow()
		})
	within(t, rediscovery, "the host is slow", func() error {
		response := post(t, host.Admin, fresh(harness.KindOf("Service").Object(ns, "probe")), "dryRun=All")
		return wantWarning(response, notChecked)
	})
	started := time.Now()
	response := post(t, host.Admin, fresh(harness.KindOf("Service").Object(ns, "hello")))
	took := time.Since(started)
	wantCode(t, response, http.StatusCreated)
	if err := wantWarning(response, notChecked+": no response"); err != nil {
		t.Error(err)
	}
	if took < time.Second || took >= webhookTimeout {
		t.Errorf("the answer took %s, want a second, and not until the webhook times out after %s", took, webhookTimeout)
	}
	k := kubectl(t, ns)
	if result := k.Run(t, "", "patch", "ksvc", "hello", "--type=merge", "-p", `{"spec":{"template":{"spec":{"timeoutSeconds":7}}}}`); result.Code != 0 || !strings.Contains(result.Stderr, "Warning: "+notChecked) {
		t.Errorf("kubectl patch: %+v, want success with a warning", result)
	}
}

// TestTemplateTransientRejection checks that the object is stored with a warning if the host rejects its Pod for a transient
// reason: its ServiceAccount does not exist yet, or the quota of Pods is exhausted.
func TestTemplateTransientRejection(t *testing.T) {
	t.Parallel()
	ns := host.Namespace(t, "later", nil)
	early := setNested(t, harness.KindOf("Service").Object(ns, "early"), "later", "spec", "template", "spec", "serviceAccountName")
	response := post(t, host.Admin, early)
	wantCode(t, response, http.StatusCreated)
	if err := wantWarning(response, "the ServiceAccount 'later' does not exist yet"); err != nil {
		t.Error(err)
	}

	_, err := host.Host.CoreV1().ResourceQuotas(ns).Create(t.Context(), &corev1.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{Name: "pods"},
		Spec:       corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{corev1.ResourcePods: resource.MustParse("0")}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	crowded := harness.KindOf("Service").Object(ns, "crowded")
	within(t, rediscovery, "the quota is in effect", func() error {
		return wantWarning(post(t, host.Admin, fresh(crowded), "dryRun=All"), "the quota is currently exhausted")
	})
	wantCode(t, post(t, host.Admin, fresh(crowded)), http.StatusCreated)
}

// wantWarning returns an error unless the response has a warning that contains want.
func wantWarning(response *harness.Response, want string) error {
	for _, warning := range response.Header.Values("Warning") {
		if strings.Contains(warning, want) {
			return nil
		}
	}
	return fmt.Errorf("code %d, warnings %q, want one with %q: %.300s", response.Code, response.Header.Values("Warning"), want, response.Body)
}
