package podtemplate

import (
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"

	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
)

func ruleFor(group, resource string, operation admissionregistrationv1.OperationType) admissionregistrationv1.RuleWithOperations {
	return admissionregistrationv1.RuleWithOperations{
		Operations: []admissionregistrationv1.OperationType{operation},
		Rule:       admissionregistrationv1.Rule{APIGroups: []string{group}, APIVersions: []string{"*"}, Resources: []string{resource}},
	}
}

func validatingWebhook(rule admissionregistrationv1.RuleWithOperations) runtime.Object {
	return &admissionregistrationv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "webhook"},
		Webhooks: []admissionregistrationv1.ValidatingWebhook{
			{Rules: []admissionregistrationv1.RuleWithOperations{ruleFor("apps", "deployments", admissionregistrationv1.Create)}},
			{Rules: []admissionregistrationv1.RuleWithOperations{rule}},
		},
	}
}

func constraints(rule admissionregistrationv1.RuleWithOperations) *admissionregistrationv1.MatchResources {
	return &admissionregistrationv1.MatchResources{ResourceRules: []admissionregistrationv1.NamedRuleWithOperations{{RuleWithOperations: rule}}}
}

func validatingPolicy(spec admissionregistrationv1.ValidatingAdmissionPolicySpec) runtime.Object {
	return &admissionregistrationv1.ValidatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: "policy"}, Spec: spec}
}

// TestReaders covers pairs of templates of two Services, of which the host is asked about one or both.
func TestReaders(t *testing.T) {
	pods := ruleFor("", "pods", admissionregistrationv1.Create)
	value := func(c *corev1.Container) { c.Env[0].Value = "other" }
	tests := map[string]struct {
		change  func(*corev1.Container)
		readers []runtime.Object
		want    int
	}{
		"nothing":                 {func(*corev1.Container) {}, nil, 1},
		"the value of a variable": {value, nil, 1},
		"an image":                {func(c *corev1.Container) { c.Image = "other" }, nil, 1},
		"arguments":               {func(c *corev1.Container) { c.Args = []string{"a"} }, nil, 1},
		"a command":               {func(c *corev1.Container) { c.Command = []string{"c"} }, nil, 1},
		"the name of a variable":  {func(c *corev1.Container) { c.Env[0].Name = "OTHER" }, nil, 2},
		"the source of a variable": {func(c *corev1.Container) {
			c.Env[0] = corev1.EnvVar{Name: "A", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "spec.nodeName"}}}
		}, nil, 2},
		"a value beside a source": {func(c *corev1.Container) {
			c.Env[1].Value = "both"
		}, nil, 2},
		"a pull policy":    {func(c *corev1.Container) { c.ImagePullPolicy = corev1.PullAlways }, nil, 2},
		"the user":         {func(c *corev1.Container) { c.SecurityContext = &corev1.SecurityContext{RunAsUser: new(int64)} }, nil, 2},
		"a probe":          {func(c *corev1.Container) { c.LivenessProbe = &corev1.Probe{PeriodSeconds: 7} }, nil, 2},
		"a source of many": {func(c *corev1.Container) { c.EnvFrom = []corev1.EnvFromSource{{Prefix: "P"}} }, nil, 2},

		"a value, with a webhook for Pods":             {value, []runtime.Object{validatingWebhook(pods)}, 2},
		"a value, with a webhook for all":              {value, []runtime.Object{validatingWebhook(ruleFor("*", "*", admissionregistrationv1.OperationAll))}, 2},
		"a value, with a webhook for all subresources": {value, []runtime.Object{validatingWebhook(ruleFor("", "*/*", admissionregistrationv1.Create))}, 2},
		"a value, with a webhook for another group":    {value, []runtime.Object{validatingWebhook(ruleFor("metrics.k8s.io", "pods", admissionregistrationv1.Create))}, 1},
		"a value, with a webhook for updates":          {value, []runtime.Object{validatingWebhook(ruleFor("", "pods", admissionregistrationv1.Update))}, 1},
		"a value, with a webhook for another resource": {value, []runtime.Object{validatingWebhook(ruleFor("", "pods/exec", admissionregistrationv1.Create))}, 1},
		"a value, with a mutating webhook": {value, []runtime.Object{&admissionregistrationv1.MutatingWebhookConfiguration{
			ObjectMeta: metav1.ObjectMeta{Name: "webhook"},
			Webhooks:   []admissionregistrationv1.MutatingWebhook{{Rules: []admissionregistrationv1.RuleWithOperations{pods}}},
		}}, 2},
		"a value, with a mutating policy": {value, []runtime.Object{&admissionregistrationv1.MutatingAdmissionPolicy{
			ObjectMeta: metav1.ObjectMeta{Name: "policy"},
			Spec:       admissionregistrationv1.MutatingAdmissionPolicySpec{MatchConstraints: constraints(pods)},
		}}, 2},
		"a value, with a policy that reads Pods": {value, []runtime.Object{validatingPolicy(admissionregistrationv1.ValidatingAdmissionPolicySpec{
			MatchConstraints: constraints(pods),
			Validations:      []admissionregistrationv1.Validation{{Expression: "true"}, {Expression: "object.spec.containers.all(c, !has(c.args))"}},
		})}, 2},
		"a value, with a policy whose condition reads Pods": {value, []runtime.Object{validatingPolicy(admissionregistrationv1.ValidatingAdmissionPolicySpec{
			MatchConstraints: constraints(pods),
			MatchConditions:  []admissionregistrationv1.MatchCondition{{Name: "c", Expression: "has(object.spec.hostname)"}},
			Validations:      []admissionregistrationv1.Validation{{Expression: "false"}},
		})}, 2},
		"a value, with a policy whose variable reads Pods": {value, []runtime.Object{validatingPolicy(admissionregistrationv1.ValidatingAdmissionPolicySpec{
			MatchConstraints: constraints(pods),
			Variables:        []admissionregistrationv1.Variable{{Name: "all", Expression: "object.spec.containers"}},
			Validations:      []admissionregistrationv1.Validation{{Expression: "variables.all.size() > 0"}},
		})}, 2},
		"a value, with a policy whose audit annotation reads Pods": {value, []runtime.Object{validatingPolicy(admissionregistrationv1.ValidatingAdmissionPolicySpec{
			MatchConstraints: constraints(pods),
			AuditAnnotations: []admissionregistrationv1.AuditAnnotation{{Key: "host", ValueExpression: "object.spec.hostname"}},
		})}, 2},
		"a value, with a policy without constraints": {value, []runtime.Object{validatingPolicy(admissionregistrationv1.ValidatingAdmissionPolicySpec{
			Validations: []admissionregistrationv1.Validation{{Expression: "has(object.spec)"}},
		})}, 2},
		"a value, with a policy for another resource": {value, []runtime.Object{validatingPolicy(admissionregistrationv1.ValidatingAdmissionPolicySpec{
			MatchConstraints: constraints(ruleFor("", "services", admissionregistrationv1.Create)),
			Validations:      []admissionregistrationv1.Validation{{Expression: "has(object.spec)"}},
		})}, 1},
		"a value, with this server's policy": {value, []runtime.Object{validatingPolicy(admissionregistrationv1.ValidatingAdmissionPolicySpec{
			MatchConstraints: constraints(pods),
			MatchConditions:  []admissionregistrationv1.MatchCondition{{Name: "by-the-server", Expression: "'system:serviceaccounts:knative-system' in request.userInfo.groups"}},
			Validations:      []admissionregistrationv1.Validation{{Expression: "request.dryRun"}},
		})}, 1},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				plugin, asked := startPlugin(t, test.readers...)
				first, second := twoVariables(), twoVariables()
				second.Name = "second"
				test.change(&second.Spec.Template.Spec.Containers[0])
				for _, s := range []*servingv1.Service{first, second} {
					create(t, plugin, s)
				}
				if len(*asked) != test.want {
					t.Errorf("the host was asked about %d templates, want %d", len(*asked), test.want)
				}
				c := (*asked)[0].Spec.Containers[0]
				got := []string{c.Image, strings.Join(c.Command, " "), strings.Join(c.Args, " "), c.Env[len(c.Env)-2].Value}
				if diff := cmp.Diff([]string{"image", "run", "fast", "one"}, got); diff != "" {
					t.Errorf("values of the dry run (-want +got):\n%s", diff)
				}
			})
		})
	}
}

// TestNewReader checks that a value that was not read before is judged when a webhook for Pods is created.
func TestNewReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		plugin, asked := startPlugin(t)
		create(t, plugin, twoVariables())
		webhook := validatingWebhook(ruleFor("", "pods", admissionregistrationv1.Create)).(*admissionregistrationv1.ValidatingWebhookConfiguration)
		client := plugin.host.AdmissionregistrationV1().ValidatingWebhookConfigurations()
		if _, err := client.Create(t.Context(), webhook, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		for _, value := range []string{"one", "two", "two"} {
			s := twoVariables()
			s.Spec.Template.Spec.Containers[0].Env[0].Value = value
			create(t, plugin, s)
		}
		if len(*asked) != 3 {
			t.Errorf("the host was asked about %d templates, want 3: one before, and two values", len(*asked))
		}
	})
}

// TestReadersUnknown checks that values count until the webhooks and policies of the host are known.
func TestReadersUnknown(t *testing.T) {
	var a acceptances
	a.readers.watch(informers.NewSharedInformerFactory(fake.NewClientset(), 0))
	if !a.readers.exist(0) {
		t.Error("no webhook or policy reads Pods, want that it is unknown")
	}
}

func twoVariables() *servingv1.Service {
	s := serviceWith("image")
	c := &s.Spec.Template.Spec.Containers[0]
	c.Command, c.Args = []string{"run"}, []string{"fast"}
	c.Env = []corev1.EnvVar{
		{Name: "A", Value: "one"},
		{Name: "B", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.name"}}},
	}
	return s
}

// startPlugin returns a plugin that knows all objects of a host, and the Pods of its dry runs, in a synctest bubble.
func startPlugin(t *testing.T, objects ...runtime.Object) (plugin *Plugin, asked *[]*corev1.Pod) {
	t.Helper()
	host := fake.NewClientset(objects...)
	asked = dryRunsOf(t, host, nil)
	factory := informers.NewSharedInformerFactory(host, 0)
	plugin = New()
	Initializer(host, factory, nil).Initialize(plugin)
	factory.Start(t.Context().Done())
	t.Cleanup(factory.Shutdown)
	synctest.Wait()
	return plugin, asked
}

func create(t *testing.T, plugin *Plugin, s *servingv1.Service) {
	t.Helper()
	if err := plugin.Validate(t.Context(), attributesOf(s, nil, ""), nil); err != nil {
		t.Fatal(err)
	}
}
