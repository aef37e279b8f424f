package process

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/ptr"

	"github.com/knative-apiserver/knative-apiserver/pkg/workload"
)

// Objects reads the objects of core/v1 that Revisions refer to from storage, not from a cache. The error for a missing object
// satisfies apierrors.IsNotFound.
type Objects interface {
	ConfigMap(ctx context.Context, namespace, name string) (*corev1.ConfigMap, error)
	Secret(ctx context.Context, namespace, name string) (*corev1.Secret, error)
	ServiceAccount(ctx context.Context, namespace, name string) error
}

// Reference names an object that Revisions refer to.
type Reference struct {
	Kind            ReferenceKind
	Namespace, Name string
}

// ReferenceKind is the kind of an object that Revisions refer to.
type ReferenceKind string

// Kinds of references.
const (
	ConfigMap      ReferenceKind = "ConfigMap"
	Secret         ReferenceKind = "Secret"
	ServiceAccount ReferenceKind = "ServiceAccount"
)

// readTimeout bounds the time to read the objects that a backend refers to.
const readTimeout = 10 * time.Second

// defaultServiceAccount is the ServiceAccount that Kubernetes creates in each Namespace. It is not required to exist.
const defaultServiceAccount = "default"

// noObjects is the store of a server that serves no core/v1.
type noObjects struct{}

func (noObjects) ConfigMap(_ context.Context, _, name string) (*corev1.ConfigMap, error) {
	return nil, apierrors.NewNotFound(corev1.Resource("configmaps"), name)
}

func (noObjects) Secret(_ context.Context, _, name string) (*corev1.Secret, error) {
	return nil, apierrors.NewNotFound(corev1.Resource("secrets"), name)
}

func (noObjects) ServiceAccount(context.Context, string, string) error { return nil }

// inputs are the objects that one backend refers to. Each is read at most once, so that all containers start with the same
// values.
type inputs struct {
	ctx       context.Context
	objects   Objects
	namespace string
	read      map[Reference]data
}

// data is the content of a ConfigMap or a Secret.
type data struct {
	// text values may become variables and files, binary values only files.
	text   map[string]string
	binary map[string][]byte
	err    error
}

func newInputs(ctx context.Context, objects Objects, namespace string) *inputs {
	return &inputs{ctx: ctx, objects: objects, namespace: namespace, read: map[Reference]data{}}
}

// get returns the content of an object, empty if the object is missing and optional. Errors quote no value.
func (in *inputs) get(kind ReferenceKind, name string, optional *bool) (data, error) {
	key := Reference{kind, in.namespace, name}
	d, ok := in.read[key]
	if !ok {
		d = in.fetch(kind, name)
		in.read[key] = d
	}
	switch {
	case d.err == nil:
		return d, nil
	case apierrors.IsNotFound(d.err) && ptr.Deref(optional, false):
		return data{}, nil
	case apierrors.IsNotFound(d.err):
		return data{}, fmt.Errorf("%s %q not found", strings.ToLower(string(kind)), name)
	default:
		return data{}, fmt.Errorf("get %s %q: %w", strings.ToLower(string(kind)), name, d.err)
	}
}

func (in *inputs) fetch(kind ReferenceKind, name string) data {
	if kind == Secret {
		s, err := in.objects.Secret(in.ctx, in.namespace, name)
		if err != nil {
			return data{err: err}
		}
		d := data{text: make(map[string]string, len(s.Data))}
		for key, value := range s.Data {
			d.text[key] = string(value)
		}
		return d
	}
	c, err := in.objects.ConfigMap(in.ctx, in.namespace, name)
	if err != nil {
		return data{err: err}
	}
	return data{text: c.Data, binary: c.BinaryData}
}

// value returns the value of a key, and false if the key or the object is missing and optional.
func (in *inputs) value(kind ReferenceKind, name, key string, optional *bool) (string, bool, error) {
	d, err := in.get(kind, name, optional)
	if err != nil {
		return "", false, err
	}
	value, ok := d.text[key]
	if !ok && !ptr.Deref(optional, false) {
		return "", false, fmt.Errorf("couldn't find key %s in %s %s/%s", key, kind, in.namespace, name)
	}
	return value, ok, nil
}

// serviceAccount returns a failure if a ServiceAccount does not exist.
func (in *inputs) serviceAccount(name string) *workload.Failure {
	if name == "" || name == defaultServiceAccount {
		return nil
	}
	err := in.objects.ServiceAccount(in.ctx, in.namespace, name)
	if err == nil {
		return nil
	}
	if apierrors.IsNotFound(err) {
		err = fmt.Errorf("serviceaccount %q not found", name)
	}
	return &workload.Failure{Resources: true, Reason: reasonFailedCreate, Message: fmt.Sprintf(
		"Error looking up service account %s/%s of spec.template.spec.serviceAccountName: %v.", in.namespace, name, err)}
}

// references returns the objects that a plan refers to.
func (p *plan) references() []Reference {
	var all []Reference
	add := func(kind ReferenceKind, name string) {
		if r := (Reference{kind, p.revision.Namespace, name}); name != "" && !slices.Contains(all, r) {
			all = append(all, r)
		}
	}
	add(ServiceAccount, p.serviceAccount)
	for i := range p.volumes {
		volumeReferences(&p.volumes[i], add)
	}
	for _, containers := range [][]container{p.init, p.containers} {
		for _, c := range containers {
			for _, from := range c.EnvFrom {
				if from.ConfigMapRef != nil {
					add(ConfigMap, from.ConfigMapRef.Name)
				}
				if from.SecretRef != nil {
					add(Secret, from.SecretRef.Name)
				}
			}
			for _, variable := range c.Env {
				from := ptr.Deref(variable.ValueFrom, corev1.EnvVarSource{})
				if from.ConfigMapKeyRef != nil {
					add(ConfigMap, from.ConfigMapKeyRef.Name)
				}
				if from.SecretKeyRef != nil {
					add(Secret, from.SecretKeyRef.Name)
				}
			}
		}
	}
	return all
}

// configError returns a failure that lasts until an object is created or changed.
func configError(err error) *workload.Failure {
	return &workload.Failure{Resources: true, Reason: reasonConfigError, Message: sentence(err)}
}

// sentence returns an error as a sentence for a status.
func sentence(err error) string {
	message := err.Error()
	if !strings.HasSuffix(message, ".") {
		message += "."
	}
	return message
}
