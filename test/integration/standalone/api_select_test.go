package standalone

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// list reads a list with query parameters.
func list(t testing.TB, k harness.Kind, namespace string, query url.Values) *unstructured.UnstructuredList {
	t.Helper()
	response := admin.Do(t, harness.Request{Method: "GET", Path: withQuery(k.Collection(namespace), query.Encode())})
	if response.Code != http.StatusOK {
		t.Fatalf("code %d: %s", response.Code, response.Body)
	}
	list := &unstructured.UnstructuredList{}
	if err := list.UnmarshalJSON(response.Body); err != nil {
		t.Fatal(err)
	}
	if list.GetKind() != k.Kind+"List" || list.GetAPIVersion() != k.GroupVersion().String() || list.GetResourceVersion() == "" {
		t.Errorf("the list is a %s of %s, version %q", list.GetKind(), list.GetAPIVersion(), list.GetResourceVersion())
	}
	return list
}

func namesOf(list *unstructured.UnstructuredList) []string {
	names := []string{}
	for _, item := range list.Items {
		names = append(names, item.GetName())
	}
	slices.Sort(names)
	return names
}

// three stores objects a, b and c; the label and, for kinds with one, the selectable field distinguish c.
func three(t *testing.T, k harness.Kind) string {
	t.Helper()
	ns := namespace(t)
	for _, name := range []string{"a", "b", "c"} {
		obj := k.Object(ns, name)
		if name == "c" {
			obj.SetLabels(map[string]string{"tier": "back"})
			switch k.Kind {
			case "Trigger":
				set(obj, "other", "spec", "broker")
			case "Subscription":
				set(obj, "other", "spec", "channel", "name")
			}
		} else {
			obj.SetLabels(map[string]string{"tier": "front"})
		}
		admin.Do(t, harness.Request{Method: "POST", Path: k.Collection(ns), Body: obj}).Object(t)
	}
	return ns
}

// TestSelectors covers conventions Types-3 to -5.
func TestSelectors(t *testing.T) {
	eachUserKind(t, func(t *testing.T, k harness.Kind) {
		ns := three(t, k)
		tests := []struct {
			labels, fields string
			want           []string
		}{
			{"", "", []string{"a", "b", "c"}},
			{"tier=front", "", []string{"a", "b"}},
			{"tier!=front", "", []string{"c"}},
			{"tier in (front,back),tier notin (front)", "", []string{"c"}},
			{"!tier", "", []string{}},
			{"", "metadata.name=b", []string{"b"}},
			{"", "metadata.name!=b", []string{"a", "c"}},
			{"", "metadata.namespace=" + ns, []string{"a", "b", "c"}},
			{"", "metadata.namespace=other", []string{}},
			{"tier=front", "metadata.name=c", []string{}},
		}
		for kind, field := range map[string]string{"Trigger": "spec.broker", "Subscription": "spec.channel.name"} {
			if k.Kind == kind {
				tests = append(tests, []struct {
					labels, fields string
					want           []string
				}{
					{"", field + "=other", []string{"c"}},
					{"", field + "!=other", []string{"a", "b"}},
					{"", field + "=other,metadata.name=a", []string{}},
				}...)
			}
		}
		// A list of version 0 is as old as the watch cache.
		harness.Eventually(t, "the watch cache has the objects", func() error {
			if got := namesOf(list(t, k, ns, url.Values{"resourceVersion": {"0"}})); !slices.Equal(got, []string{"a", "b", "c"}) {
				return fmt.Errorf("it has %v", got)
			}
			return nil
		})
		for _, tc := range tests {
			query := url.Values{"labelSelector": {tc.labels}, "fieldSelector": {tc.fields}}
			// With and without the watch cache.
			for _, version := range []string{"", "0"} {
				query.Set("resourceVersion", version)
				if diff := cmp.Diff(tc.want, namesOf(list(t, k, ns, query))); diff != "" {
					t.Errorf("%s (-want +got):\n%s", query.Encode(), diff)
				}
			}
		}
		query := url.Values{"fieldSelector": {"metadata.name=a,metadata.namespace=" + ns}}
		if got := namesOf(list(t, k, "", query)); !slices.Equal(got, []string{"a"}) {
			t.Errorf("in all namespaces: %v", got)
		}
	})
}

func TestUnknownSelectors(t *testing.T) {
	eachKind(t, func(t *testing.T, k harness.Kind) {
		unknown := []string{"fieldSelector=spec.unknown%3Da", "fieldSelector=status.url%3Da", "fieldSelector=a", "labelSelector=a%3D%3D%3Db", "labelSelector=a+b"}
		if k.Kind != "Trigger" {
			unknown = append(unknown, "fieldSelector=spec.broker%3Da")
		}
		if k.Kind != "Subscription" {
			unknown = append(unknown, "fieldSelector=spec.channel.name%3Da")
		}
		for _, query := range unknown {
			for _, path := range []string{k.Collection("default"), k.Collection("")} {
				response := admin.Do(t, harness.Request{Method: "GET", Path: path + "?" + query})
				wantStatus(t, response, http.StatusBadRequest, metav1.StatusReasonBadRequest)
			}
			response := admin.Do(t, harness.Request{Method: "DELETE", Path: k.Collection("default") + "?" + query})
			wantStatus(t, response, http.StatusBadRequest, metav1.StatusReasonBadRequest)
		}
	})
}

// TestLimitAndContinue checks that the pages of a list show the state at its start, despite later changes.
func TestLimitAndContinue(t *testing.T) {
	eachUserKind(t, func(t *testing.T, k harness.Kind) {
		ns := namespace(t)
		var want []string
		for i := range 7 {
			name := fmt.Sprintf("a-%d", i)
			want = append(want, name)
			admin.Do(t, harness.Request{Method: "POST", Path: k.Collection(ns), Body: k.Object(ns, name)}).Object(t)
		}
		var got []string
		query := url.Values{"limit": {"3"}}
		version := ""
		for page := 0; ; page++ {
			l := list(t, k, ns, query)
			got = append(got, namesOf(l)...)
			if version == "" {
				version = l.GetResourceVersion()
			}
			if l.GetResourceVersion() != version {
				t.Errorf("page %d is of version %s, the first of %s", page, l.GetResourceVersion(), version)
			}
			if left := l.GetRemainingItemCount(); l.GetContinue() != "" && (left == nil || *left != int64(7-len(got))) {
				t.Errorf("page %d: remainingItemCount is %v", page, left)
			}
			if l.GetContinue() == "" {
				break
			}
			if page == 0 {
				admin.Do(t, harness.Request{Method: "POST", Path: k.Collection(ns), Body: k.Object(ns, "a-9")}).Object(t)
				admin.Do(t, harness.Request{Method: "DELETE", Path: k.Path(ns, "a-6")})
			}
			query.Set("continue", l.GetContinue())
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("all pages (-want +got):\n%s", diff)
		}
	})
}

func TestDeleteCollection(t *testing.T) {
	eachUserKind(t, func(t *testing.T, k harness.Kind) {
		ns, other := three(t, k), three(t, k)
		remove := func(query string) {
			t.Helper()
			if response := admin.Do(t, harness.Request{Method: "DELETE", Path: withQuery(k.Collection(ns), query)}); response.Code != http.StatusOK {
				t.Fatalf("code %d: %s", response.Code, response.Body)
			}
		}
		remove("labelSelector=tier%3Dback")
		if got := namesOf(list(t, k, ns, nil)); !slices.Equal(got, []string{"a", "b"}) {
			t.Errorf("after a deletion by label got %v", got)
		}
		remove("fieldSelector=metadata.name%3Da")
		if got := namesOf(list(t, k, ns, nil)); !slices.Equal(got, []string{"b"}) {
			t.Errorf("after a deletion by field got %v", got)
		}
		remove("")
		if got := namesOf(list(t, k, ns, nil)); len(got) != 0 {
			t.Errorf("after a deletion of all got %v", got)
		}
		if got := namesOf(list(t, k, other, nil)); len(got) != 3 {
			t.Errorf("in the other namespace got %v", got)
		}
	})
}
