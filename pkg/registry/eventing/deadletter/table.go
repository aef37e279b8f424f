package deadletter

import (
	"errors"

	"k8s.io/apiserver/pkg/registry/rest"

	eventingv1alpha1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1alpha1"
	"github.com/knative-apiserver/knative-apiserver/pkg/registry"
)

var errPrecondition = errors.New("the UID or the resource version of the precondition is another one")

func newTableConvertor() rest.TableConvertor {
	type letter = *eventingv1alpha1.DeadLetter
	object := func(o eventingv1alpha1.DeadLetterObject) string {
		name := o.Kind + "/" + o.Name
		if o.Namespace != "" {
			name = o.Kind + "/" + o.Namespace + "/" + o.Name
		}
		return name
	}
	code := func(d letter) any {
		if d.LastCode == 0 {
			return nil
		}
		return int64(d.LastCode)
	}
	return registry.NewTableConvertor(
		registry.NameColumn[letter](),
		registry.Column[letter]{Name: "ID", Type: "string", Description: "The attribute id of the event.", Value: func(d letter) any { return d.Event.ID }},
		registry.Column[letter]{Name: "Type", Type: "string", Description: "The attribute type of the event.", Value: func(d letter) any { return d.Event.Type }},
		registry.Column[letter]{Name: "Object", Type: "string", Description: "The Trigger or Subscription.", Value: func(d letter) any { return object(d.Consumer) }},
		registry.Column[letter]{Name: "Subscriber", Type: "string", Description: "The URL that did not accept the event.", Value: func(d letter) any { return d.Subscriber }},
		registry.Column[letter]{Name: "Attempts", Type: "integer", Description: "The number of attempts to deliver the event.", Value: func(d letter) any { return int64(d.Attempts) }},
		registry.Column[letter]{Name: "Code", Type: "integer", Description: "The HTTP status of the last response.", Value: code},
		registry.AgeColumn[letter](),
		registry.Column[letter]{Name: "Source", Type: "string", Wide: true, Description: "The attribute source of the event.", Value: func(d letter) any { return d.Event.Source }},
		registry.Column[letter]{Name: "Stream", Type: "string", Wide: true, Description: "The Broker or Channel that accepted the event.", Value: func(d letter) any { return object(d.Stream) }},
		registry.Column[letter]{Name: "Error", Type: "string", Wide: true, Description: "The failure of the last attempt.", Value: func(d letter) any { return d.LastError }},
	)
}
