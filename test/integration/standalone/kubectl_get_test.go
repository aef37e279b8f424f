package standalone

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// surface are the names of each kind for users (behaviour, Surface).
func surface() map[string]struct{ shortNames, categories []string } {
	return map[string]struct{ shortNames, categories []string }{
		"Service":       {[]string{"kservice", "ksvc"}, []string{"all", "knative", "serving"}},
		"Configuration": {[]string{"config", "cfg"}, []string{"all", "knative", "serving"}},
		"Revision":      {[]string{"rev"}, []string{"all", "knative", "serving"}},
		"Route":         {[]string{"rt"}, []string{"all", "knative", "serving"}},
		"DomainMapping": {[]string{"dm"}, []string{"all", "knative", "serving"}},
		"Broker":        {nil, []string{"all", "knative", "eventing"}},
		"Trigger":       {nil, []string{"all", "knative", "eventing"}},
		"Channel":       {[]string{"ch"}, []string{"all", "knative", "messaging", "channel"}},
		"Subscription":  {[]string{"sub"}, []string{"all", "knative", "messaging"}},
	}
}

func TestKubectlGetByName(t *testing.T) {
	for _, k := range harness.AllKinds() {
		t.Run(k.Kind, func(t *testing.T) {
			obj := stored(t, k)
			kubectl := harness.NewKubectl(t, server.Kubeconfig, obj.GetNamespace())
			names := append([]string{k.Resource, strings.ToLower(k.Kind), k.Resource + "." + k.Group, k.Resource + "." + k.Version + "." + k.Group}, surface()[k.Kind].shortNames...)
			want := strings.ToLower(k.Kind) + "." + k.Group + "/" + obj.GetName() + "\n"
			for _, name := range names {
				if got := kubectl.Must(t, "", "get", name, obj.GetName(), "-o", "name"); got != want {
					t.Errorf("get %s: %q, want %q", name, got, want)
				}
			}
			var shown object
			if err := yaml.Unmarshal([]byte(kubectl.Must(t, "", "get", k.Resource+"."+k.Group, obj.GetName(), "-o", "yaml")), &shown); err != nil {
				t.Fatal(err)
			}
			if shown["kind"] != k.Kind || shown["apiVersion"] != k.GroupVersion().String() || shown["spec"] == nil {
				t.Errorf("-o yaml shows %v", shown)
			}
			kubectl.MustFail(t, "NotFound", "", "get", k.Resource+"."+k.Group, "absent")
		})
	}
}

func TestKubectlGetByCategory(t *testing.T) {
	ns := namespace(t)
	for _, k := range harness.AllKinds() {
		if k.Kind != "Revision" {
			admin.Do(t, harness.Request{Method: "POST", Path: k.Collection(ns), Body: k.Object(ns, "a")}).Object(t)
		}
	}
	kubectl := harness.NewKubectl(t, server.Kubeconfig, ns)
	for _, category := range []string{"all", "knative", "serving", "eventing", "messaging", "channel"} {
		got := strings.Fields(kubectl.Must(t, "", "get", category, "-o", "name"))
		allNamespaces := kubectl.Must(t, "", "get", category, "-A", "-o", "name")
		for _, k := range harness.AllKinds() {
			name := strings.ToLower(k.Kind) + "." + k.Group
			want := slices.Contains(surface()[k.Kind].categories, category)
			if k.Kind != "Revision" && slices.Contains(got, name+"/"+k.Name("a")) != want {
				t.Errorf("get %s has %v, which is wrong for %s", category, got, name)
			}
			if strings.Contains(allNamespaces, name+"/") != want {
				t.Errorf("get %s -A is wrong for %s", category, name)
			}
		}
	}
}

func TestKubectlSelects(t *testing.T) {
	k := harness.KindOf("Trigger")
	ns := three(t, k)
	kubectl := harness.NewKubectl(t, server.Kubeconfig, ns)
	for selector, want := range map[string]string{
		"-l=tier=back":                       "c",
		"--field-selector=metadata.name=b":   "b",
		"--field-selector=spec.broker=other": "c",
	} {
		if got := kubectl.Must(t, "", "get", "triggers", selector, "-o", "jsonpath={.items[*].metadata.name}"); got != want {
			t.Errorf("get %s: %q, want %q", selector, got, want)
		}
	}
	kubectl.MustFail(t, "is not a known field selector", "", "get", "triggers", "--field-selector=spec.unknown=a")
}

func TestKubectlExplain(t *testing.T) {
	kubectl := harness.NewKubectl(t, server.Kubeconfig, "")
	eachKind(t, func(t *testing.T, k harness.Kind) {
		name := k.Resource + "." + k.Group
		for _, args := range [][]string{{"explain", name}, {"explain", name, "--recursive"}, {"explain", name + ".spec"}, {"explain", name + ".status.conditions"}} {
			out := kubectl.Must(t, "", args...)
			if !strings.Contains(out, "GROUP:") || !strings.Contains(out, "KIND:") || strings.Contains(out, "<empty>") {
				t.Errorf("kubectl %s:\n%s", strings.Join(args, " "), out)
			}
		}
	})
}

// TestEveryFieldIsDescribed checks that kubectl explain describes every field.
func TestEveryFieldIsDescribed(t *testing.T) {
	for _, version := range versions() {
		schemas := getJSON(t, "/openapi/v3/apis/"+version, "application/json")["components"].(object)["schemas"].(object)
		for name, model := range schemas {
			if !strings.HasPrefix(name, "dev.knative.") {
				continue
			}
			if description, _ := model.(object)["description"].(string); len(description) < 10 {
				t.Errorf("%s has no description", name)
			}
			properties, _ := model.(object)["properties"].(object)
			for property, schema := range properties {
				description, _ := schema.(object)["description"].(string)
				if len(description) < 10 {
					t.Errorf("%s.%s has no description: %v", name, property, fmt.Sprint(schema))
				}
			}
		}
	}
}
