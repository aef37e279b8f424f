package eventing

import "strings"

// groups are the API groups of the kinds of streams.
var groups = map[Kind]string{Broker: "eventing.knative.dev", Channel: "messaging.knative.dev"}

// Resource returns the API group and the resource of a kind of streams.
func Resource(kind Kind) (group, resource string) {
	return groups[kind], strings.ToLower(string(kind)) + "s"
}

// Audience returns the audience that tokens for a stream must have, such as "eventing.knative.dev/broker/default/orders", as in Knative's
// releases.
func Audience(stream Key) string {
	return strings.ToLower(strings.Join([]string{groups[stream.Kind], string(stream.Kind), stream.Namespace, stream.Name}, "/"))
}
