package aggregated

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"

	"k8s.io/client-go/discovery"

	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// model returns the name of a kind in the documents.
func model(kind harness.Kind) string {
	return "dev.knative." + strings.TrimSuffix(kind.Group, ".knative.dev") + "." + kind.Version + "." + kind.Kind
}

// openAPIv2 waits until the merged document of the host has all kinds, and returns its definitions.
func openAPIv2(t *testing.T) (document map[string]any, definitions map[string]any) {
	t.Helper()
	within(t, rediscovery, "the host's OpenAPI document has our kinds", func() error {
		response := host.Admin.Do(t, harness.Request{Method: http.MethodGet, Path: "/openapi/v2"})
		wantCode(t, response, http.StatusOK)
		document = decode(t, response.Body)
		definitions = document["definitions"].(map[string]any)
		for _, kind := range harness.AllKinds() {
			if definitions[model(kind)] == nil {
				return fmt.Errorf("%s does not exist", model(kind))
			}
		}
		return nil
	})
	return document, definitions
}

func decode(t *testing.T, body []byte) map[string]any {
	t.Helper()
	var document map[string]any
	if err := json.Unmarshal(body, &document); err != nil {
		t.Fatal(err)
	}
	return document
}

// references calls visit for every $ref of a document.
func references(node any, visit func(string)) {
	switch n := node.(type) {
	case map[string]any:
		if reference, ok := n["$ref"].(string); ok {
			visit(reference)
		}
		for _, child := range n {
			references(child, visit)
		}
	case []any:
		for _, child := range n {
			references(child, visit)
		}
	}
}

// unresolved returns the unresolved references of a document.
func unresolved(document map[string]any) []string {
	missing := map[string]bool{}
	references(document, func(reference string) {
		var node any = document
		path, ok := strings.CutPrefix(reference, "#/")
		for _, name := range strings.Split(path, "/") {
			object, isObject := node.(map[string]any)
			node = object[name]
			ok = ok && isObject && node != nil
		}
		if !ok {
			missing[reference] = true
		}
	})
	return slices.Sorted(maps.Keys(missing))
}

// TestOpenAPIv2 reads the document that a real kube-apiserver merges from its own and this server's (P5, P6).
func TestOpenAPIv2(t *testing.T) {
	t.Parallel()
	document, definitions := openAPIv2(t)
	if missing := unresolved(document); len(missing) > 0 {
		t.Errorf("unresolved references: %q", missing)
	}
	// The merge does not change the definitions of the host's own kinds.
	before := decode(t, openAPIBefore)["definitions"].(map[string]any)
	for name, definition := range before {
		// Types that all groups share are listed with their groups.
		delete(definition.(map[string]any), "x-kubernetes-group-version-kind")
		if d, ok := definitions[name].(map[string]any); ok {
			delete(d, "x-kubernetes-group-version-kind")
		}
		if !reflect.DeepEqual(definitions[name], definition) {
			t.Errorf("the host's %s changed from %v to %v", name, definition, definitions[name])
		}
	}
	var added []string
	for name := range definitions {
		// TestOwnRights adds the CRDs of cert-manager to the host.
		if before[name] == nil && !strings.HasPrefix(name, "dev.knative.") && !strings.HasPrefix(name, "io.cert-manager.") {
			added = append(added, name)
		}
	}
	slices.Sort(added)
	t.Logf("models of this server besides its own kinds: %q", added)
	for _, name := range added {
		// If the libraries of the two servers have different releases, a model that differs is kept under another name.
		if !strings.HasPrefix(name, "io.k8s.") {
			t.Errorf("unexpected model %s", name)
		}
	}
}

// TestOpenAPIv2Protobuf reads the same document as protobuf, like older kubectl and client-go (P6).
func TestOpenAPIv2Protobuf(t *testing.T) {
	t.Parallel()
	_, definitions := openAPIv2(t)
	client, err := discovery.NewDiscoveryClientForConfigAndClient(host.Admin.Config, host.Admin.HTTP)
	if err != nil {
		t.Fatal(err)
	}
	document, err := client.OpenAPISchema() // asks for protobuf, nothing else
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]any{}
	for _, definition := range document.GetDefinitions().GetAdditionalProperties() {
		names[definition.GetName()] = definition
	}
	for name := range definitions {
		if names[name] == nil {
			t.Errorf("the protobuf document has no %s", name)
		}
	}
}

// TestOpenAPIv3 reads the documents of this server through the host (P5).
func TestOpenAPIv3(t *testing.T) {
	t.Parallel()
	documents := map[string]map[string]any{}
	for _, kind := range harness.AllKinds() {
		path := "apis/" + kind.GroupVersion().String()
		if documents[path] == nil {
			documents[path] = openAPIv3(t, path)
		}
		schemas := documents[path]["components"].(map[string]any)["schemas"].(map[string]any)
		if schemas[model(kind)] == nil {
			t.Errorf("%s has no %s", path, model(kind))
		}
		for name := range schemas {
			if strings.Contains(name, "__internal") {
				t.Errorf("%s shows the internal version: %s", path, name)
			}
		}
	}
	for path, document := range documents {
		if missing := unresolved(document); len(missing) > 0 {
			t.Errorf("%s: unresolved references: %q", path, missing)
		}
	}
}

// openAPIv3 waits until the host serves the document of a group version at its listed address. After the deletion of the
// definition of TestStartupBesideCRD, its address stays listed for a moment.
func openAPIv3(t *testing.T, path string) (document map[string]any) {
	t.Helper()
	within(t, rediscovery, "the host serves "+path, func() error {
		list := decode(t, host.Admin.Do(t, harness.Request{Method: http.MethodGet, Path: "/openapi/v3"}).Body)
		entry, ok := list["paths"].(map[string]any)[path].(map[string]any)
		if !ok {
			return fmt.Errorf("it is not listed")
		}
		response := host.Admin.Do(t, harness.Request{Method: http.MethodGet, Path: entry["serverRelativeURL"].(string)})
		if response.Code != http.StatusOK {
			return fmt.Errorf("code %d: %.300s", response.Code, response.Body)
		}
		document = decode(t, response.Body)
		return nil
	})
	return document
}
