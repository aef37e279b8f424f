//go:build linux

package process

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"

	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/workload"
	"github.com/knative-apiserver/knative-apiserver/pkg/workload/process/objects"
)

// fakeObjects holds the data of objects in the namespace default, by kind and name.
type fakeObjects struct {
	mu   sync.Mutex
	data map[objects.Reference]map[string]string
	err  error
	// read is called before each read.
	read func()
}

func (f *fakeObjects) set(kind objects.Kind, name string, data map[string]string) objects.Reference {
	f.mu.Lock()
	defer f.mu.Unlock()
	key := objects.Reference{Kind: kind, Namespace: "default", Name: name}
	if f.data == nil {
		f.data = map[objects.Reference]map[string]string{}
	}
	f.data[key] = data
	return key
}

func (f *fakeObjects) get(kind objects.Kind, namespace, name string) (map[string]string, error) {
	if f.read != nil {
		f.read()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err != nil {
		return nil, f.err
	}
	data, ok := f.data[objects.Reference{Kind: kind, Namespace: namespace, Name: name}]
	if !ok {
		return nil, apierrors.NewNotFound(corev1.Resource(string(kind)), name)
	}
	return data, nil
}

func (f *fakeObjects) ConfigMap(_ context.Context, namespace, name string) (*corev1.ConfigMap, error) {
	data, err := f.get(objects.ConfigMap, namespace, name)
	return &corev1.ConfigMap{Data: data}, err
}

func (f *fakeObjects) Secret(_ context.Context, namespace, name string) (*corev1.Secret, error) {
	data, err := f.get(objects.Secret, namespace, name)
	s := &corev1.Secret{Data: map[string][]byte{}}
	for key, value := range data {
		s.Data[key] = []byte(value)
	}
	return s, err
}

func (f *fakeObjects) ServiceAccount(_ context.Context, namespace, name string) error {
	_, err := f.get(objects.ServiceAccount, namespace, name)
	return err
}

func fromConfigMap(name, object, key string, optional bool) corev1.EnvVar {
	return corev1.EnvVar{Name: name, ValueFrom: &corev1.EnvVarSource{ConfigMapKeyRef: &corev1.ConfigMapKeySelector{
		LocalObjectReference: corev1.LocalObjectReference{Name: object}, Key: key, Optional: &optional,
	}}}
}

func fromSecret(name, object, key string, optional bool) corev1.EnvVar {
	return corev1.EnvVar{Name: name, ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{
		LocalObjectReference: corev1.LocalObjectReference{Name: object}, Key: key, Optional: &optional,
	}}}
}

func allOfConfigMap(prefix, object string, optional bool) corev1.EnvFromSource {
	return corev1.EnvFromSource{Prefix: prefix, ConfigMapRef: &corev1.ConfigMapEnvSource{
		LocalObjectReference: corev1.LocalObjectReference{Name: object}, Optional: &optional,
	}}
}

func allOfSecret(prefix, object string, optional bool) corev1.EnvFromSource {
	return corev1.EnvFromSource{Prefix: prefix, SecretRef: &corev1.SecretEnvSource{
		LocalObjectReference: corev1.LocalObjectReference{Name: object}, Optional: &optional,
	}}
}

// TestVariablesFromObjects checks that variables from objects reach processes as in a Pod (serving 10.6, 10.10).
func TestVariablesFromObjects(t *testing.T) {
	store := &fakeObjects{}
	store.set(objects.ConfigMap, "settings", map[string]string{"GREETING": "hello", "app.properties": "a=b", "BOTH": "configmap", "PORT": "1"})
	store.set(objects.Secret, "credentials", map[string]string{"password": "hunter2", "BOTH": "secret"})
	store.set(objects.ServiceAccount, "runner", nil)
	h := start(t, Options{Objects: store})
	r := sample("variables", "serve")
	r.Spec.ServiceAccountName = "runner"
	c := &r.Spec.Containers[0]
	c.EnvFrom = []corev1.EnvFromSource{
		allOfConfigMap("", "settings", false), allOfSecret("S_", "credentials", false), allOfSecret("", "credentials", false),
		allOfConfigMap("", "missing", true), allOfSecret("", "missing", true),
	}
	c.Env = append(c.Env,
		fromConfigMap("ONE", "settings", "GREETING", false),
		fromSecret("TWO", "credentials", "password", false),
		fromConfigMap("THREE", "missing", "k", true), fromSecret("FOUR", "credentials", "missing", true),
		corev1.EnvVar{Name: "GREETING", Value: "$(GREETING), $(TWO)"},
	)
	h.apply(r, 1)
	s := h.await(r, "the backend to be ready", ready(1))
	env := ask(t, s.Instances[0].Address).Env
	for _, want := range []string{
		"ONE=hello", "TWO=hunter2", "GREETING=hello, hunter2", "app.properties=a=b", "S_password=hunter2", "BOTH=secret",
		"PORT=" + s.Instances[0].Address[strings.LastIndex(s.Instances[0].Address, ":")+1:],
	} {
		if !slices.Contains(env, want) {
			t.Errorf("no variable %s", want)
		}
	}
	for _, variable := range env {
		if name, _, _ := strings.Cut(variable, "="); name == "THREE" || name == "FOUR" {
			t.Errorf("variable %s of a missing object", variable)
		}
	}
}

// TestMissingObjects checks that a missing object is reported as by a kubelet, without the values of others, and that the
// backend starts as soon as the object exists: the fake clock does not reach the next attempt.
func TestMissingObjects(t *testing.T) {
	for name, test := range map[string]struct {
		change  func(r *servingv1.Revision, c *corev1.Container)
		reason  string
		message string
		// repair creates the missing object.
		repair func(o *fakeObjects) objects.Reference
	}{
		"ConfigMap of a variable": {
			change: func(_ *servingv1.Revision, c *corev1.Container) {
				c.Env = append(c.Env, fromConfigMap("V", "a", "k", false))
			},
			reason:  "CreateContainerConfigError",
			message: `configmap "a" not found (spec.template.spec.containers[0].env[1].valueFrom).`,
			repair: func(o *fakeObjects) objects.Reference {
				return o.set(objects.ConfigMap, "a", map[string]string{"k": "v"})
			},
		},
		"key of a Secret": {
			change: func(_ *servingv1.Revision, c *corev1.Container) {
				c.Env = append(c.Env, fromSecret("V", "other", "k", false))
			},
			reason:  "CreateContainerConfigError",
			message: `couldn't find key k in Secret default/other (spec.template.spec.containers[0].env[1].valueFrom).`,
			repair: func(o *fakeObjects) objects.Reference {
				return o.set(objects.Secret, "other", map[string]string{"k": "v"})
			},
		},
		"Secret of variables": {
			change: func(_ *servingv1.Revision, c *corev1.Container) {
				c.EnvFrom = []corev1.EnvFromSource{allOfSecret("", "a", false)}
			},
			reason:  "CreateContainerConfigError",
			message: `secret "a" not found (spec.template.spec.containers[0].envFrom[0]).`,
			repair:  func(o *fakeObjects) objects.Reference { return o.set(objects.Secret, "a", nil) },
		},
		"a NUL byte": {
			change: func(_ *servingv1.Revision, c *corev1.Container) {
				c.Env = append(c.Env, fromSecret("V", "other", "nul", false))
			},
			reason:  "CreateContainerConfigError",
			message: `the value of the variable "V" contains a NUL byte: use a volume.`,
			repair: func(o *fakeObjects) objects.Reference {
				return o.set(objects.Secret, "other", map[string]string{"nul": ""})
			},
		},
		"ServiceAccount": {
			change:  func(r *servingv1.Revision, _ *corev1.Container) { r.Spec.ServiceAccountName = "runner" },
			reason:  "FailedCreate",
			message: `Error looking up service account default/runner of spec.template.spec.serviceAccountName: serviceaccount "runner" not found.`,
			repair:  func(o *fakeObjects) objects.Reference { return o.set(objects.ServiceAccount, "runner", nil) },
		},
	} {
		t.Run(name, func(t *testing.T) {
			store := &fakeObjects{}
			store.set(objects.Secret, "other", map[string]string{"password": "hunter2", "nul": "hunter2\x00"})
			h := start(t, Options{Objects: store, Clock: clocktesting.NewFakeClock(time.Now())})
			r := sample("missing", "serve")
			test.change(r, &r.Spec.Containers[0])
			h.apply(r, 1)
			s := h.await(r, "a failure", failing)
			if !s.Failure.Resources || s.Failure.Reason != test.reason || s.Failure.Message != test.message {
				t.Errorf("failure %+v, want %s with %q", s.Failure, test.reason, test.message)
			}
			h.ObjectChanged(test.repair(store))
			if s := h.await(r, "the backend to be ready", ready(1)); s.Failure != nil {
				t.Errorf("failure %+v", s.Failure)
			}
		})
	}
}

// TestObjectAppearsWhileItIsRead checks that a change is not missed if it is reported while a backend reads the object and
// finds it missing.
func TestObjectAppearsWhileItIsRead(t *testing.T) {
	store := &fakeObjects{}
	var h *harness
	r := sample("appears", "serve")
	r.Spec.Containers[0].EnvFrom = []corev1.EnvFromSource{allOfConfigMap("", "a", false)}
	var once sync.Once
	store.read = func() {
		once.Do(func() { h.ObjectChanged(objects.Reference{Kind: objects.ConfigMap, Namespace: "default", Name: "a"}) })
	}
	h = start(t, Options{Objects: store, Clock: clocktesting.NewFakeClock(time.Now())})
	h.Subscribe(func(_ types.NamespacedName, s workload.State) {
		// The object is created after the read and reported before its result.
		if s.Failure != nil {
			store.set(objects.ConfigMap, "a", nil)
		}
	})
	h.apply(r, 1)
	h.await(r, "the backend to be ready", ready(1))
}

// TestActivate checks that the Runtime requests a backend after a change of the object that the last one lacked, if none is desired.
func TestActivate(t *testing.T) {
	store := &fakeObjects{}
	activated := make(chan types.NamespacedName, 1)
	h := start(t, Options{Objects: store, Activate: func(key types.NamespacedName) { activated <- key }})
	r := sample("sleeping", "serve")
	r.Spec.Containers[0].EnvFrom = []corev1.EnvFromSource{allOfConfigMap("", "a", false)}
	h.apply(r, 1)
	h.await(r, "a failure", failing)
	h.scale(r, 0)
	h.ObjectChanged(objects.Reference{Kind: objects.ConfigMap, Namespace: "default", Name: "other"})
	h.ObjectChanged(objects.Reference{Kind: objects.Secret, Namespace: "default", Name: "a"})
	select {
	case key := <-activated:
		t.Fatalf("%s was activated for an object that it does not refer to", key)
	default:
	}
	h.ObjectChanged(store.set(objects.ConfigMap, "a", nil))
	if key := <-activated; key != keyOf(r) {
		t.Errorf("activated: %s", key)
	}
}

// TestObjectsCannotBeRead checks that a backend does not start without values if the API does not respond.
func TestObjectsCannotBeRead(t *testing.T) {
	store := &fakeObjects{err: errors.New("etcd")}
	h := start(t, Options{Objects: store})
	r := sample("unread", "serve")
	r.Spec.Containers[0].EnvFrom = []corev1.EnvFromSource{allOfConfigMap("", "a", true)}
	h.apply(r, 1)
	s := h.await(r, "a failure", failing)
	if want := `get configmap "a": etcd (spec.template.spec.containers[0].envFrom[0]).`; s.Failure.Message != want {
		t.Errorf("message %q, want %q", s.Failure.Message, want)
	}
}
