// Package podtemplate rejects revision templates that the host cluster would not accept as Pods.
//
// Users learn about rejections by core validation, Pod Security, policies and webhooks of the host when they write the
// Service, not later from a Deployment. The plugin sends the host a dry-run create of the Pod. If the host does not
// respond, the write succeeds with a warning.
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

// PluginName is the name of the plugin in --enable-admission-plugins and --disable-admission-plugins.
const PluginName = "PodTemplate"

// hostTimeout bounds the dry-run request.
const hostTimeout = time.Second

// Register registers the plugin.
func Register(plugins *admission.Plugins) {
	plugins.Register(PluginName, func(io.Reader) (admission.Interface, error) { return New(), nil })
}

// Defaults returns the operator's runtime class for a Revision with the given labels, or "", and whether Pods of a Revision
// are spread over nodes.
type Defaults func(labels map[string]string) (runtimeClass string, spread bool)

// Plugin validates the templates of Services and Configurations.
type Plugin struct {
	*admission.Handler
	host        kubernetes.Interface
	defaults    Defaults
	acceptances *acceptances
	initErr     error
}

var (
	_ admission.ValidationInterface     = &Plugin{}
	_ admission.InitializationValidator = &Plugin{}
)

// New returns the plugin. Initializer sets its client of the host cluster.
func New() *Plugin {
	return &Plugin{Handler: admission.NewHandler(admission.Create, admission.Update), acceptances: newAcceptances()}
}

// Initializer sets the plugin's client of the host cluster, the informers of host objects that influence whether the host
// accepts a Pod, and the operator's defaults of Pods; nil means no defaults.
func Initializer(client kubernetes.Interface, watch informers.SharedInformerFactory, defaults Defaults) admission.PluginInitializer {
	return hostInitializer{client, watch, defaults}
}

type hostInitializer struct {
	client   kubernetes.Interface
	watch    informers.SharedInformerFactory
	defaults Defaults
}

func (i hostInitializer) Initialize(plugin admission.Interface) {
	p, ok := plugin.(*Plugin)
	if !ok {
		return
	}
	if p.initErr = p.acceptances.watch(i.watch); p.initErr == nil {
		p.host, p.defaults = i.client, i.defaults
	}
}

// ValidateInitialization returns an error if the client is missing.
func (p *Plugin) ValidateInitialization() error {
	if p.initErr != nil {
		return p.initErr
	}
	if p.host == nil {
		return fmt.Errorf("admission plugin %s has no client of the host cluster", PluginName)
	}
	return nil
}

// Validate dry-runs a new or changed template as a Pod. The error is a 422 with the host's causes at the field paths of the
// template.
func (p *Plugin) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if a.GetSubresource() != "" {
		return nil
	}
	template := templateOf(a.GetObject())
	if template == nil || equality.Semantic.DeepEqual(template, templateOf(a.GetOldObject())) {
		return nil
	}
	// The name in the attributes is empty if it was generated.
	object, kind := a.GetObject().(metav1.Object), a.GetKind().Kind
	// Objects that differ only by name share one dry run.
	key, err := p.acceptances.key(anonymous(kind, a.GetNamespace(), template, p.defaults))
	if err != nil {
		return err
	}
	pod := dryRun(kind, a.GetNamespace(), object, template, p.defaults)
	ctx, cancel := context.WithTimeout(ctx, hostTimeout)
	defer cancel()
	err = p.acceptances.accepts(key, func() error {
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
	return invalid(a.GetKind().GroupKind(), object.GetName(), err, func(init bool, container int) int {
		return contractVariables(template, pod, init, container)
	})
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

// judges reports whether err is the host's rejection of the Pod. Otherwise it returns the reason why the Pod was not checked.
func (p *Plugin) judges(ctx context.Context, err error, namespace, serviceAccount string) (bool, string) {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return false, fmt.Sprintf("no response: %v", err)
	}
	switch {
	case apierrors.IsInvalid(err), apierrors.IsBadRequest(err):
		return true, ""
	case !apierrors.IsForbidden(err):
		return false, fmt.Sprintf("unexpected response: %v", err)
	case refusesRequest(status.Status()):
		return false, fmt.Sprintf("this server is not allowed to create Pods: %v", err)
	case exceedsQuota(status.Status().Message):
		return false, fmt.Sprintf("the quota is currently exhausted: %v", err)
	}
	if serviceAccount == "" {
		serviceAccount = "default"
	}
	switch _, err := p.host.CoreV1().ServiceAccounts(namespace).Get(ctx, serviceAccount, metav1.GetOptions{}); {
	case apierrors.IsNotFound(err):
		return false, fmt.Sprintf("the ServiceAccount '%s' does not exist yet", serviceAccount)
	case err != nil:
		return false, fmt.Sprintf("the ServiceAccount '%s' could not be read: %v", serviceAccount, err)
	}
	return true, ""
}

// refusesRequest reports whether a rejection comes from authorization, which names the resource but no object. Admission
// plugins name the Pod, and webhooks omit the details.
func refusesRequest(status metav1.Status) bool {
	return status.Details != nil && status.Details.Kind == string(corev1.ResourcePods) && status.Details.Name == ""
}
