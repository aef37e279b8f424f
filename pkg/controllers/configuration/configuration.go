// Package configuration reconciles Configurations: it creates a Revision for each state of the template, and reports the latest
// created and the latest ready Revision (serving 7.2).
package configuration

import (
	"context"
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"

	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/configuration/resources"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/reconciler"
	servingclient "github.com/knative-apiserver/knative-apiserver/pkg/generated/clientset/versioned/typed/serving/v1"
	servinginformers "github.com/knative-apiserver/knative-apiserver/pkg/generated/informers/externalversions/serving/v1"
	servinglisters "github.com/knative-apiserver/knative-apiserver/pkg/generated/listers/serving/v1"
)

// byRevisionName is the index of Configurations by namespace and name of the Revision for their current generation.
const byRevisionName = "revisionName"

// Reconciler creates the Revisions of Configurations and writes the status of Configurations.
type Reconciler struct {
	Client         servingclient.ServingV1Interface
	Configurations servinglisters.ConfigurationLister
	Revisions      servinglisters.RevisionLister
	// RevisionIndex has the index reconciler.ByController.
	RevisionIndex cache.Indexer
	Recorder      record.EventRecorder
	Clock         clock.PassiveClock
}

// Controller returns the controller that runs r, and sets the listers and RevisionIndex.
func (r *Reconciler) Controller(informers servinginformers.Interface) (*reconciler.Controller, error) {
	configurations, revisions := informers.Configurations().Informer(), informers.Revisions().Informer()
	if err := reconciler.IndexByController(revisions); err != nil {
		return nil, err
	}
	if err := reconciler.AddIndex(configurations, byRevisionName, revisionNameOf); err != nil {
		return nil, err
	}
	r.Configurations, r.Revisions = informers.Configurations().Lister(), informers.Revisions().Lister()
	r.RevisionIndex = revisions.GetIndexer()
	controller := reconciler.New("configuration", r)
	if err := controller.Watch(configurations, reconciler.KeyOf); err != nil {
		return nil, err
	}
	if err := controller.Watch(revisions, keysOfRevision(configurations.GetIndexer())); err != nil {
		return nil, err
	}
	return controller, nil
}

func revisionNameOf(obj any) ([]string, error) {
	if configuration, ok := obj.(*servingv1.Configuration); ok {
		return []string{configuration.Namespace + "/" + resources.RevisionName(configuration)}, nil
	}
	return nil, nil
}

// keysOfRevision returns a function that returns the keys of the Configuration that controls a Revision, and of the Configurations
// that wait for its name to become free.
func keysOfRevision(configurations cache.Indexer) func(metav1.Object) []types.NamespacedName {
	controllerOf := reconciler.ControllerOf("Configuration")
	return func(revision metav1.Object) []types.NamespacedName {
		keys := controllerOf(revision)
		named, err := reconciler.Indexed[metav1.Object](configurations, byRevisionName, revision.GetNamespace()+"/"+revision.GetName())
		if err != nil {
			return keys
		}
		for _, configuration := range named {
			keys = append(keys, reconciler.KeyOf(configuration)...)
		}
		return keys
	}
}

// Reconcile creates the Revision of a Configuration's current template if it does not exist, and writes the status.
func (r *Reconciler) Reconcile(ctx context.Context, request reconciler.Request) (reconciler.Result, error) {
	key := request.Key
	configuration, ok, err := reconciler.Live(r.Configurations.Configurations(key.Namespace), key.Name)
	if err != nil || !ok || !request.Writes {
		return reconciler.Result{}, err
	}
	owned, err := reconciler.ControlledBy[*servingv1.Revision](r.RevisionIndex, configuration.UID)
	if err != nil {
		return reconciler.Result{}, err
	}
	if err := r.label(ctx, configuration, owned); err != nil {
		return reconciler.Result{}, err
	}
	current, fault, failed := r.ensureRevision(ctx, configuration)
	if failed != nil && fault == nil {
		return reconciler.Result{}, failed
	}
	updated := *configuration
	updated.Status = status(configuration, observation{revisions: owned, current: current, fault: fault}, metav1.NewTime(r.Clock.Now()))
	written, err := request.Status.DeferUnknown(ctx, reconciler.UpdateOf(r.Client.Configurations(key.Namespace), configuration, &updated))
	if err != nil {
		return reconciler.Result{}, err
	}
	if written && metav1.GetControllerOfNoCopy(configuration) == nil {
		// A Service records the same Events about itself.
		reconciler.RecordReady(r.Recorder, &updated, configuration.Status.Conditions, updated.Status.Conditions)
	}
	return reconciler.Result{}, failed
}

// ensureRevision returns the Revision of the Configuration's current template, and creates it if it does not exist. If it cannot
// exist, the fault is for the status, and the error is to be retried.
func (r *Reconciler) ensureRevision(ctx context.Context, configuration *servingv1.Configuration) (*servingv1.Revision, *fault, error) {
	name := resources.RevisionName(configuration)
	revision, err := r.Revisions.Revisions(configuration.Namespace).Get(name)
	if apierrors.IsNotFound(err) {
		revisions := r.Client.Revisions(configuration.Namespace)
		created, err := revisions.Create(ctx, resources.Revision(configuration, r.Clock.Now()), metav1.CreateOptions{})
		switch {
		case err == nil:
			r.Recorder.Eventf(configuration, corev1.EventTypeNormal, reconciler.ReasonCreated, "Created Revision %q", name)
			return created, nil, nil
		case reconciler.Refused(err):
			return nil, &fault{reason: reasonRevisionFailed, message: fmt.Sprintf("Revision creation failed with message: %v.", err)}, err
		case !apierrors.IsAlreadyExists(err):
			return nil, nil, err
		}
		// The informer lags behind, for example right after the Revision was created.
		if revision, err = revisions.Get(ctx, name, metav1.GetOptions{}); err != nil {
			return nil, nil, err
		}
	} else if err != nil {
		return nil, nil, err
	}
	if fault := conflict(configuration, revision); fault != nil {
		return nil, fault, nil
	}
	return revision, nil, nil
}

// label restores the labels that name the owners of Revisions.
func (r *Reconciler) label(ctx context.Context, configuration *servingv1.Configuration, owned []*servingv1.Revision) error {
	wanted := resources.OwnerLabels(configuration)
	selector := labels.SelectorFromSet(wanted)
	for _, revision := range owned {
		if revision.DeletionTimestamp != nil || selector.Matches(labels.Set(revision.Labels)) {
			continue
		}
		patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": revision.UID, "labels": wanted}})
		if err != nil {
			return err
		}
		_, err = r.Client.Revisions(revision.Namespace).Patch(ctx, revision.Name, types.MergePatchType, patch, metav1.PatchOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("label Revision %q: %w", revision.Name, err)
		}
	}
	return nil
}
