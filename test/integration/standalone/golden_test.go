package standalone

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

var update = flag.Bool("update", false, "rewrite the golden files of testdata")

// wantGolden compares content with a file of testdata.
func wantGolden(t *testing.T, name string, content []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, content, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("%v; go test -update writes it", err)
	}
	if diff := cmp.Diff(string(want), string(content)); diff != "" {
		t.Errorf("%s (-want +got); go test -update accepts it:\n%s", path, diff)
	}
}

func indented(t *testing.T, value any) []byte {
	t.Helper()
	content, err := json.MarshalIndent(value, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	return append(content, '\n')
}

func getJSON(t *testing.T, path, accept string) object {
	t.Helper()
	response := admin.Do(t, harness.Request{Method: "GET", Path: path, Accept: accept})
	var document object
	if err := json.Unmarshal(response.Body, &document); response.Code != 200 || err != nil {
		t.Fatalf("GET %s: code %d, %v", path, response.Code, err)
	}
	return document
}

func groups() []string {
	return []string{"serving.knative.dev", "eventing.knative.dev", "messaging.knative.dev", "networking.internal.knative.dev"}
}

// versions are the served versions, by the names of their golden files.
func versions() map[string]string {
	return map[string]string{
		"serving.knative.dev":             "serving.knative.dev/v1",
		"serving.knative.dev-v1beta1":     "serving.knative.dev/v1beta1",
		"eventing.knative.dev":            "eventing.knative.dev/v1",
		"eventing.knative.dev-v1alpha1":   "eventing.knative.dev/v1alpha1",
		"messaging.knative.dev":           "messaging.knative.dev/v1",
		"networking.internal.knative.dev": "networking.internal.knative.dev/v1alpha1",
	}
}

// TestDiscovery freezes the discovery documents, from which clients derive the API (P21).
// It covers conventions Overview-1 to -3.
func TestDiscovery(t *testing.T) {
	for file, version := range versions() {
		wantGolden(t, "discovery/"+file+".json", indented(t, getJSON(t, "/apis/"+version, "")))
	}
	for _, group := range groups() {
		wantGolden(t, "discovery/group-"+group+".json", indented(t, getJSON(t, "/apis/"+group, "")))
	}
	aggregated := getJSON(t, "/apis", "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList")
	var ours []any
	for _, item := range aggregated["items"].([]any) {
		if slices.Contains(groups(), item.(object)["metadata"].(object)["name"].(string)) {
			ours = append(ours, item)
		}
	}
	if len(ours) != len(groups()) {
		t.Fatalf("aggregated discovery has %d of our groups", len(ours))
	}
	wantGolden(t, "discovery/aggregated.json", indented(t, ours))
	var names []string
	for _, group := range getJSON(t, "/apis", "application/json")["groups"].([]any) {
		names = append(names, group.(object)["name"].(string))
	}
	slices.Sort(names)
	if want := slices.Sorted(slices.Values(groups())); !slices.Equal(names, want) {
		t.Errorf("the groups served are %v, want %v", names, want)
	}
}

// TestOpenAPI freezes the parts of the OpenAPI documents that this project defines: paths of its groups and its models (P5:
// kubectl apply, explain and diff depend on them). Models of Kubernetes change with the library.
func TestOpenAPI(t *testing.T) {
	v2 := getJSON(t, "/openapi/v2", "application/json")
	wantGolden(t, "openapi/v2.json", indented(t, object{
		"paths": operations(v2["paths"].(object)), "definitions": ownModels(v2["definitions"].(object)),
	}))
	index := getJSON(t, "/openapi/v3", "")["paths"].(object)
	for file, version := range versions() {
		entry, ok := index["apis/"+version].(object)
		if !ok {
			t.Fatalf("the OpenAPI v3 document of %s is missing", version)
		}
		v3 := getJSON(t, entry["serverRelativeURL"].(string), "application/json")
		wantGolden(t, "openapi/v3-"+file+".json", indented(t, object{
			"paths": operations(v3["paths"].(object)), "schemas": ownModels(v3["components"].(object)["schemas"].(object)),
		}))
	}
}

// operations reduces paths to the methods with their IDs and parameters.
func operations(paths object) object {
	result := object{}
	for path, methods := range paths {
		if !slices.ContainsFunc(groups(), func(group string) bool { return strings.HasPrefix(path, "/apis/"+group+"/") }) {
			continue
		}
		of := object{}
		for method, value := range methods.(object) {
			operation, ok := value.(object)
			if !ok || operation["operationId"] == nil {
				continue
			}
			entry := object{"operationId": operation["operationId"]}
			if consumes, ok := operation["consumes"]; ok && method == "patch" {
				entry["consumes"] = consumes
			}
			if body, ok := operation["requestBody"].(object); ok {
				var mediaTypes []string
				for mediaType := range body["content"].(object) {
					mediaTypes = append(mediaTypes, mediaType)
				}
				slices.Sort(mediaTypes)
				entry["requestBody"] = mediaTypes
			}
			if gvk, ok := operation["x-kubernetes-group-version-kind"]; ok {
				entry["kind"] = gvk
			}
			of[method] = entry
		}
		result[path] = of
	}
	return result
}

func ownModels(models object) object {
	result := object{}
	for name, model := range models {
		if !strings.HasPrefix(name, "dev.knative.") {
			continue
		}
		if strings.HasSuffix(name, ".RevisionSpec") || strings.HasSuffix(name, ".Container") || strings.HasSuffix(name, ".ContainerPort") {
			// These contain fields of core/v1, which change with the library.
			model = object{"required": model.(object)["required"]}
		}
		result[name] = model
	}
	return result
}

// TestEveryReferenceResolves checks all references: a dangling one breaks the merged document of the whole cluster (P6).
func TestEveryReferenceResolves(t *testing.T) {
	v2 := getJSON(t, "/openapi/v2", "application/json")
	checkReferences(t, "/openapi/v2", v2)
	for path, entry := range getJSON(t, "/openapi/v3", "")["paths"].(object) {
		checkReferences(t, "/openapi/v3/"+path, getJSON(t, entry.(object)["serverRelativeURL"].(string), "application/json"))
	}
	// The host's aggregator requests it as protobuf.
	response := admin.Do(t, harness.Request{Method: "GET", Path: "/openapi/v2", Accept: "application/com.github.proto-openapi.spec.v2@v1.0+protobuf"})
	if response.Code != 200 || len(response.Body) == 0 || bytes.HasPrefix(response.Body, []byte("{")) {
		t.Errorf("OpenAPI v2 as protobuf: code %d, %d bytes", response.Code, len(response.Body))
	}
}

func checkReferences(t *testing.T, name string, document object) {
	t.Helper()
	count := 0
	var walk func(value any)
	walk = func(value any) {
		switch value := value.(type) {
		case object:
			if reference, ok := value["$ref"].(string); ok {
				count++
				target := any(document)
				for _, part := range strings.Split(strings.TrimPrefix(reference, "#/"), "/") {
					target = target.(object)[strings.NewReplacer("~1", "/", "~0", "~").Replace(part)]
					if target == nil {
						t.Errorf("%s: %s is unresolved", name, reference)
						break
					}
				}
			}
			for _, v := range value {
				walk(v)
			}
		case []any:
			for _, v := range value {
				walk(v)
			}
		}
	}
	walk(document)
	if count == 0 && strings.Contains(name, "knative.dev/v1") {
		t.Errorf("%s has no references", name)
	}
}

// age matches the age that kubectl prints for new objects.
var (
	age     = regexp.MustCompile(`\b\d+s\b`)
	padding = regexp.MustCompile(` {2,}`)
)

// TestTables freezes the columns of kubectl get, on which dashboards and users rely (P24; behaviour, Surface).
func TestTables(t *testing.T) {
	for _, k := range harness.AllKinds() {
		t.Run(k.Kind, func(t *testing.T) {
			obj := k.Object(namespace(t), "hello")
			if k.Kind == "Revision" {
				obj = get(t, k, controllersNamespace, completeRevision)
			} else {
				admin.Do(t, harness.Request{Method: "POST", Path: k.Collection(obj.GetNamespace()), Body: obj}).Object(t)
			}
			kubectl := harness.NewKubectl(t, server.Kubeconfig, obj.GetNamespace())
			var content bytes.Buffer
			print := func(args ...string) {
				out := kubectl.Must(t, "", append([]string{"get", k.Resource + "." + k.Group, obj.GetName()}, args...)...)
				content.WriteString(padding.ReplaceAllString(age.ReplaceAllString(out, "<age>"), "  "))
			}
			if k.Kind != "Revision" {
				print()
			}
			controllers.Do(t, harness.Request{Method: "PATCH", Path: pathOf(obj) + "/status", ContentType: mergePatch, Body: object{"status": fullStatus(k)}}).Object(t)
			print()
			print("-o", "wide")
			wantGolden(t, "tables/"+k.Resource+".txt", content.Bytes())
		})
	}
}

// fullStatus is a status that fills all columns of a kind.
func fullStatus(k harness.Kind) object {
	status := readyStatus()
	switch k.Kind {
	case "Service":
		return merged(status, object{"url": "http://hello.example.com", "latestCreatedRevisionName": "hello-00002", "latestReadyRevisionName": "hello-00001"})
	case "Configuration":
		return merged(status, object{"latestCreatedRevisionName": "hello-00002", "latestReadyRevisionName": "hello-00001"})
	case "Revision":
		return merged(status, object{"actualReplicas": 0, "desiredReplicas": 3})
	case "Route", "DomainMapping":
		return merged(status, object{"url": "http://hello.example.com"})
	case "Trigger":
		return merged(status, object{"subscriberUri": "http://sink.example.com/"})
	case "Broker", "Channel":
		return merged(status, object{"address": object{"url": "http://hello.example.com"}})
	}
	return status
}
