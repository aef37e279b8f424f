package aggregated

import (
	"regexp"
	"strings"
	"testing"

	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// TestKubectlGet checks the output formats of kubectl get for every kind, by each of its names (P21, P24).
func TestKubectlGet(t *testing.T) {
	t.Parallel()
	ns := host.Namespace(t, "get", nil)
	k := kubectl(t, ns)
	for _, test := range []struct {
		kind, columns, wide string
		names               []string
		categories          []string
	}{
		{"Service", "NAME URL LATESTCREATED LATESTREADY READY REASON", "", []string{"ksvc", "kservice", "services.serving.knative.dev", "services.v1.serving.knative.dev"}, []string{"serving"}},
		{"Configuration", "NAME LATESTCREATED LATESTREADY READY REASON", "", []string{"config", "cfg", "configuration", "configurations"}, []string{"serving"}},
		{"Revision", "NAME CONFIG NAME GENERATION READY REASON ACTUAL REPLICAS DESIRED REPLICAS", "", []string{"rev", "revision", "revisions"}, []string{"serving"}},
		{"Route", "NAME URL READY REASON", "", []string{"rt", "route", "routes"}, []string{"serving"}},
		{"Broker", "NAME URL AGE READY REASON", "NAME URL AGE READY REASON CLASS", []string{"broker", "brokers"}, []string{"eventing"}},
		{"Trigger", "NAME BROKER SUBSCRIBER_URI AGE READY REASON", "", []string{"trigger", "triggers"}, []string{"eventing"}},
		{"DomainMapping", "NAME URL READY REASON", "", []string{"dm", "domainmapping", "domainmappings.serving.knative.dev"}, []string{"serving"}},
		{"Channel", "NAME URL AGE READY REASON", "", []string{"ch", "channel.messaging.knative.dev", "channels"}, []string{"messaging", "channel"}},
		{"Subscription", "NAME AGE READY REASON", "", []string{"sub", "subscription", "subscriptions"}, []string{"messaging"}},
	} {
		kind := harness.KindOf(test.kind)
		mustCreate(t, kind.Object(ns, "one"))
		object := kind.Name("one")
		header := func(args ...string) string {
			lines := strings.SplitN(k.Must(t, "", append([]string{"get"}, args...)...), "\n", 2)
			return strings.Join(strings.Fields(lines[0]), " ")
		}
		for _, name := range test.names {
			if got := header(name, object); got != test.columns {
				t.Errorf("kubectl get %s shows %q, want %q", name, got, test.columns)
			}
		}
		wide := test.wide
		if wide == "" {
			wide = test.columns
		}
		if got := header(kind.Resource+"."+kind.Group, "-o", "wide"); got != wide {
			t.Errorf("kubectl get %s -o wide shows %q, want %q", kind.Resource, got, wide)
		}
		yaml := k.Must(t, "", "get", kind.Resource+"."+kind.Group, object, "-o", "yaml")
		for _, want := range []string{"apiVersion: " + kind.GroupVersion().String() + "\n", "kind: " + kind.Kind + "\n", "  name: " + object + "\n"} {
			if !strings.Contains(yaml, want) {
				t.Errorf("kubectl get %s -o yaml lacks %q:\n%s", kind.Resource, want, yaml)
			}
		}
		for _, category := range append(test.categories, "knative", "all") {
			want := strings.ToLower(kind.Kind) + "." + kind.Group + "/" + object + "\n"
			if out := k.Must(t, "", "get", category, "-o", "name"); !strings.Contains(out, want) {
				t.Errorf("kubectl get %s shows no %s:\n%s", category, want, out)
			}
		}
	}
}

// TestKubectlSelect selects by labels and by fields.
func TestKubectlSelect(t *testing.T) {
	t.Parallel()
	ns := host.Namespace(t, "select", nil)
	k := kubectl(t, ns)
	blue := harness.KindOf("Trigger").Object(ns, "blue")
	blue.SetLabels(map[string]string{"color": "blue"})
	red := setNested(t, harness.KindOf("Trigger").Object(ns, "red"), "other", "spec", "broker")
	one := harness.KindOf("Subscription").Object(ns, "one")
	two := setNested(t, harness.KindOf("Subscription").Object(ns, "two"), "other", "spec", "channel", "name")
	mustCreate(t, blue)
	mustCreate(t, red)
	mustCreate(t, one)
	mustCreate(t, two)
	for _, test := range []struct{ resource, selector, want string }{
		{"triggers", "--selector=color=blue", "trigger.eventing.knative.dev/blue\n"},
		{"triggers", "--selector=color!=blue", "trigger.eventing.knative.dev/red\n"},
		{"triggers", "--field-selector=metadata.name=red", "trigger.eventing.knative.dev/red\n"},
		{"triggers", "--field-selector=spec.broker=default", "trigger.eventing.knative.dev/blue\n"},
		{"triggers", "--field-selector=spec.broker=other", "trigger.eventing.knative.dev/red\n"},
		{"subscriptions", "--field-selector=spec.channel.name=orders", "subscription.messaging.knative.dev/one\n"},
		{"subscriptions", "--field-selector=spec.channel.name!=orders", "subscription.messaging.knative.dev/two\n"},
	} {
		if out := k.Must(t, "", "get", test.resource, test.selector, "-o", "name"); out != test.want {
			t.Errorf("kubectl get %s %s shows %q, want %q", test.resource, test.selector, out, test.want)
		}
	}
	k.MustFail(t, `"spec.filter" is not a known field selector`, "", "get", "triggers", "--field-selector=spec.filter=x")
}

// TestKubectlExplain checks that every kind and nested fields are documented (P5).
func TestKubectlExplain(t *testing.T) {
	t.Parallel()
	k := kubectl(t, "")
	for _, kind := range harness.AllKinds() {
		out := k.Must(t, "", "explain", kind.Resource, "--api-version", kind.GroupVersion().String())
		for _, want := range []string{"KIND:       " + kind.Kind, "VERSION:    " + kind.Version, "spec\t<" + kind.Kind + "Spec>", "status\t<" + kind.Kind + "Status>"} {
			if !strings.Contains(out, want) {
				t.Errorf("kubectl explain %s lacks %q:\n%s", kind.Resource, want, out)
			}
		}
	}
	for path, want := range map[string]string{
		"ksvc.spec.template.spec.containers.image":     `FIELD: image <string>`,
		"ksvc.spec.template.spec.containerConcurrency": `FIELD: containerConcurrency <integer>`,
		"ksvc.spec.traffic.percent":                    `FIELD: percent <integer>`,
		"trigger.spec.delivery.backoffPolicy":          `FIELD: backoffPolicy <string>`,
		"subscription.spec.channel.name":               `FIELD: name <string>`,
		"channels.spec.channelTemplate":                `FIELD: channelTemplate <`,
	} {
		out := k.Must(t, "", "explain", path)
		if !strings.Contains(out, want) || regexp.MustCompile(`(?m)^DESCRIPTION:\n\s*<empty>`).MatchString(out) {
			t.Errorf("kubectl explain %s: want %q and a description:\n%s", path, want, out)
		}
	}
}
