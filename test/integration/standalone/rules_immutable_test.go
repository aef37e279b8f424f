package standalone

import (
	"testing"

	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// TestImmutableFields checks the fields that are fixed at creation, which the response names with old and new value (eventing
// Broker Lifecycle-5, Trigger Lifecycle-6, Channel Lifecycle-5, Subscription Lifecycle-10).
func TestImmutableFields(t *testing.T) {
	for _, tc := range []struct {
		name, kind string
		change     object
		cause      string
		message    []string
	}{
		{
			"class (eventing Broker Lifecycle)", "Broker",
			object{"metadata": object{"annotations": object{"eventing.knative.dev/broker.class": "Kafka"}}},
			"FieldValueInvalid metadata.annotations[eventing.knative.dev/broker.class]", []string{"JetStreamBroker", "Kafka"},
		},
		{
			"class to its alias", "Broker",
			object{"metadata": object{"annotations": object{"eventing.knative.dev/broker.class": "MTChannelBasedBroker"}}},
			"FieldValueInvalid metadata.annotations[eventing.knative.dev/broker.class]", []string{"JetStreamBroker", "MTChannelBasedBroker"},
		},
		{
			"config (eventing Broker Lifecycle)", "Broker",
			object{"spec": object{"config": object{"apiVersion": "v1", "kind": "ConfigMap", "name": "other"}}},
			"FieldValueInvalid spec.config", []string{"{}", `"name":"other"`},
		},
		{
			"broker (eventing Trigger Lifecycle)", "Trigger",
			object{"spec": object{"broker": "other", "subscriber": object{"uri": "http://sink.example.com/"}}},
			"FieldValueInvalid spec.broker", []string{"'default'", "'other'"},
		},
		{
			"template (eventing Channel Lifecycle)", "Channel",
			object{"spec": object{"channelTemplate": object{"apiVersion": "messaging.knative.dev/v1", "kind": "InMemoryChannel"}}},
			"FieldValueInvalid spec.channelTemplate", []string{"JetStreamChannel", "InMemoryChannel"},
		},
		{
			"template's parameters", "Channel",
			object{"spec": object{"channelTemplate": object{"apiVersion": "messaging.knative.dev/v1", "kind": "JetStreamChannel", "spec": object{"replicas": int64(3)}}}},
			"FieldValueInvalid spec.channelTemplate", []string{`"replicas":3`},
		},
		{
			"channel (eventing Subscription Lifecycle)", "Subscription",
			object{"spec": object{
				"channel":    object{"apiVersion": "messaging.knative.dev/v1", "kind": "Channel", "name": "other"},
				"subscriber": object{"uri": "http://sink.example.com/"},
			}},
			"FieldValueInvalid spec.channel", []string{`"name":"orders"`, `"name":"other"`},
		},
	} {
		for _, way := range updateWays() {
			t.Run(tc.kind+" "+tc.name+"/"+way.name, func(t *testing.T) {
				before := stored(t, harness.KindOf(tc.kind))
				status := wantInvalid(t, way.update(t, before, tc.change), tc.cause)
				wantMessage(t, status, tc.message...)
				wantSame(t, before, reread(t, before))
			})
		}
	}
}

// TestMutableFields checks that all other fields can be changed in every way (eventing Trigger Lifecycle-10, Subscription
// Lifecycle-13).
func TestMutableFields(t *testing.T) {
	sink := func(uri string) object { return object{"uri": uri} }
	for _, tc := range []struct {
		kind   string
		change object
	}{
		{"Broker", object{"delivery": object{"retry": int64(3), "backoffPolicy": "linear", "backoffDelay": "PT1S", "deadLetterSink": sink("http://dead.example.com/")}}},
		{"Trigger", object{"broker": "default", "subscriber": sink("http://other.example.com/"), "filter": object{"attributes": object{"type": "a"}}}},
		{"Trigger", object{"broker": "default", "subscriber": sink("http://sink.example.com/"), "filters": []any{object{"cesql": "type = 'a'"}}}},
		{"Channel", object{"delivery": object{"retry": int64(3), "timeout": "PT30S"}}},
		{"Subscription", object{"channel": object{"apiVersion": "messaging.knative.dev/v1", "kind": "Channel", "name": "orders"}, "subscriber": sink("http://other.example.com/")}},
		{"Subscription", object{"channel": object{"apiVersion": "messaging.knative.dev/v1", "kind": "Channel", "name": "orders"}, "reply": sink("http://reply.example.com/")}},
		{"Service", object{"template": object{"spec": object{"containers": []any{object{"image": "registry.example.com/other"}}}}}},
		{"Service", object{
			"template": object{"spec": object{"containers": []any{object{"image": "registry.example.com/hello"}}}},
			"traffic":  []any{object{"revisionName": "a-00001", "percent": int64(40)}, object{"latestRevision": true, "percent": int64(60), "tag": "next"}},
		}},
		{"Configuration", object{"template": object{"spec": object{"containers": []any{object{"image": "registry.example.com/other"}}}}}},
		{"Route", object{"traffic": []any{object{"revisionName": "a-00001", "percent": int64(100), "tag": "current"}}}},
	} {
		for _, way := range updateWays() {
			t.Run(tc.kind+"/"+way.name, func(t *testing.T) {
				before := stored(t, harness.KindOf(tc.kind))
				if way.name == "strategic merge patch" && tc.kind != "Route" && tc.kind != "Trigger" {
					// Lists of containers are merged by name.
					tc.change = named(tc.change)
				}
				way.update(t, before, object{"spec": tc.change}).Object(t)
				after := reread(t, before)
				if after.GetGeneration() != 2 {
					t.Errorf("generation is %d, want 2", after.GetGeneration())
				}
			})
		}
	}
}

// named sets the default names of the containers of a spec.
func named(spec object) object {
	template, ok := spec["template"].(object)
	if !ok {
		return spec
	}
	container := template["spec"].(object)["containers"].([]any)[0].(object)
	return merged(spec, object{"template": object{"spec": object{"containers": []any{merged(container, object{"name": "user-container"})}}}})
}

// TestOwnRevisionNames checks that a user's Revision name must change together with the template.
func TestOwnRevisionNames(t *testing.T) {
	template := func(name, image string) object {
		return object{"spec": object{"template": object{
			"metadata": object{"name": name},
			"spec":     object{"containers": []any{object{"name": "user-container", "image": image}}},
		}}}
	}
	for _, kind := range []string{"Service", "Configuration"} {
		for _, way := range updateWays() {
			t.Run(kind+"/"+way.name, func(t *testing.T) {
				obj := stored(t, harness.KindOf(kind))
				way.update(t, obj, template("a-one", "registry.example.com/one")).Object(t)
				one := reread(t, obj)
				status := wantInvalid(t, way.update(t, one, template("a-one", "registry.example.com/two")), "FieldValueInvalid spec.template.metadata.name")
				wantMessage(t, status, "registry.example.com/one", "registry.example.com/two")
				wantInvalid(t, way.update(t, one, template("b-one", "registry.example.com/two")), "FieldValueInvalid spec.template.metadata.name")
				way.update(t, one, template("a-two", "registry.example.com/two")).Object(t)
				// An older name with its spec is a rollback.
				way.update(t, reread(t, obj), template("a-one", "registry.example.com/one")).Object(t)
				if got := reread(t, obj).GetGeneration(); got != 4 {
					t.Errorf("generation is %d, want 4", got)
				}
			})
		}
	}
}
