package eventrun

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	eventingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1"
	eventingv1alpha1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1alpha1"
	"github.com/knative-apiserver/knative-apiserver/pkg/registry"
	"github.com/knative-apiserver/knative-apiserver/pkg/settings"
)

// replayREST is the subresource replay.
type replayREST struct {
	subresource
	brokers, triggers rest.Getter
	clock             clock.PassiveClock
}

var (
	_ rest.NamedCreater             = &replayREST{}
	_ rest.GroupVersionKindProvider = &replayREST{}
	_ rest.StorageMetadata          = &replayREST{}
	_ rest.TableConvertor           = &replayREST{}
)

// NewReplay returns the subresource replay of Brokers.
func NewReplay(brokers, triggers rest.Getter, runs *Runs, clock clock.PassiveClock) rest.Storage {
	return &replayREST{subresource: newSubresource(runs), brokers: brokers, triggers: triggers, clock: clock}
}

// New returns an empty request.
func (*replayREST) New() runtime.Object { return &eventingv1alpha1.Replay{} }

// GroupVersionKind returns the kind of requests, which is of another version than the resource.
func (*replayREST) GroupVersionKind(schema.GroupVersion) schema.GroupVersionKind {
	return eventingv1alpha1.SchemeGroupVersion.WithKind("Replay")
}

// Create creates the EventRun that delivers archived events of a Broker again. The end of the replay is fixed, so that it has no events
// that the Broker accepts meanwhile.
func (r *replayREST) Create(ctx context.Context, name string, obj runtime.Object, validate rest.ValidateObjectFunc, options *metav1.CreateOptions) (runtime.Object, error) {
	asked, err := registry.BodyAs[*eventingv1alpha1.Replay](obj, "Broker", name)
	if err != nil {
		return nil, err
	}
	broker, err := registry.GetAs[*eventingv1.Broker](ctx, r.brokers, name, &metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	replay := r.replayOf(asked, name)
	errs := eventingv1alpha1.ValidateReplay(asked)
	if len(errs) == 0 && replay.From != nil && !replay.From.Before(&replay.To) {
		errs = append(errs, field.Invalid(field.NewPath("from"), replay.From.UTC().Format(time.RFC3339Nano), "must be in the past"))
	}
	run, resource := newRun(eventingv1.SchemeGroupVersion.WithKind("Broker"), broker), eventingv1.Resource("brokers")
	if asked.Trigger != "" {
		trigger, err := r.trigger(ctx, broker, asked.Trigger)
		if err != nil {
			errs = append(errs, err)
		} else {
			run, resource = newRun(eventingv1.SchemeGroupVersion.WithKind("Trigger"), trigger), eventingv1.Resource("triggers")
		}
	}
	if len(errs) > 0 {
		return nil, apierrors.NewInvalid(eventingv1alpha1.SchemeGroupVersion.WithKind("Replay").GroupKind(), name, errs)
	}
	if validate != nil {
		if err := validate(ctx, obj); err != nil {
			return nil, err
		}
	}
	if err := checkArchive(broker); err != nil {
		return nil, apierrors.NewConflict(eventingv1.Resource("brokers"), name, err)
	}
	run.Spec.Replay = replay
	return r.runs.create(ctx, run, resource, options)
}

// replayOf returns the spec of a replay.
func (r *replayREST) replayOf(asked *eventingv1alpha1.Replay, broker string) *eventingv1alpha1.EventRunReplay {
	// Times in the spec have microseconds: an event of the current one is part of the replay.
	to := r.clock.Now().Add(time.Microsecond).Truncate(time.Microsecond)
	if asked.To != nil && asked.To.Time.Before(to) {
		to = asked.To.Time
	}
	replay := &eventingv1alpha1.EventRunReplay{Broker: broker, To: metav1.NewMicroTime(to), Selector: asked.Selector, Rate: asked.Rate}
	if asked.From != nil {
		replay.From = ptr.To(metav1.NewMicroTime(asked.From.Time))
	}
	return replay
}

// trigger returns the Trigger of a Broker that gets the events, or the error of the field.
func (r *replayREST) trigger(ctx context.Context, broker *eventingv1.Broker, name string) (*eventingv1.Trigger, *field.Error) {
	path := field.NewPath("trigger")
	trigger, err := registry.GetAs[*eventingv1.Trigger](ctx, r.triggers, name, &metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, field.NotFound(path, name)
	case err != nil:
		return nil, field.InternalError(path, err)
	case trigger.BrokerName() != types.NamespacedName{Namespace: broker.Namespace, Name: broker.Name}:
		return nil, field.Invalid(path, name, fmt.Sprintf("must be a Trigger of Broker '%s'", broker.Name))
	case trigger.DeletionTimestamp != nil:
		return nil, field.Invalid(path, name, "must not be in deletion")
	}
	return trigger, nil
}

// checkArchive returns an error if a Broker has no archive. The controller of Brokers, which reads their configuration, reports that.
func checkArchive(broker *eventingv1.Broker) error {
	if broker.DeletionTimestamp != nil {
		return errors.New("the Broker is being deleted, with its archive")
	}
	c := broker.Status.Conditions.Get(eventingv1.BrokerConditionArchiveReady)
	if c == nil {
		return fmt.Errorf("the Broker has no archive: set the key '%s' in the ConfigMap of its spec.config, and wait for its condition %s; events that were accepted before cannot be replayed",
			settings.KeyArchiveRetention, eventingv1.BrokerConditionArchiveReady)
	}
	if c.Status == corev1.ConditionFalse && c.Reason == eventingv1.BrokerReasonArchiveDisabled {
		return fmt.Errorf("the Broker has no archive, although the key '%s' asks for one: %s", settings.KeyArchiveRetention, c.Message)
	}
	return nil
}
