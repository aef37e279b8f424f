package standalone

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// doorsNamespace is the namespace of the manifests of doors.
const doorsNamespace = "shop"

// door is a kind that grants access: by a host name, or to a sender. Its objects need special names or settings, so harness.Kinds does not have them.
type door struct {
	kind, apiVersion, resource string
	namespaced                 bool
	// names are the names that kubectl accepts in addition to resource and kind. others are categories that do not have the kind.
	names, categories, others []string
	// example is a complete object as YAML.
	example string
	// conditions is true if objects have the condition Ready, which is true for the example of an EventPolicy.
	conditions bool
	// explained are fields that kubectl explain describes.
	explained []string
	// accepted are manifests that Knative's releases accept, by description.
	accepted map[string]acceptance
	// rejected are manifests that they reject.
	rejected map[string]refusal
}

// acceptance is an object without apiVersion, kind and the namespace. A name is added if it has none.
type acceptance struct {
	yaml string
	// defaults are merged into the spec.
	defaults object
	// warning is contained in the only warning; empty means none.
	warning string
}

// refusal is a manifest as in acceptance, with its causes as for wantInvalid, or the message of the field that does not exist.
type refusal struct {
	yaml    string
	causes  []string
	unknown string
}

func (d *door) group() string {
	group, _, _ := strings.Cut(d.apiVersion, "/")
	return group
}

func (d *door) collection() string {
	if d.namespaced {
		return "/apis/" + d.apiVersion + "/namespaces/" + doorsNamespace + "/" + d.resource
	}
	return "/apis/" + d.apiVersion + "/" + d.resource
}

// object returns the object of an acceptance or refusal.
func (d *door) object(t *testing.T, content string) *unstructured.Unstructured {
	t.Helper()
	obj := &unstructured.Unstructured{Object: object{}}
	if err := yaml.Unmarshal([]byte(content), &obj.Object); err != nil {
		t.Fatalf("%s: %v", content, err)
	}
	obj.SetAPIVersion(d.apiVersion)
	obj.SetKind(d.kind)
	if obj.GetName() == "" && obj.GetGenerateName() == "" {
		obj.SetName("www.example.com")
	}
	return obj
}

func domainMappings() *door {
	const ref = "apiVersion: serving.knative.dev/v1, kind: Service, name: hello"
	namespace := object{"ref": object{"namespace": doorsNamespace}}
	ok := func(yaml string) acceptance { return acceptance{yaml: yaml, defaults: namespace} }
	named := func(meta string) string { return "metadata: {" + meta + "}\nspec: {ref: {" + ref + "}}" }
	path := func(prefix string) string {
		return "spec: {ref: {" + ref + "}, paths: [{prefix: " + prefix + ", ref: {" + ref + "}}]}"
	}
	return &door{
		kind: "DomainMapping", apiVersion: "serving.knative.dev/v1beta1", resource: "domainmappings", namespaced: true,
		names: []string{"dm"}, categories: []string{"all", "knative", "serving"}, others: []string{"networking", "eventing"},
		example:    "spec: {ref: {" + ref + "}, tls: {secretName: certificate}}",
		conditions: true,
		explained:  []string{"spec.ref.address", "spec.ref.namespace", "spec.tls.secretName", "spec.paths.prefix", "status.url", "status.address.CACerts"},
		accepted: map[string]acceptance{
			"Service":        ok("spec: {ref: {" + ref + "}}"),
			"own namespace":  ok("spec: {ref: {" + ref + ", namespace: shop}}"),
			"address":        {yaml: "spec: {ref: {" + ref + ", address: https}}", defaults: namespace, warning: "spec.ref.address: has no effect"},
			"Route":          ok("spec: {ref: {apiVersion: serving.knative.dev/v1, kind: Route, name: hello}}"),
			"core Service":   ok("spec: {ref: {apiVersion: v1, kind: Service, name: hello}}"),
			"Broker":         ok("spec: {ref: {apiVersion: eventing.knative.dev/v1, kind: Broker, name: default}}"),
			"kind of others": ok("spec: {ref: {apiVersion: example.org/v1alpha1, kind: Thing, name: a}}"),
			"TLS":            ok("spec: {ref: {" + ref + "}, tls: {secretName: certificate}}"),
			"no TLS":         ok("spec: {ref: {" + ref + "}, tls: null}"),
			"empty Secret":   {yaml: "spec: {ref: {" + ref + "}, tls: {secretName: ''}}", defaults: namespace, warning: "spec.tls.secretName: no Secret can have the name"},
			"impossible Secret": {yaml: "spec: {ref: {" + ref + "}, tls: {secretName: ../a}}", defaults: namespace,
				warning: "spec.tls.secretName: no Secret can have the name"},
			"empty address":        {yaml: "spec: {ref: {" + ref + ", address: ''}}", defaults: namespace, warning: "spec.ref.address: has no effect"},
			"empty namespace":      {yaml: "spec: {ref: {" + ref + ", namespace: ''}}", defaults: namespace},
			"impossible reference": ok("spec: {ref: {apiVersion: a/b/c, kind: 'some thing', name: No_Name}}"),
			"impossible wildcard": {yaml: named("annotations: {serving.knative.dev/wildcard: '*'}"), defaults: namespace,
				warning: "metadata.annotations[serving.knative.dev/wildcard]: has no effect"},
			"foreign annotations": ok(named("annotations: {kubernetes.io/ingress.class: '*', example.org/domains: '*.example.com', empty: ''}, labels: {app.kubernetes.io/name: shop}")),
			"own certificate and redirect": ok("metadata: {annotations: {networking.knative.dev/http-protocol: Redirected}}\n" +
				"spec: {ref: {" + ref + "}, tls: {secretName: certificate}}"),
			"excluded from TLS": ok(named("annotations: {networking.knative.dev/disable-external-domain-tls: 'true'}")),
			"invalid TLS": {yaml: named("annotations: {networking.knative.dev/disable-external-domain-tls: maybe, networking.knative.dev/http-protocol: sometimes, " +
				"networking.knative.dev/certificate-class: '*'}"), defaults: namespace, warning: "metadata.annotations[networking.knative.dev/disable-external-domain-tls]: has no effect"},
			"two labels":       ok(named("name: example.com")),
			"many labels":      ok(named("name: a.b-c.d1.2.example.com")),
			"the local domain": ok(named("name: cluster.local")),
			"namespace":        ok(named("name: www.example.com, namespace: shop")),
			"annotations": {yaml: named("annotations: {networking.knative.dev/http-protocol: redirected, networking.knative.dev/disable-external-domain-tls: 'false', " +
				"networking.knative.dev/certificate-class: other, networking.knative.dev/ingress-class: other}, labels: {a: b}, finalizers: [example.org/a]"),
				defaults: namespace, warning: "metadata.annotations[networking.knative.dev/ingress-class]: has no effect"},
			"status":    ok("spec: {ref: {" + ref + "}}\nstatus: {url: 'http://x', address: {url: 'http://x'}, conditions: [{type: Ready, status: 'True'}]}"),
			"own paths": {yaml: path("/api"), defaults: object{"ref": object{"namespace": doorsNamespace}, "paths": []any{object{"prefix": "/api", "ref": object{"apiVersion": "serving.knative.dev/v1", "kind": "Service", "name": "hello", "namespace": doorsNamespace}}}}},
		},
		rejected: map[string]refusal{
			"nothing":             {yaml: "{}", causes: []string{"FieldValueRequired spec.ref.apiVersion", "FieldValueRequired spec.ref.kind", "FieldValueRequired spec.ref.name"}},
			"no name":             {yaml: "spec: {ref: {apiVersion: serving.knative.dev/v1, kind: Service}}", causes: []string{"FieldValueRequired spec.ref.name"}},
			"no kind":             {yaml: "spec: {ref: {apiVersion: serving.knative.dev/v1, name: a}}", causes: []string{"FieldValueRequired spec.ref.kind"}},
			"no version":          {yaml: "spec: {ref: {kind: Service, name: a}}", causes: []string{"FieldValueRequired spec.ref.apiVersion"}},
			"group":               {yaml: "spec: {ref: {" + ref + ", group: serving.knative.dev}}", unknown: `unknown field "spec.ref.group"`},
			"another namespace":   {yaml: "spec: {ref: {" + ref + ", namespace: other}}", causes: []string{"FieldValueInvalid spec.ref.namespace"}},
			"one label":           {yaml: named("name: example"), causes: []string{"FieldValueInvalid metadata.name"}},
			"upper case":          {yaml: named("name: Www.example.com"), causes: []string{"FieldValueInvalid metadata.name"}},
			"wildcard":            {yaml: named("name: '*.example.com'"), causes: []string{"FieldValueInvalid metadata.name"}},
			"within the cluster":  {yaml: named("name: hello.shop.svc.cluster.local"), causes: []string{"FieldValueInvalid metadata.name"}},
			"generated name":      {yaml: named("generateName: www.example.com-"), causes: []string{"FieldValueForbidden metadata.generateName"}},
			"path without prefix": {yaml: path("''"), causes: []string{"FieldValueRequired spec.paths[0].prefix"}},
			"relative path":       {yaml: path("api"), causes: []string{"FieldValueInvalid spec.paths[0].prefix"}},
			"encoded path":        {yaml: path("/%61pi"), causes: []string{"FieldValueInvalid spec.paths[0].prefix"}},
			"path to nothing":     {yaml: "spec: {ref: {" + ref + "}, paths: [{prefix: /a, ref: {kind: Service, name: a}}]}", causes: []string{"FieldValueRequired spec.paths[0].ref.apiVersion"}},
		},
	}
}

func clusterDomainClaims() *door {
	return &door{
		kind: "ClusterDomainClaim", apiVersion: "networking.internal.knative.dev/v1alpha1", resource: "clusterdomainclaims",
		names: []string{"cdc"}, categories: []string{"knative-internal", "networking"}, others: []string{"all", "knative", "serving"},
		example:   "spec: {namespace: shop}",
		explained: []string{"spec.namespace"},
		accepted: map[string]acceptance{
			"minimal":             {yaml: "spec: {namespace: shop}"},
			"of one label":        {yaml: "metadata: {name: example}\nspec: {namespace: shop}"},
			"below the cluster's": {yaml: "metadata: {name: hello.shop.svc.cluster.local}\nspec: {namespace: shop}"},
			"impossible":          {yaml: "spec: {namespace: Shop}", warning: "spec.namespace: no namespace can have the name"},
			"no namespace":        {yaml: "spec: {namespace: ''}", warning: "spec.namespace: no namespace can have the name"},
			"nothing":             {yaml: "{}", defaults: object{"namespace": ""}, warning: "spec.namespace: no namespace can have the name"},
			"impossible wildcard": {yaml: "metadata: {annotations: {serving.knative.dev/wildcard: '*'}}\nspec: {namespace: shop}", warning: "metadata.annotations[serving.knative.dev/wildcard]: has no effect"},
			"TLS annotation":      {yaml: "metadata: {annotations: {networking.knative.dev/certificate-class: a}}\nspec: {namespace: shop}", warning: "metadata.annotations[networking.knative.dev/certificate-class]: has no effect"},
			"metadata":            {yaml: "metadata: {labels: {a: b}, annotations: {c: d}}\nspec: {namespace: absent}"},
			"wildcard":            {yaml: "metadata: {annotations: {serving.knative.dev/wildcard: 'true'}}\nspec: {namespace: shop}"},
		},
		rejected: map[string]refusal{
			"upper case":    {yaml: "metadata: {name: Example.com}\nspec: {namespace: shop}", causes: []string{"FieldValueInvalid metadata.name"}},
			"unknown field": {yaml: "spec: {namespace: shop, host: a}", unknown: `unknown field "spec.host"`},
		},
	}
}

func eventPolicies() *door {
	const broker, sender = "apiVersion: eventing.knative.dev/v1, kind: Broker, name: default", "apiVersion: eventing.knative.dev/v1, kind: Trigger, name: t"
	ok := func(spec string) acceptance { return acceptance{yaml: "spec: {" + spec + "}"} }
	ref := object{"apiVersion": "eventing.knative.dev/v1", "kind": "Trigger", "name": "t", "namespace": doorsNamespace}
	return &door{
		kind: "EventPolicy", apiVersion: "eventing.knative.dev/v1alpha1", resource: "eventpolicies", namespaced: true,
		categories: []string{"all", "knative", "eventing"}, others: []string{"messaging", "serving"},
		example:    "spec: {to: [{ref: {" + broker + "}}], from: [{sub: 'system:serviceaccount:shop:*'}], filters: [{exact: {type: order}}]}",
		conditions: true,
		explained:  []string{"spec.to.ref.name", "spec.to.selector.matchLabels", "spec.to.selector.matchExpressions", "spec.from.ref.namespace", "spec.from.sub", "spec.filters.cesql", "status.from"},
		accepted: map[string]acceptance{
			"nothing":       {yaml: "{}"},
			"empty":         {yaml: "spec: {}"},
			"no sender":     {yaml: "spec: {from: []}", defaults: object{"from": nil}},
			"to everything": {yaml: "spec: {to: [], from: [{sub: a}]}", defaults: object{"to": nil}},
			"to reference":  ok("to: [{ref: {" + broker + "}}, {ref: {apiVersion: messaging.knative.dev/v1, kind: Channel, name: c}}]"),
			"to labels":     ok("to: [{selector: {apiVersion: eventing.knative.dev/v1, kind: Broker, matchLabels: {app: shop}}}]"),
			"to expressions": ok("to: [{selector: {apiVersion: messaging.knative.dev/v1, kind: Channel, matchLabels: {app: shop}, matchExpressions: [{key: a, operator: In, values: [b, c]}, " +
				"{key: d, operator: NotIn, values: [e]}, {key: f, operator: Exists}, {key: g, operator: DoesNotExist}]}}]"),
			"to all of a kind":       ok("to: [{selector: {apiVersion: eventing.knative.dev/v1, kind: Broker}}]"),
			"to JobSink":             {yaml: "spec: {to: [{ref: {apiVersion: sinks.knative.dev/v1alpha1, kind: JobSink, name: a}}]}", warning: "spec.to[0].ref: has no effect"},
			"to a Sequence":          {yaml: "spec: {to: [{selector: {apiVersion: flows.knative.dev/v1, kind: Sequence, matchLabels: {a: b}}}]}", warning: "spec.to[0].selector: has no effect"},
			"from reference":         {yaml: "spec: {from: [{ref: {" + sender + "}}]}", defaults: object{"from": []any{object{"ref": ref}}}},
			"from another namespace": ok("from: [{ref: {" + sender + ", namespace: other}}]"),
			"to an empty selector":   {yaml: "spec: {to: [{selector: {}}]}", warning: "spec.to[0].selector: has no effect"},
			"to another version":     ok("to: [{ref: {apiVersion: eventing.knative.dev/v1beta1, kind: Broker, name: default}}]"),
			"to an impossible name":  ok("to: [{ref: {apiVersion: eventing.knative.dev/v1, kind: Broker, name: No_Name}}]"),
			"to impossible labels":   {yaml: "spec: {to: [{selector: {apiVersion: eventing.knative.dev/v1, kind: Broker, matchLabels: {'a b': c}}}]}", warning: "spec.to[0].selector: selects nothing"},
			"to an unknown operator": {yaml: "spec: {to: [{selector: {apiVersion: eventing.knative.dev/v1, kind: Broker, matchExpressions: [{key: a, operator: Like}]}}]}", warning: "spec.to[0].selector: selects nothing"},
			"from anything":          ok("from: [{ref: {apiVersion: a/b/c, kind: 'some thing', name: No_Name, namespace: Other_Namespace}}]"),
			"from a ServiceAccount":  ok("from: [{ref: {apiVersion: v1, kind: ServiceAccount, name: a, namespace: shop}}]"),
			"from both kinds":        {yaml: "spec: {from: [{ref: {" + sender + "}}, {sub: a}]}", defaults: object{"from": []any{object{"ref": ref}, object{"sub": "a"}}}},
			"from any text":          ok("from: [{sub: ' '}, {sub: 'ü:/?*'}, {sub: a}, {sub: a}]"),
			"from source":            ok("from: [{ref: {apiVersion: sources.knative.dev/v1, kind: PingSource, name: a, namespace: shop}}]"),
			"from subjects":          ok("from: [{sub: alice}, {sub: 'system:serviceaccount:shop:*'}, {sub: '*'}, {sub: 'system:serviceaccount:shop:orders'}]"),
			"exact":                  ok("filters: [{exact: {type: order, source: /shop, partitionkey: '1'}}]"),
			"prefix":                 ok("filters: [{prefix: {type: order.}}]"),
			"suffix":                 ok("filters: [{suffix: {subject: .jpg}}]"),
			"cesql":                  ok("filters: [{cesql: \"type LIKE 'order.%' AND EXISTS region\"}]"),
			"all":                    ok("filters: [{all: [{exact: {type: a}}, {cesql: \"source = 'b'\"}]}]"),
			"any":                    ok("filters: [{any: [{prefix: {type: a}}, {suffix: {type: b}}]}]"),
			"not":                    ok("filters: [{not: {exact: {type: a}}}]"),
			"nested":                 ok("filters: [{not: {all: [{any: [{not: {exact: {type: a}}}, {prefix: {source: b}}]}]}}, {exact: {type: c}}]"),
			"no filters":             {yaml: "spec: {filters: []}", defaults: object{"filters": nil}},
			"no dialect":             {yaml: "spec: {filters: [{}]}", warning: "spec.filters[0]: has no effect"},
			"an empty dialect":       {yaml: "spec: {filters: [{exact: {}}]}", defaults: object{"filters": []any{object{}}}, warning: "spec.filters[0]: has no effect"},
			"an empty list":          {yaml: "spec: {filters: [{any: []}]}", defaults: object{"filters": []any{object{}}}, warning: "spec.filters[0]: has no effect"},
			"an empty expression":    {yaml: "spec: {filters: [{cesql: ''}]}", defaults: object{"filters": []any{object{}}}, warning: "spec.filters[0]: has no effect"},
			"not nothing":            {yaml: "spec: {filters: [{not: {}}]}", warning: "spec.filters[0].not: has no effect"},
			"any of nothing":         {yaml: "spec: {filters: [{any: [{}, {exact: {type: a}}]}]}", warning: "spec.filters[0].any[0]: has no effect"},
			"one beside an empty":    {yaml: "spec: {filters: [{exact: {type: a}, prefix: {}, all: []}]}", defaults: object{"filters": []any{object{"exact": object{"type": "a"}}}}},
			"an empty value":         {yaml: "spec: {filters: [{exact: {type: ''}}]}", warning: "spec.filters[0].exact[type]: an empty value passes all events with the attribute"},
			"metadata":               {yaml: "metadata: {generateName: policy-, labels: {app: shop}, annotations: {a: '*'}}\nspec: {from: [{sub: a}]}"},
			"labels of controllers":  {yaml: "metadata: {labels: {eventing.knative.dev/broker-kind: Broker}}\nspec: {from: [{sub: a}]}", warning: "metadata.labels[eventing.knative.dev/broker-kind]: has no effect"},
			"status":                 {yaml: "spec: {from: [{sub: a}]}\nstatus: {from: [b], conditions: [{type: Ready, status: 'True'}]}"},
			"everything":             ok("to: [{ref: {" + broker + "}}], from: [{sub: a}], filters: [{exact: {type: a}}]"),
		},
		rejected: map[string]refusal{
			"to nothing":          {yaml: "spec: {to: [{}]}", causes: []string{"FieldValueRequired spec.to[0]"}},
			"to both":             {yaml: "spec: {to: [{ref: {" + broker + "}, selector: {kind: Broker}}]}", causes: []string{"FieldValueInvalid spec.to[0]"}},
			"to nameless":         {yaml: "spec: {to: [{ref: {" + broker + "}}, {ref: {kind: Broker}}]}", causes: []string{"FieldValueRequired spec.to[1].ref.apiVersion", "FieldValueRequired spec.to[1].ref.name"}},
			"to a namespace":      {yaml: "spec: {to: [{ref: {" + broker + ", namespace: other}}]}", unknown: `unknown field "spec.to[0].ref.namespace"`},
			"from no sender":      {yaml: "spec: {from: [{}]}", causes: []string{"FieldValueRequired spec.from[0]"}},
			"from both":           {yaml: "spec: {from: [{ref: {" + sender + "}, sub: a}]}", causes: []string{"FieldValueInvalid spec.from[0]"}},
			"from an empty name":  {yaml: "spec: {from: [{sub: ''}]}", causes: []string{"FieldValueRequired spec.from[0]"}},
			"from two wildcards":  {yaml: "spec: {from: [{sub: 'a**'}]}", causes: []string{"FieldValueInvalid spec.from[0].sub"}},
			"from empty and ref":  {yaml: "spec: {from: [{ref: {" + sender + "}, sub: ''}]}", causes: []string{"FieldValueInvalid spec.from[0]"}},
			"nested dialects":     {yaml: "spec: {filters: [{not: {exact: {type: a}, cesql: 'TRUE'}}]}", causes: []string{"FieldValueInvalid spec.filters[0].not"}},
			"from nameless":       {yaml: "spec: {from: [{ref: {kind: Trigger}}]}", causes: []string{"FieldValueRequired spec.from[0].ref.apiVersion", "FieldValueRequired spec.from[0].ref.name"}},
			"wildcard between":    {yaml: "spec: {from: [{sub: a*b}]}", causes: []string{"FieldValueInvalid spec.from[0].sub"}},
			"two dialects":        {yaml: "spec: {filters: [{exact: {type: a}, prefix: {type: b}}]}", causes: []string{"FieldValueInvalid spec.filters[0]"}},
			"attribute name":      {yaml: "spec: {filters: [{not: {exact: {Type: a}}}]}", causes: []string{"FieldValueInvalid spec.filters[0].not.exact[Type]"}},
			"invalid expression":  {yaml: "spec: {filters: [{all: [{cesql: 'type ='}]}]}", causes: []string{"FieldValueInvalid spec.filters[0].all[0].cesql"}},
			"dialect of Triggers": {yaml: "spec: {filters: [{regex: {type: a}}]}", unknown: `unknown field "spec.filters[0].regex"`},
		},
	}
}

// TestDoors checks that the manifests of DomainMappings, ClusterDomainClaims and EventPolicies that Knative's releases accept are accepted
// and stored as written, with the same defaults, that the others are refused with their field, and what kubectl shows of these kinds.
func TestDoors(t *testing.T) {
	dir := t.TempDir()
	config := filepath.Join(dir, "config")
	if err := os.Mkdir(config, 0o755); err != nil {
		t.Fatal(err)
	}
	const features = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: config-features}\ndata: {authentication-oidc: enabled}\n"
	// Annotations about TLS have an effect.
	const network = "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: config-network}\ndata: {external-domain-tls: Enabled}\n"
	if err := os.WriteFile(filepath.Join(config, "features.yaml"), []byte(features+network), 0o600); err != nil {
		t.Fatal(err)
	}
	s := harness.RunStandalone(t, filepath.Join(dir, "data"), "--config-dir", config)
	clients := clientsOf(t, s)
	kubectl := harness.NewKubectl(t, s.Kubeconfig, doorsNamespace)
	for _, d := range []*door{domainMappings(), clusterDomainClaims(), eventPolicies()} {
		t.Run(d.kind, func(t *testing.T) {
			for name, m := range d.accepted {
				t.Run(name, func(t *testing.T) { d.wantAccepted(t, clients, &m) })
			}
			for name, r := range d.rejected {
				t.Run(name, func(t *testing.T) { d.wantRejected(t, clients, &r) })
			}
			t.Run("kubectl", func(t *testing.T) { d.wantShown(t, clients, kubectl) })
		})
	}
	t.Run("without authentication", func(t *testing.T) {
		d := eventPolicies()
		response := admin.Do(t, harness.Request{Method: "POST", Path: d.collection() + "?dryRun=All", Body: d.object(t, d.example)})
		wantMessage(t, wantInvalid(t, response, "FieldValueForbidden spec"), "oidc-authentication feature not enabled")
	})
}

// strict is the query of requests whose fields must all exist, and that store nothing.
const strict = "?dryRun=All&fieldValidation=Strict"

func (d *door) wantAccepted(t *testing.T, clients *harness.Clients, m *acceptance) {
	obj := d.object(t, m.yaml)
	response := clients.Do(t, harness.Request{Method: "POST", Path: d.collection() + strict, Body: obj})
	got := response.Object(t)
	spec, _ := obj.Object["spec"].(object)
	want := merged(spec, m.defaults)
	for key, value := range want {
		if value == nil {
			delete(want, key)
		}
	}
	result, _ := got.Object["spec"].(object)
	if diff := cmp.Diff(want, normal(result)); diff != "" {
		t.Errorf("spec (-want +got):\n%s", diff)
	}
	if status, _ := got.Object["status"].(object); len(status) > 0 {
		t.Errorf("the status of the manifest is stored: %v", status)
	}
	switch warnings := response.Header.Values("Warning"); {
	case m.warning == "" && len(warnings) > 0, m.warning != "" && (len(warnings) != 1 || !strings.Contains(warnings[0], m.warning)):
		t.Errorf("warnings %q, want %q", warnings, m.warning)
	}
}

func (d *door) wantRejected(t *testing.T, clients *harness.Clients, r *refusal) {
	response := clients.Do(t, harness.Request{Method: "POST", Path: d.collection() + strict, Body: d.object(t, r.yaml)})
	if r.unknown == "" {
		wantInvalid(t, response, r.causes...)
	} else {
		wantMessage(t, wantStatus(t, response, 400, "BadRequest"), r.unknown)
	}
}

// wantShown covers kubectl with the names, categories, columns and fields of the kind.
func (d *door) wantShown(t *testing.T, clients *harness.Clients, kubectl *harness.Kubectl) {
	obj := d.object(t, d.example)
	clients.Do(t, harness.Request{Method: "POST", Path: d.collection(), Body: obj}).Object(t)
	full := d.resource + "." + d.group()
	shown := strings.ToLower(d.kind) + "." + d.group() + "/" + obj.GetName()
	for _, name := range append([]string{d.resource, strings.ToLower(d.kind), full}, d.names...) {
		if got := kubectl.Must(t, "", "get", name, obj.GetName(), "-o", "name"); got != shown+"\n" {
			t.Errorf("get %s: %q, want %q", name, got, shown)
		}
	}
	for _, category := range append(slices.Clone(d.categories), d.others...) {
		got := strings.Fields(kubectl.Must(t, "", "get", category, "-o", "name"))
		if want := slices.Contains(d.categories, category); slices.Contains(got, shown) != want {
			t.Errorf("get %s: %v, which is wrong for %s", category, got, shown)
		}
	}
	// TestTables covers DomainMappings.
	if d.kind != "DomainMapping" {
		if d.conditions {
			kubectl.Must(t, "", "wait", full, obj.GetName(), "--for=condition=Ready", "--timeout=60s")
		}
		var table bytes.Buffer
		for _, args := range [][]string{{}, {"-o", "wide"}} {
			out := kubectl.Must(t, "", append([]string{"get", full, obj.GetName()}, args...)...)
			table.WriteString(padding.ReplaceAllString(age.ReplaceAllString(out, "<age>"), "  "))
		}
		wantGolden(t, "tables/"+d.resource+".txt", table.Bytes())
	}

	// The fields of the object's metadata are not this server's.
	explained := kubectl.Must(t, "", "explain", full+".spec", "--recursive")
	if d.conditions {
		explained += "\n" + kubectl.Must(t, "", "explain", full+".status", "--recursive")
	}
	wantGolden(t, "explain/"+d.resource+".txt", []byte(explained))
	name := d.resource
	if len(d.names) > 0 {
		name = d.names[0]
	}
	for _, field := range d.explained {
		out := kubectl.Must(t, "", "explain", name+"."+field)
		if !strings.Contains(out, "FIELD: "+field[strings.LastIndexByte(field, '.')+1:]+" ") || strings.Contains(out, "<empty>") {
			t.Errorf("explain %s:\n%s", field, out)
		}
	}
}
