package destination

import (
	"errors"
	"fmt"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/reconciler"
)

// Reasons of an Unresolved. They follow the role of the destination, as in SubscriberNotFound.
const (
	// ReasonNotFound means that the object, or its kind, does not exist.
	ReasonNotFound = "NotFound"
	// ReasonNotAddressable means that the object has no usable address, or not the requested one.
	ReasonNotAddressable = "NotAddressable"
	// ReasonForbidden means that the controllers may not read the object.
	ReasonForbidden = "Forbidden"
	// ReasonNotGranted means that the object is in another namespace and does not grant the reference.
	ReasonNotGranted = "NotGranted"
	// ReasonTooManyKinds means that too many kinds are watched to watch the kind of the object.
	ReasonTooManyKinds = "TooManyKinds"
	// ReasonUnavailable means that the object could not be read from the host cluster.
	ReasonUnavailable = "Unavailable"
	// ReasonInvalid means that the destination does not form a URL.
	ReasonInvalid = "Invalid"
)

// Unresolved is the error of a destination that has no address now. It may be resolved when the referenced object changes.
type Unresolved struct {
	// Reason is one of the above.
	Reason string
	// Message is a sentence with the object and the fault.
	Message string
}

// Error returns the message.
func (u *Unresolved) Error() string { return u.Message }

// Condition is the condition of a destination in a role, such as Subscriber: False, with SubscriberNotFound for a reason.
func (u *Unresolved) Condition(t duckv1.ConditionType, role string) duckv1.Condition {
	return reconciler.False(t, role+u.Reason, u.Message)
}

func unresolved(reason, format string, args ...any) *Unresolved {
	return &Unresolved{Reason: reason, Message: fmt.Sprintf(format, args...)}
}

// describe names an object in messages: serving.knative.dev/v1 Service "default/hello".
func describe(ref *duckv1.KReference) string {
	name := ref.Name
	if ref.Namespace != "" {
		name = ref.Namespace + "/" + ref.Name
	}
	return fmt.Sprintf("%s %s %q", ref.APIVersion, ref.Kind, name)
}

// AsUnresolved returns the Unresolved that an error is or wraps.
func AsUnresolved(err error) (*Unresolved, bool) { return errors.AsType[*Unresolved](err) }
