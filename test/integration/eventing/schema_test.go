package eventing

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// schema is the part of an OpenAPI v3 schema that locates fields.
type schema struct {
	Ref        string             `json:"$ref"`
	AllOf      []*schema          `json:"allOf"`
	Items      *schema            `json:"items"`
	Properties map[string]*schema `json:"properties"`
	Kinds      []struct {
		Group, Version, Kind string
	} `json:"x-kubernetes-group-version-kind"`
}

// schemas are the schemas of one API group by name.
type schemas map[string]*schema

// plain resolves references, and returns the schema of the items for a list.
func (all schemas) plain(s *schema) *schema {
	for s != nil {
		switch {
		case s.Ref != "":
			s = all[strings.TrimPrefix(s.Ref, "#/components/schemas/")]
		case len(s.AllOf) == 1:
			s = s.AllOf[0]
		case s.Items != nil:
			s = s.Items
		default:
			return s
		}
	}
	return &schema{}
}

// lacks returns the first element of a path, such as spec.delivery.retry, that a schema does not have.
func (all schemas) lacks(s *schema, path string) string {
	s = all.plain(s)
	for name := range strings.SplitSeq(path, ".") {
		next, found := s.Properties[name]
		if !found {
			return name
		}
		s = all.plain(next)
	}
	return ""
}

// under returns paths below another.
func under(parent string, names ...string) []string {
	paths := make([]string, len(names))
	for i, name := range names {
		paths[i] = parent + "." + name
	}
	return paths
}

// reference, destination and deliverySpec return the fields of these types.
func reference(parent string) []string {
	return under(parent, "apiVersion", "kind", "name", "namespace")
}

func destination(parent string) []string {
	return append(reference(parent+".ref"), parent+".uri")
}

func deliverySpec(parent string) []string {
	return append(destination(parent+".deadLetterSink"), under(parent, "retry", "backoffDelay", "backoffPolicy")...)
}

// TestFields checks that the API has all fields of the specification (eventing Detailed Resources-1) (eventing Detailed
// Resources-2 and -3), and accepts objects with only the required ones.
// It covers eventing Broker-4 to -9, eventing Trigger-5 to -10, eventing Channel-5 to -12, eventing Subscription-4 to -9,
// eventing Addressable-1, eventing duckv1.Addressable-1, eventing duckv1.Destination-1 and -2, eventing
// duckv1.SubscriberSpec-2 to -6, eventing duckv1.SubscriberStatus-1 to -4, eventing DeliverySpec-1, -3 to -5, eventing
// KReference-4, eventing PhysicalSubscriptionStatus-1 to -3, eventing TriggerFilter-6, and conventions Optional and
// Required-1.
func TestFields(t *testing.T) {
	status := under("status", "conditions.type", "conditions.status", "conditions.reason", "conditions.message", "conditions.severity",
		"conditions.lastTransitionTime", "observedGeneration")
	subscribers := append(under("spec.subscribers", "uid", "generation", "subscriberUri", "replyUri"), deliverySpec("spec.subscribers.delivery")...)
	fields := map[string][][]string{
		"Broker": {reference("spec.config"), deliverySpec("spec.delivery"), status, {"status.address.url", "status.deadLetterSinkUri"}},
		"Trigger": {{"spec.broker", "spec.filter.attributes"}, destination("spec.subscriber"), deliverySpec("spec.delivery"), status,
			{"status.subscriberUri", "status.deadLetterSinkUri"}},
		"Channel": {under("spec.channelTemplate", "apiVersion", "kind", "spec"), subscribers, deliverySpec("spec.delivery"), status,
			{"status.address.url", "status.deadLetterSinkUri"}, under("status.subscribers", "uid", "generation", "ready", "message")},
		"Subscription": {reference("spec.channel"), destination("spec.subscriber"), destination("spec.reply"), deliverySpec("spec.delivery"), status,
			under("status.physicalSubscription", "subscriberUri", "replyUri", "deadLetterSinkUri")},
	}
	for name, paths := range fields {
		kind := harness.KindOf(name)
		response := shared.Do(t, harness.Request{Method: http.MethodGet, Path: fmt.Sprintf("/openapi/v3/apis/%s/%s", kind.Group, kind.Version)})
		var document struct {
			Components struct{ Schemas schemas }
		}
		if err := json.Unmarshal(response.Body, &document); err != nil || response.Code != http.StatusOK {
			t.Fatalf("the schemas of %s: %d %v", kind.Group, response.Code, err)
		}
		all := document.Components.Schemas
		var root *schema
		for _, s := range all {
			if len(s.Kinds) == 1 && s.Kinds[0].Kind == name && s.Kinds[0].Group == kind.Group {
				root = s
			}
		}
		if root == nil {
			t.Fatalf("the schema of %s is missing", name)
		}
		for _, some := range paths {
			for _, path := range some {
				if missing := all.lacks(root, path); missing != "" {
					t.Errorf("%s has no field %s: %s is missing", name, path, missing)
				}
			}
		}

		ns := namespace()
		minimal := kind.Object(ns, "minimal")
		if response := shared.Do(t, harness.Request{Method: http.MethodPost, Path: kind.Collection(ns) + "?fieldValidation=Strict", Body: minimal.Object}); response.Code != http.StatusCreated {
			t.Errorf("the smallest %s: %d %s", name, response.Code, response.Body)
		}
	}
}
