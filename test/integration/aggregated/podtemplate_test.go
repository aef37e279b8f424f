package aggregated

import (
	stdcontext "context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

const (
	notChecked = "the template was not checked against the host cluster"
	// noResponse begins the warning of a write for which the host did not respond within a second.
	noResponse = notChecked + ": no response"
)

// unanswered reports whether a write was stored without a response of the host.
func unanswered(response *harness.Response) bool { return wantWarning(response, noResponse) == nil }

// checked repeats a write until the host checks its template. If the host does not respond within a second, the object is
// stored, and undo reverts that.
func checked(t *testing.T, write func() *harness.Response, undo func()) (response *harness.Response) {
	t.Helper()
	within(t, rediscovery, "the host checks the template", func() error {
		response = write()
		if !unanswered(response) {
			return nil
		}
		undo()
		return errors.New("it does not respond within a second")
	})
	return response
}

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
				check := func(write func() *harness.Response, undo func()) {
					t.Helper()
					wantCause(t, wantStatus(t, checked(t, write, undo), http.StatusUnprocessableEntity, metav1.StatusReasonInvalid), test.field, test.cause)
				}
				discard := func() { wantCode(t, remove(t, host.Admin, bad), http.StatusOK) }
				check(func() *harness.Response { return post(t, host.Admin, bad) }, discard)
				check(func() *harness.Response { return post(t, host.Admin, bad, "dryRun=All") }, func() {})
				check(func() *harness.Response { return put(t, host.Admin, bad) }, discard)
				check(func() *harness.Response { return apply(t, host.Admin, bad) }, discard)
				mustCreate(t, good)
				check(func() *harness.Response { return put(t, host.Admin, bad) }, func() { wantCode(t, put(t, host.Admin, good), http.StatusOK) })
			})
		}
	}
}

// posting returns functions that create and remove an object.
func posting(t *testing.T, obj *unstructured.Unstructured) (create func() *harness.Response, discard func()) {
	t.Helper()
	return func() *harness.Response { return post(t, host.Admin, obj) }, func() { wantCode(t, remove(t, host.Admin, obj), http.StatusOK) }
}

// TestTemplatePodSecurity checks that a template is rejected if the Pod Security level of the namespace rejects it.
func TestTemplatePodSecurity(t *testing.T) {
	t.Parallel()
	ns := host.Namespace(t, "restricted", map[string]string{"pod-security.kubernetes.io/enforce": "restricted"})
	service := harness.KindOf("Service").Object(ns, "hello")
	container(service)["securityContext"] = map[string]any{"allowPrivilegeEscalation": true}
	create, discard := posting(t, service)
	status := wantStatus(t, checked(t, create, discard), http.StatusUnprocessableEntity, metav1.StatusReasonInvalid, `violates PodSecurity "restricted:latest"`)
	wantCause(t, status, "spec.template", "allowPrivilegeEscalation != false")
	// Unset fields are defaulted so that the level admits them.
	delete(container(service), "securityContext")
	response := checked(t, create, discard)
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
		if response := post(t, host.Admin, fresh(service), "dryRun=All"); response.Code != http.StatusUnprocessableEntity {
			return fmt.Errorf("code %d: %.500s", response.Code, response.Body)
		}
		return nil
	})
	create, discard := posting(t, service)
	status := wantStatus(t, checked(t, create, discard), http.StatusUnprocessableEntity, metav1.StatusReasonInvalid)
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
		if response := post(t, host.Admin, fresh(configuration), "dryRun=All"); response.Code != http.StatusUnprocessableEntity {
			return fmt.Errorf("code %d: %.500s", response.Code, response.Body)
		}
		return nil
	})
	create, discard := posting(t, configuration)
	status := wantStatus(t, checked(t, create, discard), http.StatusUnprocessableEntity, metav1.StatusReasonInvalid)
	wantCause(t, status, "spec.template", `admission webhook "validate.example.com" denied the request: no Pods today`)
}

// dryRuns counts the dry runs that a webhook gets, by the mark that fresh sets in the template.
type dryRuns struct {
	mu     sync.Mutex
	counts map[string]int // guarded by mu
}

// add counts the dry run of a Pod.
func (d *dryRuns) add(r *admissionv1.AdmissionRequest) {
	var pod corev1.Pod
	if err := json.Unmarshal(r.Object.Raw, &pod); err != nil {
		return // it counts for no template
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.counts == nil {
		d.counts = map[string]int{}
	}
	for _, c := range pod.Spec.Containers {
		for _, variable := range c.Env {
			if variable.Name == freshVariable {
				d.counts[variable.Value]++
			}
		}
	}
}

// of returns the number of dry runs for the template of an object.
func (d *dryRuns) of(obj *unstructured.Unstructured) int {
	mark := container(obj)["env"].([]any)[0].(map[string]any)["value"].(string)
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.counts[mark]
}

// TestTemplateChanged checks that only changed templates cause a dry run.
func TestTemplateChanged(t *testing.T) {
	t.Parallel()
	ns := host.Namespace(t, "changed", nil)
	var asked dryRuns
	registerValidating(t, ns, rule("", "pods", admissionregistrationv1.Create),
		func(_ stdcontext.Context, r *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
			if r.DryRun == nil || !*r.DryRun {
				return deny("no Pod may be made for a template")
			}
			asked.add(r)
			return allow()
		})
	service := harness.KindOf("Service").Object(ns, "hello")
	within(t, rediscovery, "the webhook is registered", func() error {
		post(t, host.Admin, fresh(service), "dryRun=All").Object(t)
		if asked.of(service) == 0 {
			return fmt.Errorf("it is not")
		}
		return nil
	})
	path := pathOf(service)
	steps := []struct {
		what, path, patch string
		want              int
	}{
		{"nothing more", path, `{}`, 1},
		{"a label", path, `{"metadata":{"labels":{"a":"b"}}}`, 1},
		{"the traffic", path, `{"spec":{"traffic":[{"latestRevision":true,"percent":100,"tag":"now"}]}}`, 1},
		{"the status", path + "/status", `{"status":{"url":"http://hello.example.com"}}`, 1},
		{"the template", path, `{"spec":{"template":{"spec":{"serviceAccountName":"default"}}}}`, 2},
		{"the template's metadata", path, `{"spec":{"template":{"metadata":{"labels":{"a":"b"}}}}}`, 3},
	}
	// A dry run that does not end within a second may reach the webhook later, so the steps are repeated then.
	within(t, rediscovery, "each dry run ends within a second", func() error {
		inTime := func(response *harness.Response) error {
			if !unanswered(response) {
				return nil
			}
			wantCode(t, remove(t, host.Admin, service), http.StatusOK)
			return errors.New("one does not")
		}
		response := post(t, host.Admin, fresh(service))
		wantCode(t, response, http.StatusCreated)
		if err := inTime(response); err != nil {
			return err
		}
		for _, step := range steps {
			response := patch(t, controllers(t), step.path, step.patch)
			wantCode(t, response, http.StatusOK)
			if err := inTime(response); err != nil {
				return err
			}
			if got := asked.of(service); got != step.want {
				t.Errorf("after a change of %s the host got %d dry runs in all, want %d", step.what, got, step.want)
			}
		}
		return nil
	})
	// Other tests register webhooks, each of which clears the cache of accepted templates.
	concurrency := 7
	harness.Eventually(t, "a change outside the Pod causes no dry run", func() error {
		before := asked.of(service)
		concurrency++
		wantCode(t, patch(t, host.Admin, path, fmt.Sprintf(`{"spec":{"template":{"spec":{"containerConcurrency":%d}}}}`, concurrency)), http.StatusOK)
		if got := asked.of(service); got != before {
			return fmt.Errorf("the host got %d more dry runs", got-before)
		}
		return nil
	})
}

// TestTemplateSlowHost checks that the object is stored with a warning if the host does not respond within a second.
func TestTemplateSlowHost(t *testing.T) {
	t.Parallel()
	ns := host.Namespace(t, "slow", nil)
	var called atomic.Bool
	registerValidating(t, ns, rule("", "pods", admissionregistrationv1.Create),
		func(ctx stdcontext.Context, _ *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
			called.Store(true)
			<-ctx.Done()
			return allow()
		})
	within(t, rediscovery, "the host is slow", func() error {
		response := post(t, host.Admin, fresh(harness.KindOf("Service").Object(ns, "probe")), "dryRun=All")
		if !called.Load() {
			return errors.New("it does not call the webhook")
		}
		return wantWarning(response, notChecked)
	})
	started := time.Now()
	response := post(t, host.Admin, fresh(harness.KindOf("Service").Object(ns, "hello")))
	took := time.Since(started)
	wantCode(t, response, http.StatusCreated)
	if err := wantWarning(response, noResponse); err != nil {
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
	create, discard := posting(t, early)
	response := checked(t, create, discard)
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
