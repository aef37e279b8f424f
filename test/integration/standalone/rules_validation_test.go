package standalone

import (
	"net/http"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// container returns a spec whose template has one container with fields beside its image.
func container(fields object) object {
	return object{"template": object{"spec": object{"containers": []any{merged(object{"image": "registry.example.com/hello"}, fields)}}}}
}

// revision returns a spec whose template has fields beside its container.
func revision(fields object) object {
	return object{"template": object{"spec": merged(object{"containers": []any{object{"image": "registry.example.com/hello"}}}, fields)}}
}

func scaled(key, value string) object {
	return merged(container(nil), object{"template": object{"metadata": object{"annotations": object{"autoscaling.knative.dev/" + key: value}}}})
}

const firstContainer = "spec.template.spec.containers[0]"

// TestFaults checks that each kind of rule applies to every verb, with its response; unit tests in pkg/apis cover every field
// (eventing Trigger-1, -2, Subscription-1, Subscription Lifecycle-1, -8, KReference-1, -2, Detailed Resources-3).
// It covers conventions Optional and Required-2, conventions HTTP Status Codes-10, conventions Response Status-10,
// conventions Validation-1.
// It covers eventing Detailed Resources-5.
func TestFaults(t *testing.T) {
	sink := object{"uri": "http://sink.example.com/"}
	trigger := func(fields object) object {
		return merged(object{"broker": "default", "subscriber": sink}, fields)
	}
	channel := object{"apiVersion": "messaging.knative.dev/v1", "kind": "Channel", "name": "orders"}
	subscription := func(fields object) object {
		return merged(object{"channel": channel, "subscriber": sink}, fields)
	}
	traffic := func(targets ...any) object { return object{"traffic": targets} }
	delivery := func(fields object) object { return object{"delivery": fields} }
	for _, tc := range []struct {
		name, kind string
		spec       object
		causes     []string
	}{
		{"no container (serving 9.4.2-1)", "Service", object{"template": object{"spec": object{}}}, []string{"FieldValueRequired spec.template.spec.containers"}},
		{"image", "Service", container(object{"image": "a b"}), []string{"FieldValueInvalid " + firstContainer + ".image"}},
		{"lifecycle", "Service", container(object{"lifecycle": object{}}), []string{"FieldValueForbidden " + firstContainer + ".lifecycle"}},
		{"privileged", "Service", container(object{"securityContext": object{"privileged": true}}), []string{"FieldValueForbidden " + firstContainer + ".securityContext.privileged"}},
		{"reserved name", "Service", container(object{"name": "queue-proxy"}), []string{"FieldValueInvalid " + firstContainer + ".name"}},
		{"reserved env", "Configuration", container(object{"env": []any{object{"name": "K_SERVICE", "value": "a"}}}), []string{"FieldValueInvalid " + firstContainer + ".env[0].name"}},
		{"reserved port", "Service", container(object{"ports": []any{object{"containerPort": 8012}}}), []string{"FieldValueInvalid " + firstContainer + ".ports[0].containerPort"}},
		{"two ports", "Service", container(object{"ports": []any{object{"containerPort": 80}, object{"containerPort": 81}}}), []string{"FieldValueTooMany " + firstContainer + ".ports"}},
		{"concurrency", "Service", revision(object{"containerConcurrency": 1001}), []string{"FieldValueInvalid spec.template.spec.containerConcurrency"}},
		{"timeout", "Configuration", revision(object{"timeoutSeconds": 601}), []string{"FieldValueInvalid spec.template.spec.timeoutSeconds"}},
		{"host network", "Service", revision(object{"hostNetwork": true}), []string{"FieldValueForbidden spec.template.spec.hostNetwork"}},
		{"min-scale", "Service", scaled("min-scale", "-1"), []string{"FieldValueInvalid spec.template.metadata.annotations[autoscaling.knative.dev/min-scale]"}},
		{"window", "Configuration", scaled("window", "5s"), []string{"FieldValueInvalid spec.template.metadata.annotations[autoscaling.knative.dev/window]"}},

		{"percents", "Route", traffic(object{"revisionName": "a", "percent": 99}), []string{"FieldValueInvalid spec.traffic"}},
		{"two names", "Route", traffic(object{"revisionName": "a", "configurationName": "b", "percent": 100}), []string{"FieldValueForbidden spec.traffic[0].configurationName"}},
		{"url", "Route", traffic(object{"revisionName": "a", "percent": 100, "url": "http://a"}), []string{"FieldValueForbidden spec.traffic[0].url"}},
		{"configuration in a Service", "Service", merged(container(nil), traffic(object{"configurationName": "b", "percent": 100})), []string{"FieldValueForbidden spec.traffic[0].configurationName"}},

		{"no broker (eventing Trigger)", "Trigger", object{"subscriber": sink}, []string{"FieldValueRequired spec.broker"}},
		{"no subscriber (eventing Trigger)", "Trigger", object{"broker": "default"}, []string{"FieldValueRequired spec.subscriber"}},
		{"filter attribute", "Trigger", trigger(object{"filter": object{"attributes": object{"Type": "a"}}}), []string{"FieldValueInvalid spec.filter.attributes[Type]"}},
		{"two dialects", "Trigger", trigger(object{"filters": []any{object{"exact": object{"type": "a"}, "cesql": "TRUE"}}}), []string{"FieldValueInvalid spec.filters[0]"}},
		{"CESQL", "Trigger", trigger(object{"filters": []any{object{"cesql": "type ="}}}), []string{"FieldValueInvalid spec.filters[0].cesql"}},

		{"duration (eventing DeliverySpec)", "Broker", delivery(object{"backoffDelay": "1s"}), []string{"FieldValueInvalid spec.delivery.backoffDelay"}},
		{"policy", "Broker", delivery(object{"backoffPolicy": "constant"}), []string{"FieldValueNotSupported spec.delivery.backoffPolicy"}},
		{"retry", "Channel", delivery(object{"retry": -1}), []string{"FieldValueInvalid spec.delivery.retry"}},
		{"format", "Trigger", trigger(delivery(object{"format": "xml"})), []string{"FieldValueNotSupported spec.delivery.format"}},
		{"incomplete config", "Broker", object{"config": object{"name": "a"}}, []string{"FieldValueRequired spec.config.apiVersion", "FieldValueRequired spec.config.kind"}},

		{"neither (eventing Subscription)", "Subscription", object{"channel": channel}, []string{"FieldValueRequired spec.subscriber"}},
		{"channel's namespace", "Subscription", subscription(object{"channel": object{"namespace": "other"}}), []string{"FieldValueForbidden spec.channel.namespace"}},
		{"no channel", "Subscription", object{"subscriber": sink}, []string{"FieldValueRequired spec.channel"}},
		{"destination without ref or uri", "Subscription", subscription(object{"reply": object{"audience": "a"}}), []string{"FieldValueRequired spec.reply"}},
		{"empty dead letter sink", "Broker", delivery(object{"deadLetterSink": object{}}), []string{"FieldValueRequired spec.delivery.deadLetterSink"}},
		{"relative uri without ref", "Subscription", subscription(object{"subscriber": object{"uri": "/path"}}), []string{"FieldValueInvalid spec.subscriber.uri"}},
		{"dead letter sink", "Subscription", subscription(delivery(object{"deadLetterSink": object{"uri": "path"}})), []string{"FieldValueInvalid spec.delivery.deadLetterSink.uri"}},
	} {
		t.Run(tc.kind+" "+tc.name, func(t *testing.T) {
			k := harness.KindOf(tc.kind)
			obj := k.Object(namespace(t), "a")
			obj.Object["spec"] = tc.spec
			for _, way := range createWays() {
				wantInvalid(t, way.create(t, obj), tc.causes...)
				wantStatus(t, admin.Do(t, harness.Request{Method: "GET", Path: pathOf(obj)}), http.StatusNotFound, metav1.StatusReasonNotFound)
			}
			valid := k.Object(obj.GetNamespace(), "a")
			if tc.kind == "Trigger" || tc.kind == "Subscription" || tc.name == "incomplete config" {
				return // their faults also change immutable fields; TestFaultsOfUpdates covers them
			}
			before := admin.Do(t, harness.Request{Method: "POST", Path: k.Collection(obj.GetNamespace()), Body: valid}).Object(t)
			obj.SetResourceVersion(before.GetResourceVersion())
			wantInvalid(t, admin.Do(t, harness.Request{Method: "PUT", Path: pathOf(obj), Body: obj}), tc.causes...)
			wantSame(t, before, reread(t, before))
		})
	}
}

// TestFaultsOfUpdates checks one fault of each kind that users create, for every way to change it.
func TestFaultsOfUpdates(t *testing.T) {
	for kind, tc := range map[string]struct {
		spec  object
		cause string
	}{
		"Service":       {object{"template": object{"spec": object{"timeoutSeconds": int64(601)}}}, "FieldValueInvalid spec.template.spec.timeoutSeconds"},
		"Configuration": {object{"template": object{"spec": object{"containerConcurrency": int64(-1)}}}, "FieldValueInvalid spec.template.spec.containerConcurrency"},
		"Route":         {object{"traffic": []any{object{"revisionName": "a", "percent": int64(1)}}}, "FieldValueInvalid spec.traffic"},
		"Broker":        {object{"delivery": object{"retry": int64(-1)}}, "FieldValueInvalid spec.delivery.retry"},
		"Trigger":       {object{"broker": "default", "subscriber": object{"uri": "a"}}, "FieldValueInvalid spec.subscriber.uri"},
		"Channel":       {object{"delivery": object{"timeout": "soon"}}, "FieldValueInvalid spec.delivery.timeout"},
		"Subscription": {object{
			"channel":    object{"apiVersion": "messaging.knative.dev/v1", "kind": "Channel", "name": "orders"},
			"subscriber": object{"uri": "a"},
		}, "FieldValueInvalid spec.subscriber.uri"},
	} {
		for _, way := range updateWays() {
			t.Run(kind+"/"+way.name, func(t *testing.T) {
				before := stored(t, harness.KindOf(kind))
				wantInvalid(t, way.update(t, before, object{"spec": tc.spec}), tc.cause)
				wantSame(t, before, reread(t, before))
			})
		}
	}
}

// TestAllFaultsAtOnce checks that the response lists all faults of an object, once each, at their paths.
// It covers conventions Selecting Fields-1.
func TestAllFaultsAtOnce(t *testing.T) {
	service := harness.KindOf("Service").Object(namespace(t), "a")
	service.SetAnnotations(map[string]string{"autoscaling.knative.dev/min-scale": "1"})
	service.Object["spec"] = object{
		"template": object{
			"metadata": object{"annotations": object{"autoscaling.knative.dev/target": "0"}},
			"spec": object{
				"containerConcurrency": 1001,
				"timeoutSeconds":       -5,
				"hostPID":              true,
				"containers": []any{object{
					"image": "a b", "stdin": true,
					"env":          []any{object{"name": "PORT", "value": "1"}},
					"ports":        []any{object{"containerPort": 9090, "name": "grpc"}},
					"volumeMounts": []any{object{"name": "none", "mountPath": "relative"}},
				}},
			},
		},
		"traffic": []any{object{"revisionName": "a", "percent": 10, "tag": "A_"}, object{"latestRevision": false, "percent": 10}},
	}
	wantInvalid(t, admin.Do(t, harness.Request{Method: "POST", Path: harness.KindOf("Service").Collection(service.GetNamespace()), Body: service}),
		"FieldValueForbidden metadata.annotations[autoscaling.knative.dev/min-scale]",
		"FieldValueInvalid spec.template.metadata.annotations[autoscaling.knative.dev/target]",
		"FieldValueInvalid spec.template.spec.containerConcurrency",
		"FieldValueInvalid spec.template.spec.timeoutSeconds",
		"FieldValueForbidden spec.template.spec.hostPID",
		"FieldValueInvalid "+firstContainer+".image",
		"FieldValueForbidden "+firstContainer+".stdin",
		"FieldValueInvalid "+firstContainer+".env[0].name",
		"FieldValueInvalid "+firstContainer+".ports[0].containerPort",
		"FieldValueNotSupported "+firstContainer+".ports[0].name",
		"FieldValueNotFound "+firstContainer+".volumeMounts[0].name",
		"FieldValueInvalid "+firstContainer+".volumeMounts[0].mountPath",
		"FieldValueInvalid spec.traffic[0].tag",
		"FieldValueInvalid spec.traffic[1].latestRevision",
		"FieldValueInvalid spec.traffic",
	)

	trigger := harness.KindOf("Trigger").Object(namespace(t), "A_")
	trigger.Object["spec"] = object{
		"filter":   object{"attributes": object{"Bad-Name": "a"}},
		"filters":  []any{object{}, object{"not": object{"cesql": "("}}},
		"delivery": object{"retry": -1, "backoffPolicy": "never", "backoffDelay": "1", "timeout": "2", "retryAfterMax": "3", "format": "4"},
	}
	wantInvalid(t, admin.Do(t, harness.Request{Method: "POST", Path: harness.KindOf("Trigger").Collection(trigger.GetNamespace()), Body: trigger}),
		"FieldValueInvalid metadata.name",
		"FieldValueRequired spec.broker",
		"FieldValueRequired spec.subscriber",
		"FieldValueInvalid spec.filter.attributes[Bad-Name]",
		"FieldValueRequired spec.filters[0]",
		"FieldValueInvalid spec.filters[1].not.cesql",
		"FieldValueInvalid spec.delivery.retry",
		"FieldValueNotSupported spec.delivery.backoffPolicy",
		"FieldValueInvalid spec.delivery.backoffDelay",
		"FieldValueInvalid spec.delivery.timeout",
		"FieldValueInvalid spec.delivery.retryAfterMax",
		"FieldValueNotSupported spec.delivery.format",
	)
}
