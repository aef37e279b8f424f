package destination

import (
	"errors"
	"fmt"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/reconciler"
)

// Reasons of an Unresolved. They follow the role of the destination, as in SubscriberNotFound.
const (
	// ReasonNotFound tells that the object, or its kind, does not exist.
	ReasonNotFound = "NotFound"
	// ReasonNotAddressable tells that the object has no usable address, or not the one that was asked for.
	ReasonNotAddressable = "NotAddressable"
	// ReasonForbidden tells that the controllers may not read the object.
	ReasonForbidden = "Forbidden"
	// ReasonNotGranted tells that the object is in another namespace and does not grant that it is referred to.
	ReasonNotGranted = "NotGranted"
	// ReasonTooManyKinds is why the object cannot be read where too many kinds are referred to.
	ReasonTooManyKinds = "TooManyKinds"
	// ReasonUnavailable tells that the host cluster did not let the object be read.
	ReasonUnavailable = "Unavailable"
	// ReasonInvalid tells that the destination itself makes no URL.
	ReasonInvalid = "Invalid"
)

// Unresolved is the error of a destination that has no address now. It may have one when what it refers to changes.
type Unresolved struct {
	// Reason is one of the above.
	Reason string
	// Message says which object lacks what.
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
