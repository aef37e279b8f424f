package namespace

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/knative-apiserver/knative-apiserver/pkg/identity"
)

// fakeStorage has the phases of Namespaces by name.
type fakeStorage map[string]corev1.NamespacePhase

func (fakeStorage) New() runtime.Object { return &corev1.Namespace{} }

func (s fakeStorage) Get(_ context.Context, name string, _ *metav1.GetOptions) (runtime.Object, error) {
	phase, ok := s[name]
	if !ok {
		return nil, apierrors.NewNotFound(corev1.Resource("namespaces"), name)
	}
	return &corev1.Namespace{Status: corev1.NamespaceStatus{Phase: phase}}, nil
}

func (s fakeStorage) Create(_ context.Context, obj runtime.Object, _ rest.ValidateObjectFunc, _ *metav1.CreateOptions) (runtime.Object, error) {
	s[obj.(*corev1.Namespace).Name] = corev1.NamespaceActive
	return obj, nil
}

func TestLifecycle(t *testing.T) {
	anyUser := user.Info(&user.DefaultInfo{Name: "alice"})
	tests := map[string]struct {
		operation                                admission.Operation
		resource, subresource, namespace, name   string
		by                                       user.Info
		dryRun, forbidden, notFound, terminating bool
		// created reports whether the namespace exists afterwards.
		created bool
	}{
		"an object in a Namespace":                {operation: admission.Create, resource: "configmaps", namespace: "active", created: true},
		"an object without a Namespace":           {operation: admission.Create, resource: "configmaps", namespace: "new", created: true},
		"a dry run without a Namespace":           {operation: admission.Create, resource: "configmaps", namespace: "new", dryRun: true},
		"a controller without a Namespace":        {operation: admission.Create, resource: "events", namespace: "new", by: identity.NewControllers(), notFound: true},
		"an object in a terminating Namespace":    {operation: admission.Create, resource: "configmaps", namespace: "terminating", forbidden: true, terminating: true, created: true},
		"a controller in a terminating Namespace": {operation: admission.Create, resource: "events", namespace: "terminating", by: identity.NewControllers(), forbidden: true, terminating: true, created: true},
		"a subresource":                           {operation: admission.Create, resource: "serviceaccounts", subresource: "token", namespace: "new"},
		"a deletion in a terminating Namespace":   {operation: admission.Delete, resource: "configmaps", namespace: "terminating", name: "a", created: true},
		"a Namespace":                             {operation: admission.Create, resource: "namespaces", namespace: "new", name: "new"},
		"the deletion of a Namespace":             {operation: admission.Delete, resource: "namespaces", namespace: "active", name: "active", created: true},
		"the deletion of a permanent Namespace":   {operation: admission.Delete, resource: "namespaces", namespace: "default", name: "default", forbidden: true, created: true},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			storage := fakeStorage{"active": corev1.NamespaceActive, "terminating": corev1.NamespaceTerminating, "default": corev1.NamespaceActive}
			l := New(identity.Controllers{}, Permanent()...)
			l.SetStorage(storage)
			if test.by == nil {
				test.by = anyUser
			}
			ctx := request.WithUser(t.Context(), test.by)
			err := l.Validate(ctx, admission.NewAttributesRecord(nil, nil, corev1.SchemeGroupVersion.WithKind("X"), test.namespace, test.name,
				corev1.SchemeGroupVersion.WithResource(test.resource), test.subresource, test.operation, nil, test.dryRun, test.by), nil)
			if apierrors.IsForbidden(err) != test.forbidden || apierrors.IsNotFound(err) != test.notFound ||
				apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) != test.terminating || err != nil && !test.forbidden && !test.notFound {
				t.Errorf("error is %v", err)
			}
			if _, created := storage[test.namespace]; created != test.created {
				t.Errorf("namespaces are %v", storage)
			}
		})
	}
}

// cachingStorage answers from cached at resource version 0, and counts the other reads.
type cachingStorage struct {
	fakeStorage
	cached fakeStorage
	reads  int
}

func (s *cachingStorage) Get(ctx context.Context, name string, options *metav1.GetOptions) (runtime.Object, error) {
	if options.ResourceVersion == "0" {
		return s.cached.Get(ctx, name, options)
	}
	s.reads++
	return s.fakeStorage.Get(ctx, name, options)
}

// The watch cache is enough for a Namespace that is active, unless it was deleted shortly ago.
func TestCachedNamespace(t *testing.T) {
	by := &user.DefaultInfo{Name: "alice"}
	attributes := func(operation admission.Operation, resource, namespace, name string) admission.Attributes {
		return admission.NewAttributesRecord(nil, nil, corev1.SchemeGroupVersion.WithKind("X"), namespace, name,
			corev1.SchemeGroupVersion.WithResource(resource), "", operation, nil, false, by)
	}
	synctest.Test(t, func(t *testing.T) {
		storage := &cachingStorage{
			fakeStorage{"active": corev1.NamespaceActive, "created": corev1.NamespaceActive, "deleted": corev1.NamespaceActive},
			fakeStorage{"active": corev1.NamespaceActive, "deleted": corev1.NamespaceActive}, 0,
		}
		l := New(identity.Controllers{})
		l.SetStorage(storage)
		ctx := request.WithUser(t.Context(), by)
		create := func(namespace string, reads int) error {
			t.Helper()
			storage.reads = 0
			err := l.Validate(ctx, attributes(admission.Create, "configmaps", namespace, "a"), nil)
			if storage.reads != reads {
				t.Errorf("%s: %d reads, want %d", namespace, storage.reads, reads)
			}
			return err
		}
		for namespace, reads := range map[string]int{"active": 0, "created": 1} {
			if err := create(namespace, reads); err != nil {
				t.Errorf("%s: %v", namespace, err)
			}
		}
		if err := l.Validate(ctx, attributes(admission.Delete, "namespaces", "deleted", "deleted"), nil); err != nil {
			t.Fatal(err)
		}
		storage.fakeStorage["deleted"] = corev1.NamespaceTerminating
		if err := create("deleted", 1); !apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
			t.Errorf("error is %v", err)
		}
		storage.cached["deleted"] = corev1.NamespaceTerminating
		<-time.After(maxLag + 1)
		if err := create("deleted", 1); !apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
			t.Errorf("error is %v", err)
		}
	})
}
