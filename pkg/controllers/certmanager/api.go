package certmanager

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/tools/cache"

	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/reconciler"
	"github.com/knative-apiserver/knative-apiserver/pkg/shorten"
)

// definitions is the resource of CustomResourceDefinitions, definitionName the name of the one of Certificates.
var definitions = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}

const definitionName = "certificates.cert-manager.io"

// watch is an informer with the error of its last request.
type watch struct {
	informer cache.SharedIndexInformer

	mu  sync.Mutex
	err error // guarded by mu
}

// newWatch returns a watch of a resource. failed is called after failed requests, which the informer repeats, until the first list.
func (m *Manager) newWatch(resource schema.GroupVersionResource, tweak dynamicinformer.TweakListOptionsFunc, transform cache.TransformFunc, failed func()) (*watch, error) {
	w := &watch{informer: dynamicinformer.NewFilteredDynamicInformer(m.client, resource, metav1.NamespaceAll, 0, cache.Indexers{}, tweak).Informer()}
	if err := w.informer.SetTransform(transform); err != nil {
		return nil, err
	}
	err := w.informer.SetWatchErrorHandlerWithContext(func(_ context.Context, _ *cache.Reflector, err error) {
		if errors.Is(err, io.EOF) || apierrors.IsResourceExpired(err) {
			// Watches end like this every few minutes.
			return
		}
		w.mu.Lock()
		known := w.err != nil && w.err.Error() == err.Error()
		w.err = err
		w.mu.Unlock()
		if !known {
			m.logger.Info("Failed to watch a resource of the cluster; retrying", "resource", resource.GroupResource().String(), "reason", err.Error())
			if !w.informer.HasSynced() {
				failed()
			}
		}
	})
	return w, err
}

// problem returns why the resource has not been listed.
func (w *watch) problem() *State {
	w.mu.Lock()
	defer w.mu.Unlock()
	reason := "the cluster has not answered yet"
	if w.err != nil {
		reason = shorten.Text(w.err.Error(), maxMessage)
	}
	return &State{Problem: "cert-manager's Certificates cannot be read: " + reason}
}

// watchDefinition returns the watch of the CustomResourceDefinition of Certificates, which does not run yet.
func (m *Manager) watchDefinition() (*watch, error) {
	w, err := m.newWatch(definitions, func(options *metav1.ListOptions) {
		options.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, definitionName).String()
	}, trimmedDefinition, m.determined)
	if err != nil {
		return nil, err
	}
	wake := func(any) {
		select {
		case m.wake <- struct{}{}:
		default:
		}
	}
	_, err = w.informer.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: wake, UpdateFunc: func(_, current any) { wake(current) }, DeleteFunc: wake})
	return w, err
}

// watchCertificates returns the watch of Certificates, which does not run yet.
func (m *Manager) watchCertificates() (*watch, error) {
	w, err := m.newWatch(Resource, nil, trimmed, m.determined)
	if err != nil {
		return nil, err
	}
	if err := reconciler.IndexByController(w.informer); err != nil {
		return nil, err
	}
	_, err = w.informer.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: m.changed, UpdateFunc: func(_, current any) { m.changed(current) }, DeleteFunc: m.changed})
	return w, err
}

// Run follows Certificates while the host serves them, until ctx is canceled.
func (m *Manager) Run(ctx context.Context) {
	defer time.AfterFunc(patience, m.settle).Stop()
	var running sync.WaitGroup
	defer running.Wait()
	running.Go(func() { m.definition.informer.RunWithContext(ctx) })
	select {
	case <-m.definition.informer.HasSyncedChecker().Done():
	case <-ctx.Done():
		return
	}
	stop := func() {}
	defer func() { stop() }()
	for {
		served := slices.ContainsFunc(m.definition.informer.GetStore().List(), isServed)
		m.mu.Lock()
		watched, absent := m.certificates != nil, m.absent
		m.mu.Unlock()
		switch {
		case served && !watched:
			certificates, err := m.watchCertificates()
			if err != nil {
				m.logger.Error(err, "Failed to watch Certificates of cert-manager")
				return
			}
			watching, cancel := context.WithCancel(ctx)
			stop = cancel
			m.set(certificates)
			running.Go(func() { certificates.informer.RunWithContext(watching) })
			running.Go(func() {
				select {
				case <-certificates.informer.HasSyncedChecker().Done():
					m.determined()
				case <-watching.Done():
				}
			})
		case !served && !absent:
			stop()
			m.set(nil)
			m.determined()
		}
		select {
		case <-m.wake:
		case <-ctx.Done():
			return
		}
	}
}

// set replaces the watch of Certificates; nil means that the host does not serve them.
func (m *Manager) set(certificates *watch) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.certificates, m.absent = certificates, certificates == nil
}

// determined lets waiting objects continue, and notifies all others.
func (m *Manager) determined() {
	m.settle()
	m.allChanged()
}

// listed returns all Certificates, or why they are unknown.
func (m *Manager) listed() (cache.Indexer, *State) {
	m.mu.Lock()
	certificates, absent := m.certificates, m.absent
	m.mu.Unlock()
	switch {
	case absent:
		return nil, &State{Problem: fmt.Sprintf("the cluster does not serve %s/%s of cert-manager", Resource.GroupResource(), Resource.Version), Failed: true}
	case certificates == nil:
		return nil, m.definition.problem()
	case !certificates.informer.HasSynced():
		return nil, certificates.problem()
	}
	return certificates.informer.GetIndexer(), nil
}

// isServed reports whether a CustomResourceDefinition is established, and its resource served in the version of Resource.
func isServed(obj any) bool {
	definition, ok := obj.(*unstructured.Unstructured)
	if !ok || !isTrue(conditionOf(definition, "Established").status) {
		return false
	}
	versions, _, _ := unstructured.NestedSlice(definition.Object, "spec", "versions")
	return slices.ContainsFunc(versions, func(version any) bool {
		fields, _ := version.(map[string]any)
		return fields["name"] == Resource.Version && fields["served"] == true
	})
}

// trimmedDefinition returns a CustomResourceDefinition without its schemas.
func trimmedDefinition(obj any) (any, error) {
	whole, ok := obj.(*unstructured.Unstructured)
	if !ok {
		return obj, nil
	}
	small := withMetadata(whole)
	copyFields(small, whole, "status", "conditions")
	all, _, _ := unstructured.NestedSlice(whole.Object, "spec", "versions")
	var versions []any
	for _, one := range all {
		if fields, ok := one.(map[string]any); ok {
			versions = append(versions, map[string]any{"name": fields["name"], "served": fields["served"]})
		}
	}
	return small, unstructured.SetNestedSlice(small.Object, versions, "spec", "versions")
}

// trimmed returns a Certificate with the fields that are read. The Certificates of others are only names.
func trimmed(obj any) (any, error) {
	whole, ok := obj.(*unstructured.Unstructured)
	if !ok {
		return obj, nil
	}
	small := withMetadata(whole)
	if controller := metav1.GetControllerOfNoCopy(whole); controller == nil || !isOurs(controller) {
		return small, nil
	}
	small.SetLabels(whole.GetLabels())
	for _, field := range []string{"dnsNames", "secretName", "issuerRef"} {
		copyFields(small, whole, "spec", field)
	}
	copyFields(small, whole, "status", "conditions")
	return small, nil
}

// withMetadata returns the kind, the identity and the owners of an object.
func withMetadata(whole *unstructured.Unstructured) *unstructured.Unstructured {
	small := &unstructured.Unstructured{Object: map[string]any{}}
	small.SetGroupVersionKind(whole.GroupVersionKind())
	small.SetNamespace(whole.GetNamespace())
	small.SetName(whole.GetName())
	small.SetUID(whole.GetUID())
	small.SetResourceVersion(whole.GetResourceVersion())
	small.SetGeneration(whole.GetGeneration())
	small.SetOwnerReferences(whole.GetOwnerReferences())
	return small
}

// copyFields copies a field of an object, if it exists.
func copyFields(to, from *unstructured.Unstructured, path ...string) {
	if value, found, err := unstructured.NestedFieldNoCopy(from.Object, path...); found && err == nil {
		// It cannot fail: to has maps only.
		_ = unstructured.SetNestedField(to.Object, value, path...)
	}
}
