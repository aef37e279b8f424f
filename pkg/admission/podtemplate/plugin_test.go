package podtemplate

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/warning"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
)

var pods = schema.GroupResource{Resource: "pods"}

func serviceWith(image string) *servingv1.Service {
	s := &servingv1.Service{ObjectMeta: metav1.ObjectMeta{Name: "s", Namespace: "ns"}}
	s.Spec.Template.Labels = map[string]string{"a": "b"}
	s.Spec.Template.Spec.Containers = []corev1.Container{{Image: image}}
	s.Spec.Template.Spec.SetDefaults()
	return s
}

// operatorDefaults returns the defaults of a cluster with a runtime class for some Revisions.
func operatorDefaults(labels map[string]string) (runtimeClass string, spread bool) {
	if labels["sandbox"] == "yes" {
		return "kata", true
	}
	return "", true
}

// warnings records the warnings sent to the user.
type warnings []string

func (w *warnings) AddWarning(_, text string) { *w = append(*w, text) }

// unreadable is a ServiceAccount whose lookups fail.
const unreadable = "unreadable"

func validate(t *testing.T, hostAnswer error, serviceAccounts []string, obj, old runtime.Object, subresource string) (err error, asked []*corev1.Pod, warned warnings) {
	t.Helper()
	var objects []runtime.Object
	for _, name := range serviceAccounts {
		objects = append(objects, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}})
	}
	host := fake.NewClientset(objects...)
	pods := dryRunsOf(t, host, hostAnswer)
	host.PrependReactor("get", "serviceaccounts", func(action clienttesting.Action) (bool, runtime.Object, error) {
		return slices.Contains(serviceAccounts, unreadable), nil, context.DeadlineExceeded
	})
	plugin := New()
	Initializer(host, informers.NewSharedInformerFactory(host, 0), operatorDefaults).Initialize(plugin)
	if err := plugin.ValidateInitialization(); err != nil {
		t.Fatal(err)
	}
	ctx := warning.WithWarningRecorder(context.Background(), &warned)
	err = plugin.Validate(ctx, attributesOf(obj, old, subresource), nil)
	return err, *pods, warned
}

// dryRunsOf returns the Pods of the dry runs on a host, which answers them with an error or nil.
func dryRunsOf(t *testing.T, host *fake.Clientset, answer error) (asked *[]*corev1.Pod) {
	t.Helper()
	asked = new([]*corev1.Pod)
	host.PrependReactor("create", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
		create := action.(clienttesting.CreateActionImpl)
		if len(create.CreateOptions.DryRun) != 1 {
			t.Error("a Pod creation was not a dry run")
		}
		pod := create.GetObject().(*corev1.Pod)
		*asked = append(*asked, pod)
		return true, pod, answer
	})
	return asked
}

// attributesOf returns the attributes of a create, or of an update of old. They have no name if it is generated.
func attributesOf(obj, old runtime.Object, subresource string) admission.Attributes {
	operation := admission.Create
	if old != nil {
		operation = admission.Update
	}
	return admission.NewAttributesRecord(obj, old, servingv1.SchemeGroupVersion.WithKind("Service"), "ns", "",
		servingv1.SchemeGroupVersion.WithResource("services"), subresource, operation, nil, false, &user.DefaultInfo{})
}

func TestAsksOnlyAboutChangedTemplates(t *testing.T) {
	changedLabel := serviceWith("image")
	changedLabel.Labels = map[string]string{"x": "y"}
	tests := []struct {
		name        string
		obj, old    runtime.Object
		subresource string
		want        int
	}{
		{"a new template", serviceWith("image"), nil, "", 1},
		{"a changed template", serviceWith("other"), serviceWith("image"), "", 1},
		{"the same template", changedLabel, serviceWith("image"), "", 0},
		{"the status", serviceWith("other"), serviceWith("image"), "status", 0},
		{"a kind without template", &servingv1.Route{}, nil, "", 0},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			err, asked, _ := validate(t, nil, nil, test.obj, test.old, test.subresource)
			if err != nil {
				t.Fatal(err)
			}
			if len(asked) != test.want {
				t.Errorf("the host was asked %d times, want %d", len(asked), test.want)
			}
		})
	}
}

func TestPodIsTheTemplate(t *testing.T) {
	s := serviceWith("image")
	s.Spec.Template.Spec.Containers[0].Ports = []corev1.ContainerPort{{ContainerPort: 9000}}
	_, asked, _ := validate(t, nil, nil, s, nil, "")
	pod := asked[0]
	wantLabels := map[string]string{
		"a": "b", "app": "s", "serving.knative.dev/service": "s", "serving.knative.dev/configuration": "s", "serving.knative.dev/revision": "s",
	}
	if diff := cmp.Diff(wantLabels, pod.Labels); diff != "" {
		t.Errorf("labels (-want +got):\n%s", diff)
	}
	if pod.Name != "s-dry-run" || len(s.Spec.Template.Labels) != 1 || pod.Spec.Containers[0].Image != "image" {
		t.Errorf("the Pod is not the template's: %v", pod)
	}
	if got := pod.Spec.Containers[0].ReadinessProbe.TCPSocket.Port.IntValue(); got != 9000 {
		t.Errorf("readiness probe on port %d, want the container's", got)
	}
	if got := s.Spec.Template.Spec.Containers[0].ReadinessProbe.TCPSocket.Port.IntValue(); got != 0 {
		t.Errorf("the template itself was changed: port %d", got)
	}
}

// TestPodIsTheOneOfARevision covers the parts of a Revision's Pod besides the template, for which the host may reject it.
func TestPodIsTheOneOfARevision(t *testing.T) {
	s := serviceWith("image")
	s.Spec.Template.Labels["sandbox"] = "yes"
	s.Spec.Template.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "MINE", Value: "$(K_SERVICE)"}}
	_, asked, _ := validate(t, nil, nil, s, nil, "")
	spec := asked[0].Spec
	if spec.RuntimeClassName == nil || *spec.RuntimeClassName != "kata" {
		t.Errorf("the runtime class is %v, want the operator's", spec.RuntimeClassName)
	}
	if spec.Affinity == nil || spec.Affinity.PodAntiAffinity == nil {
		t.Errorf("the affinity is %v, want the operator's default", spec.Affinity)
	}
	c := spec.Containers[0]
	if len(c.Env) != 5 || c.Env[0].Name != "K_SERVICE" || c.Env[4].Name != "MINE" {
		t.Errorf("the environment is %v", c.Env)
	}
	if c.Lifecycle == nil || c.Lifecycle.PreStop == nil || spec.TerminationGracePeriodSeconds == nil || len(c.Ports) != 1 {
		t.Errorf("the container is %v", c)
	}
}

// TestFieldOfAVariable checks that rejections of environment variables name the variables of the template.
func TestFieldOfAVariable(t *testing.T) {
	s := serviceWith("image")
	s.Spec.Template.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "A"}, {Name: "B"}}
	err, _, _ := validate(t, apierrors.NewInvalid(schema.GroupKind{Kind: "Pod"}, "s-dry-run", field.ErrorList{
		field.Invalid(field.NewPath("spec", "containers").Index(0).Child("env").Index(5).Child("valueFrom"), "", "bad"),
	}), nil, s, nil, "")
	var status *apierrors.StatusError
	if !errors.As(err, &status) || status.ErrStatus.Details.Causes[0].Field != "spec.template.spec.containers[0].env[1].valueFrom" {
		t.Errorf("%v", err)
	}
}

// TestPodOfConfiguration checks that the Pod has the labels of a Service's Pods if a Service controls the Configuration.
func TestPodOfConfiguration(t *testing.T) {
	template := serviceWith("image").Spec.Template
	for _, owner := range []string{"Service", "Other"} {
		c := &servingv1.Configuration{ObjectMeta: metav1.ObjectMeta{Name: "s", Namespace: "ns"}}
		c.Spec.Template = template
		c.OwnerReferences = []metav1.OwnerReference{{Kind: owner, Name: "s", Controller: new(true)}}
		pod := dryRun("Configuration", "ns", c, &c.Spec.Template, nil)
		if _, ok := pod.Labels[servingv1.ServiceLabelKey]; ok != (owner == "Service") {
			t.Errorf("owned by a %s, the labels are %v", owner, pod.Labels)
		}
	}
}

// TestPodIsAsRestrictedAsItsRevisions covers namespaces that admit only Pods of the restricted Pod Security level: the
// defaults of a Revision's Pods apply, and settings of the user override them.
func TestPodIsAsRestrictedAsItsRevisions(t *testing.T) {
	s := serviceWith("image")
	s.Spec.Template.Spec.InitContainers = []corev1.Container{{
		Image: "image", SecurityContext: &corev1.SecurityContext{RunAsNonRoot: new(false)},
	}}
	_, asked, _ := validate(t, nil, nil, s, nil, "")
	context := asked[0].Spec.Containers[0].SecurityContext
	if context == nil || context.RunAsNonRoot == nil || !*context.RunAsNonRoot || context.Capabilities == nil || context.SeccompProfile == nil ||
		context.AllowPrivilegeEscalation == nil || *context.AllowPrivilegeEscalation {
		t.Errorf("security context %v", context)
	}
	if *asked[0].Spec.InitContainers[0].SecurityContext.RunAsNonRoot {
		t.Error("the user's fields were changed")
	}
	if s.Spec.Template.Spec.Containers[0].SecurityContext != nil {
		t.Error("the template itself was changed")
	}
}

func TestAnswers(t *testing.T) {
	invalidPod := apierrors.NewInvalid(schema.GroupKind{Kind: "Pod"}, "s-dry-run", field.ErrorList{
		field.Required(field.NewPath("spec", "containers").Index(0).Child("image"), "missing"),
		field.Invalid(field.NewPath("metadata", "labels"), "!", "bad"),
	})
	tests := []struct {
		name            string
		answer          error
		serviceAccounts []string
		wantFields      []string // nil: admitted with a warning
	}{
		{"core validation", invalidPod, nil, []string{"spec.template.spec.containers[0].image", "spec.template.metadata.labels"}},
		{"admission", apierrors.NewForbidden(pods, "s-dry-run", errors.New("violates PodSecurity")), []string{"default"}, []string{"spec.template"}},
		{"a webhook's denial", &apierrors.StatusError{ErrStatus: metav1.Status{Code: http.StatusForbidden, Reason: metav1.StatusReasonForbidden, Message: "denied"}}, []string{"default"}, []string{"spec.template"}},
		{"a malformed Pod", apierrors.NewBadRequest("bad"), nil, []string{"spec.template"}},
		{"the ServiceAccount does not exist yet", apierrors.NewForbidden(pods, "s-dry-run", errors.New("no service account")), nil, nil},
		{"the ServiceAccount cannot be read", apierrors.NewForbidden(pods, "s-dry-run", errors.New("no service account")), []string{unreadable}, nil},
		{"quota used up", apierrors.NewForbidden(pods, "s-dry-run", errors.New("exceeded quota: q, requested: pods=1, used: pods=1, limited: pods=1")), []string{"default"}, nil},
		{"no permission for the dry run", apierrors.NewForbidden(pods, "", errors.New("User cannot create")), []string{"default"}, nil},
		{"an internal error", apierrors.NewInternalError(errors.New("boom")), nil, nil},
		{"a timeout", context.DeadlineExceeded, nil, nil},
		{"no connection", errors.New("connection refused"), nil, nil},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			err, _, warned := validate(t, test.answer, test.serviceAccounts, serviceWith("image"), nil, "")
			if test.wantFields == nil {
				if err != nil || len(warned) != 1 {
					t.Fatalf("error %v, warnings %q; want none and one", err, warned)
				}
				return
			}
			var status *apierrors.StatusError
			if !errors.As(err, &status) || status.ErrStatus.Code != http.StatusUnprocessableEntity {
				t.Fatalf("error = %v, want status 422", err)
			}
			var got []string
			for _, cause := range status.ErrStatus.Details.Causes {
				got = append(got, cause.Field)
			}
			if len(got) != len(test.wantFields) {
				t.Fatalf("causes at %v, want %v", got, test.wantFields)
			}
			for i := range got {
				if got[i] != test.wantFields[i] {
					t.Errorf("cause %d at %s, want %s", i, got[i], test.wantFields[i])
				}
			}
		})
	}
}
