package aggregated

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"testing"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// names are the names of a resource, except its plural.
type names struct {
	singular   string
	short      []string
	categories []string
}

func wantNames() map[string]names {
	serving, eventing := []string{"all", "knative", "serving"}, []string{"all", "eventing", "knative"}
	return map[string]names{
		"services":       {"service", []string{"kservice", "ksvc"}, serving},
		"configurations": {"configuration", []string{"cfg", "config"}, serving},
		"revisions":      {"revision", []string{"rev"}, serving},
		"routes":         {"route", []string{"rt"}, serving},
		"domainmappings": {"domainmapping", []string{"dm"}, serving},
		"brokers":        {"broker", nil, eventing},
		"triggers":       {"trigger", nil, eventing},
		"eventpolicies":  {"eventpolicy", nil, eventing},
		"eventruns":      {"eventrun", nil, []string{"eventing", "knative"}},
		"channels":       {"channel", []string{"ch"}, []string{"all", "channel", "knative", "messaging"}},
		"subscriptions":  {"subscription", []string{"sub"}, []string{"all", "knative", "messaging"}},
	}
}

func check(t *testing.T, resource string, got names, verbs []string) {
	t.Helper()
	want := wantNames()[resource]
	slices.Sort(got.short)
	slices.Sort(got.categories)
	if got.singular != want.singular || !slices.Equal(got.short, want.short) || !slices.Equal(got.categories, want.categories) {
		t.Errorf("%s: %+v, want %+v", resource, got, want)
	}
	slices.Sort(verbs)
	if all := []string{"create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"}; !slices.Equal(verbs, all) {
		t.Errorf("%s has verbs %q, want %q", resource, verbs, all)
	}
}

// TestAggregatedDiscovery checks the resources in the aggregated discovery document of the host (P21).
func TestAggregatedDiscovery(t *testing.T) {
	t.Parallel()
	groups := []string{"serving.knative.dev", "eventing.knative.dev", "messaging.knative.dev"}
	var list apidiscoveryv2.APIGroupDiscoveryList
	// The host may not have read the documents again since the last restart of the server.
	within(t, rediscovery, "the discovery document of the host is current", func() error {
		response := host.Admin.Do(t, harness.Request{
			Method: http.MethodGet, Path: "/apis", Accept: "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList",
		})
		list = apidiscoveryv2.APIGroupDiscoveryList{}
		if err := json.Unmarshal(response.Body, &list); err != nil || list.Kind != "APIGroupDiscoveryList" {
			t.Fatalf("%v: %.300s", err, response.Body)
		}
		current := map[string]bool{}
		for _, group := range list.Items {
			for _, version := range group.Versions {
				if slices.Contains(groups, group.Name) && version.Freshness != apidiscoveryv2.DiscoveryFreshnessCurrent {
					return fmt.Errorf("%s/%s is %s", group.Name, version.Version, version.Freshness)
				}
				current[group.Name] = true
			}
		}
		for _, group := range groups {
			if !current[group] {
				return fmt.Errorf("it has no %s", group)
			}
		}
		return nil
	})
	found := 0
	for _, group := range list.Items {
		for _, version := range group.Versions {
			for _, resource := range version.Resources {
				if wantNames()[resource.Resource].singular == "" || !slices.Contains(groups, group.Name) {
					continue
				}
				found++
				check(t, resource.Resource, names{resource.SingularResource, resource.ShortNames, resource.Categories}, resource.Verbs)
				var subresources []string
				for _, s := range resource.Subresources {
					subresources = append(subresources, s.Subresource)
				}
				slices.Sort(subresources)
				want := []string{"status"}
				switch resource.Resource {
				case "brokers":
					want = []string{"replay", "status", "tail", "trace"}
				case "channels":
					want = []string{"status", "trace"}
				case "revisions":
					want = []string{"explain", "log", "scale", "status"}
				case "services":
					want = []string{"proxy", "status"}
				case "subscriptions":
					want = []string{"redrive", "status"}
				case "triggers":
					want = []string{"match", "redrive", "status"}
				}
				if !slices.Equal(subresources, want) || resource.Scope != apidiscoveryv2.ScopeNamespace {
					t.Errorf("%s: scope %s, subresources %v, want %v", resource.Resource, resource.Scope, subresources, want)
				}
			}
		}
	}
	if found != len(wantNames()) {
		t.Errorf("%d resources, want %d", found, len(wantNames()))
	}
}

// TestLegacyDiscovery checks the resources in the discovery document of each group version of the host (P21).
func TestLegacyDiscovery(t *testing.T) {
	t.Parallel()
	found := 0
	for _, version := range []string{"serving.knative.dev/v1", "serving.knative.dev/v1beta1", "eventing.knative.dev/v1", "eventing.knative.dev/v1alpha1", "messaging.knative.dev/v1"} {
		var list metav1.APIResourceList
		response := do(t, host.Admin, harness.Request{Method: http.MethodGet, Path: "/apis/" + version})
		if err := json.Unmarshal(response.Body, &list); err != nil {
			t.Fatal(err)
		}
		for _, resource := range list.APIResources {
			if wantNames()[resource.Name].singular == "" {
				continue // a status
			}
			found++
			check(t, resource.Name, names{resource.SingularName, resource.ShortNames, resource.Categories}, resource.Verbs)
		}
	}
	if found != len(wantNames()) {
		t.Errorf("%d resources, want %d", found, len(wantNames()))
	}
}
