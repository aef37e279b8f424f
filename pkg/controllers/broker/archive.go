package broker

import (
	"context"
	"fmt"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/cache"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	eventingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/reconciler"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
	"github.com/knative-apiserver/knative-apiserver/pkg/settings"
)

// Reasons of the condition ArchiveReady, besides eventingv1.BrokerReasonArchiveDisabled.
const (
	// ReasonPartitioned means that the Broker has several partitions: it has no archive.
	ReasonPartitioned = "Partitioned"
	// ReasonArchiveLimited means that the operator's limits are lower than the configured ones.
	ReasonArchiveLimited = "ArchiveLimited"
	// ReasonConfigInvalid means that a key of the ConfigMap is invalid.
	ReasonConfigInvalid = "ConfigInvalid"
	// ReasonConfigUnavailable means that the ConfigMap cannot be read.
	ReasonConfigUnavailable = "ConfigUnavailable"
)

const (
	// pollInterval is the time between reads of a ConfigMap that is not watched, retryInterval the time after a failed read.
	pollInterval, retryInterval = time.Minute, 10 * time.Second
	// maxFault bounds the text about wrong values in a condition.
	maxFault = 500
)

// Archives is the part of the data plane that archives events. See archive.Store.
type Archives interface {
	Set(broker eventing.Key, uid types.UID, config *eventing.Archive) error
	Keep(ctx context.Context, broker eventing.Key, uid types.UID) error
	Remove(broker eventing.Key)
}

// Archiving configures the archives of Brokers by the ConfigMaps that their spec.config refers to. It reads ConfigMaps of the Broker's
// namespace and of the system namespace only: others may belong to other tenants.
type Archiving struct {
	// Archives is nil if the operator disabled archives.
	Archives   Archives
	ConfigMaps corev1client.ConfigMapsGetter
	// Informer has the metadata of all ConfigMaps. Nil reads them every minute, because a right to watch them would include their content.
	Informer        cache.SharedIndexInformer
	SystemNamespace string
	// MaxRetention and MaxBytes are the operator's limits.
	MaxRetention time.Duration
	MaxBytes     int64
}

// watchConfigMaps enqueues Brokers when their ConfigMap changes.
func (r *Reconciler) watchConfigMaps(controller *reconciler.Controller) error {
	if r.Archiving == nil || r.Archiving.Informer == nil {
		return nil
	}
	return controller.Watch(r.Archiving.Informer, func(obj metav1.Object) (keys []types.NamespacedName) {
		brokers, err := r.Brokers.List(labels.Everything())
		if err != nil {
			return nil
		}
		for _, b := range brokers {
			if r.Archiving.reads(b) && b.Spec.Config.Namespace == obj.GetNamespace() && b.Spec.Config.Name == obj.GetName() {
				keys = append(keys, types.NamespacedName{Namespace: b.Namespace, Name: b.Name})
			}
		}
		return keys
	})
}

// reads reports whether the configuration of a Broker is a ConfigMap that the Broker may use.
func (a *Archiving) reads(broker *eventingv1.Broker) bool {
	ref := broker.Spec.Config
	return ref != nil && ref.APIVersion == "v1" && ref.Kind == "ConfigMap" && ref.Name != "" &&
		(ref.Namespace == broker.Namespace || ref.Namespace == a.SystemNamespace)
}

// apply sets the archive of a Broker. It returns the condition, or nil without one, and the time until it must be called again, or 0.
func (a *Archiving) apply(ctx context.Context, broker *eventingv1.Broker, stream *eventing.Stream) (*duckv1.Condition, time.Duration, error) {
	if a == nil {
		return nil, 0, nil
	}
	if !a.reads(broker) {
		return nil, 0, a.set(stream, nil)
	}
	requeue := pollInterval
	if a.Informer != nil {
		requeue = 0
	}
	ref := broker.Spec.Config
	config, err := a.ConfigMaps.ConfigMaps(ref.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, requeue, a.set(stream, nil)
	}
	if err != nil {
		condition := reconciler.Unknown(eventingv1.BrokerConditionArchiveReady, ReasonConfigUnavailable, fmt.Sprintf("ConfigMap %q in namespace %q cannot be read: %v", ref.Name, ref.Namespace, err))
		return &condition, retryInterval, a.keep(ctx, stream)
	}
	wanted, err := settings.ParseArchive(config.Name, config.Data)
	if err != nil {
		condition := reconciler.False(eventingv1.BrokerConditionArchiveReady, ReasonConfigInvalid, fmt.Sprintf("ConfigMap in namespace %q: %.*s", ref.Namespace, maxFault, err.Error()))
		return &condition, requeue, a.keep(ctx, stream)
	}
	if wanted == nil {
		return nil, requeue, a.set(stream, nil)
	}
	if stream.Partitions > 1 {
		condition := reconciler.False(eventingv1.BrokerConditionArchiveReady, ReasonPartitioned, "The Broker has several partitions; only Brokers with one are archived.")
		return &condition, requeue, a.set(stream, nil)
	}
	condition := a.condition(wanted)
	return &condition, requeue, a.set(stream, wanted)
}

func (a *Archiving) set(stream *eventing.Stream, config *eventing.Archive) error {
	if a.Archives == nil {
		return nil
	}
	return a.Archives.Set(stream.Key, stream.UID, config)
}

func (a *Archiving) keep(ctx context.Context, stream *eventing.Stream) error {
	if a.Archives == nil {
		return nil
	}
	return a.Archives.Keep(ctx, stream.Key, stream.UID)
}

// remove forgets the archive of a Broker.
func (a *Archiving) remove(broker eventing.Key) {
	if a != nil && a.Archives != nil {
		a.Archives.Remove(broker)
	}
}

// condition returns the condition of a Broker that asks for an archive.
func (a *Archiving) condition(wanted *eventing.Archive) duckv1.Condition {
	condition := reconciler.True(eventingv1.BrokerConditionArchiveReady)
	switch {
	case a.Archives == nil:
		return reconciler.False(eventingv1.BrokerConditionArchiveReady, eventingv1.BrokerReasonArchiveDisabled, "The operator disabled archives: --archive-max-retention is 0.")
	case wanted.Retention > a.MaxRetention:
		condition.Reason = ReasonArchiveLimited
		condition.Message = fmt.Sprintf("%s %s exceeds the operator's limit: events are deleted after %s.", settings.KeyArchiveRetention, wanted.Retention, a.MaxRetention)
	case wanted.MaxBytes > a.MaxBytes:
		condition.Reason = ReasonArchiveLimited
		condition.Message = fmt.Sprintf("%s %s exceeds the operator's limit: the archives of the namespace have at most %s.",
			settings.KeyArchiveMaxBytes, bytesOf(wanted.MaxBytes), bytesOf(a.MaxBytes))
	}
	return condition
}

func bytesOf(n int64) string { return resource.NewQuantity(n, resource.BinarySI).String() }

// observeArchive sets the condition of the archive, or removes it if condition is nil.
func observeArchive(conditions *duckv1.Conditions, condition *duckv1.Condition, now metav1.Time) {
	if condition != nil {
		condition.Severity = duckv1.ConditionSeverityWarning
		conditions.Set(*condition, now)
		return
	}
	if conditions.Get(eventingv1.BrokerConditionArchiveReady) != nil {
		*conditions = slices.DeleteFunc(slices.Clone(*conditions), func(c duckv1.Condition) bool { return c.Type == eventingv1.BrokerConditionArchiveReady })
	}
}
