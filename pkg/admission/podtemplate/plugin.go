// Package podtemplate refuses revision templates that the host cluster would not accept as Pods.
//
// What core validation, Pod Security, policies and webhooks of the host say about a Pod, a user should hear
// when the Service is written, not find later in a Deployment. So the host is asked, by a dry-run create of
// such a Pod. A host that does not answer costs a warning, never the write.
package podtemplate

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/warning"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"

	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
)

// PluginName names the plugin in --enable-admission-plugins and --disable-admission-plugins.
const PluginName = "PodTemplate"

// hostTimeout is how long the host may take to judge a Pod.
const hostTimeout = time.Second

// Register makes the plugin known.
func Register(plugins *admission.Plugins) {
	plugins.Register(PluginName, func(io.Reader) (admission.Interface, error) { return New(), nil })
}

// Plugin validates the templates of Services and Configurations.
type Plugin struct {
	*admission.Handler
	host     kubernetes.Interface
	verdicts *verdicts
	initErr  error
}

var (
	_ admission.ValidationInterface     = &Plugin{}
	_ admission.InitializationValidator = &Plugin{}
)

// New returns the plugin, to be given a client of the host.
func New() *Plugin {
	return &Plugin{Handler: admission.NewHandler(admission.Create, admission.Update), verdicts: newVerdicts()}
}

// Initializer hands the plugin its client of the host cluster, and the informers that tell it when what the
// host judges Pods by changes.
func Initializer(client kubernetes.Interface, watch informers.SharedInformerFactory) admission.PluginInitializer {
	return hostInitializer{client, watch}
}

type hostInitializer struct {
	client kubernetes.Interface
	watch  informers.SharedInformerFactory
}

func (i hostInitializer) Initialize(plugin admission.Interface) {
	p, ok := plugin.(*Plugin)
	if !ok {
		return
	}
	if p.initErr = p.verdicts.watch(i.watch); p.initErr == nil {
		p.host = i.client
	}
}

// ValidateInitialization reports a missing client.
func (p *Plugin) ValidateInitialization() error {
	if p.initErr != nil {
		return p.initErr
	}
	if p.host == nil {
		return fmt.Errorf("admission plugin %s has no client of the host cluster", PluginName)
	}
	return nil
}

// Validate asks the host about a new or changed template. The answer is a 422 with the host's causes at the
// field paths of the template.
func (p *Plugin) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if a.GetSubresource() != "" {
		return nil
	}
	template := templateOf(a.GetObject())
	if template == nil || equality.Semantic.DeepEqual(template, templateOf(a.GetOldObject())) {
		return nil
	}
	// That of the attributes is empty where the name was generated.
	object := a.GetObject().(metav1.Object)
	pod := podFor(object.GetName(), a.GetNamespace(), template)
	key, err := p.verdicts.key(pod)
	if err != nil {
		return err
	}
	// The name is no reason to ask again.
	identify(pod, a.GetKind().Kind, object, template)
	ctx, cancel := context.WithTimeout(ctx, hostTimeout)
	defer cancel()
	err = p.verdicts.accepts(key, func() error {
		_, err := p.host.CoreV1().Pods(pod.Namespace).Create(ctx, pod, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err
	})
	if err == nil {
		return nil
	}
	judged, why := p.judges(ctx, err, pod.Namespace, pod.Spec.ServiceAccountName)
	if !judged {
		warning.AddWarning(ctx, "", fmt.Sprintf("the template was not checked against the host cluster: %s", why))
		return nil
	}
	return invalid(a.GetKind().GroupKind(), object.GetName(), err)
}

// templateOf returns the revision template of an object, or nil.
func templateOf(obj runtime.Object) *servingv1.RevisionTemplateSpec {
	switch o := obj.(type) {
	case *servingv1.Service:
		return &o.Spec.Template
	case *servingv1.Configuration:
		return &o.Spec.Template
	default:
		return nil
	}
}

// judges tells whether an error is the host's judgement of the Pod; if not, why there is none.
func (p *Plugin) judges(ctx context.Context, err error, namespace, serviceAccount string) (bool, string) {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return false, fmt.Sprintf("it did not answer: %v", err)
	}
	switch {
	case apierrors.IsInvalid(err), apierrors.IsBadRequest(err):
		return true, ""
	case !apierrors.IsForbidden(err):
		return false, fmt.Sprintf("it answered: %v", err)
	case refusesRequest(status.Status()):
		return false, fmt.Sprintf("this server may not create Pods there: %v", err)
	case exceedsQuota(status.Status().Message):
		return false, fmt.Sprintf("its quota has no room for another Pod at the moment: %v", err)
	}
	if serviceAccount == "" {
		serviceAccount = "default"
	}
	if _, err := p.host.CoreV1().ServiceAccounts(namespace).Get(ctx, serviceAccount, metav1.GetOptions{}); apierrors.IsNotFound(err) {
		return false, fmt.Sprintf("the ServiceAccount '%s' does not exist yet", serviceAccount)
	}
	return true, ""
}

// refusesRequest tells a refusal by authorization, which names the resource and no object, from one by
// admission: its plugins name the Pod, and webhooks leave out the details altogether.
func refusesRequest(status metav1.Status) bool {
	return status.Details != nil && status.Details.Kind == string(corev1.ResourcePods) && status.Details.Name == ""
}
