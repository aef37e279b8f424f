package v1beta1

import (
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/apis/internal/apitest"
)

type fault struct {
	Type   field.ErrorType
	Field  string
	Detail string
}

func mapping(change func(*DomainMapping)) *DomainMapping {
	m := &DomainMapping{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "www.example.com"},
		Spec:       DomainMappingSpec{Ref: duckv1.KReference{APIVersion: "serving.knative.dev/v1", Kind: "Service", Name: "hello"}},
	}
	if change != nil {
		change(m)
	}
	return m
}

// paths adds paths with references to a Service.
func paths(prefixes ...string) func(*DomainMapping) {
	return func(m *DomainMapping) {
		for _, prefix := range prefixes {
			m.Spec.Paths = append(m.Spec.Paths, DomainMappingPath{Prefix: prefix, Ref: duckv1.KReference{APIVersion: "serving.knative.dev/v1", Kind: "Service", Name: "api"}})
		}
	}
}

func TestDefaults(t *testing.T) {
	m := mapping(paths("/api"))
	SetDefaults_DomainMapping(m)
	if m.Spec.Ref.Namespace != "shop" || m.Spec.Paths[0].Ref.Namespace != "shop" {
		t.Errorf("namespaces of the references are %q and %q", m.Spec.Ref.Namespace, m.Spec.Paths[0].Ref.Namespace)
	}
	m = mapping(func(m *DomainMapping) { m.Spec.Ref.Namespace = "other" })
	SetDefaults_DomainMapping(m)
	if m.Spec.Ref.Namespace != "other" {
		t.Errorf("namespace of the reference is %q", m.Spec.Ref.Namespace)
	}
}

func TestValidateDomainMapping(t *testing.T) {
	named := func(name string) func(*DomainMapping) { return func(m *DomainMapping) { m.Name = name } }
	for name, tt := range map[string]struct {
		change func(*DomainMapping)
		want   []fault
	}{
		"valid":                    {nil, nil},
		"own namespace":            {func(m *DomainMapping) { m.Spec.Ref.Namespace = "shop" }, nil},
		"address":                  {func(m *DomainMapping) { m.Spec.Ref.Address = new(string) }, nil},
		"core Service":             {func(m *DomainMapping) { m.Spec.Ref.APIVersion = "v1" }, nil},
		"certificate":              {func(m *DomainMapping) { m.Spec.TLS = &SecretTLS{SecretName: "certificate"} }, nil},
		"of two labels":            {named("example.com"), nil},
		"the domain of clusters":   {named("cluster.local"), nil},
		"of another cluster":       {named("www.notcluster.local"), nil},
		"within the cluster":       {named("hello.shop.svc.cluster.local"), []fault{{field.ErrorTypeInvalid, "metadata.name", `invalid name "hello.shop.svc.cluster.local": may not be a subdomain`}}},
		"one label":                {named("example"), []fault{{field.ErrorTypeInvalid, "metadata.name", `invalid name "example": must be a fully qualified DNS name`}}},
		"upper case":               {named("Www.example.com"), []fault{{field.ErrorTypeInvalid, "metadata.name", "lowercase RFC 1123 subdomain"}}},
		"a label that is too long": {named(strings.Repeat("a", 64) + ".example.com"), []fault{{field.ErrorTypeInvalid, "metadata.name", "must be a fully qualified DNS name"}}},
		"wildcard as a name": {named("*.example.com"), []fault{
			{field.ErrorTypeInvalid, "metadata.name", `invalid name "*.example.com": must be "example.com", with the annotation serving.knative.dev/wildcard: "true"`},
		}},
		"wildcard of one label":    {named("*.com"), []fault{{field.ErrorTypeInvalid, "metadata.name", "lowercase RFC 1123 subdomain"}}},
		"wildcard within the name": {named("www.*.example.com"), []fault{{field.ErrorTypeInvalid, "metadata.name", "lowercase RFC 1123 subdomain"}}},
		"two wildcards":            {named("*.*.example.com"), []fault{{field.ErrorTypeInvalid, "metadata.name", "lowercase RFC 1123 subdomain"}}},
		"generated name":           {func(m *DomainMapping) { m.GenerateName = "www.example.com-" }, []fault{{field.ErrorTypeForbidden, "metadata.generateName", "may not be set"}}},
		"no reference": {func(m *DomainMapping) { m.Spec.Ref = duckv1.KReference{} }, []fault{
			{field.ErrorTypeRequired, "spec.ref.apiVersion", ""}, {field.ErrorTypeRequired, "spec.ref.kind", ""}, {field.ErrorTypeRequired, "spec.ref.name", ""},
		}},
		"another namespace": {func(m *DomainMapping) { m.Spec.Ref.Namespace = "other" }, []fault{{field.ErrorTypeInvalid, "spec.ref.namespace", "mismatched namespaces"}}},
		"wildcard":          {func(m *DomainMapping) { m.Annotations = map[string]string{"serving.knative.dev/wildcard": "true"} }, nil},
		"no wildcard":       {func(m *DomainMapping) { m.Annotations = map[string]string{"serving.knative.dev/wildcard": "*"} }, nil},
		"what cannot exist": {func(m *DomainMapping) {
			m.Spec.Ref = duckv1.KReference{APIVersion: "a/b/c", Kind: "a thing", Name: "No_name"}
		}, nil},
		"paths":    {paths("/api", "/api/v1", "/API", "/.well-known", "/a-b_c~d.e", "/...", "/"+strings.Repeat("a", 255)), nil},
		"too long": {paths("/" + strings.Repeat("a", 256)), []fault{{field.ErrorTypeTooLong, "spec.paths[0].prefix", "256"}}},
		"too many": {func(m *DomainMapping) {
			for i := range 33 {
				paths(fmt.Sprintf("/%d", i))(m)
			}
		}, []fault{{field.ErrorTypeTooMany, "spec.paths", "must have at most 32 items"}}},
		"twice":           {paths("/api", "/x", "/api"), []fault{{field.ErrorTypeDuplicate, "spec.paths[2].prefix", ""}}},
		"no prefix":       {paths(""), []fault{{field.ErrorTypeRequired, "spec.paths[0].prefix", ""}}},
		"the root":        {paths("/"), []fault{{field.ErrorTypeInvalid, "spec.paths[0].prefix", "must have a segment"}}},
		"relative":        {paths("api"), []fault{{field.ErrorTypeInvalid, "spec.paths[0].prefix", "must begin with '/'"}}},
		"trailing slash":  {paths("/ok", "/api/"), []fault{{field.ErrorTypeInvalid, "spec.paths[1].prefix", "end with '/'"}}},
		"empty segment":   {paths("/api//v1"), []fault{{field.ErrorTypeInvalid, "spec.paths[0].prefix", "may not contain '//'"}}},
		"only slashes":    {paths("//"), []fault{{field.ErrorTypeInvalid, "spec.paths[0].prefix", "may not contain '//'"}}},
		"dot segment":     {paths("/api/./v1"), []fault{{field.ErrorTypeInvalid, "spec.paths[0].prefix", "the segments '.' and '..'"}}},
		"dot-dot segment": {paths("/api/.."), []fault{{field.ErrorTypeInvalid, "spec.paths[0].prefix", "the segments '.' and '..'"}}},
		"query":           {paths("/api?x=1"), []fault{{field.ErrorTypeInvalid, "spec.paths[0].prefix", "may contain only"}}},
		"encoded":         {paths("/%61pi"), []fault{{field.ErrorTypeInvalid, "spec.paths[0].prefix", "may contain only"}}},
		"parameter":       {paths("/api;v=1"), []fault{{field.ErrorTypeInvalid, "spec.paths[0].prefix", "may contain only"}}},
		"backslash":       {paths("/api\\v1"), []fault{{field.ErrorTypeInvalid, "spec.paths[0].prefix", "may contain only"}}},
		"not ASCII":       {paths("/bücher"), []fault{{field.ErrorTypeInvalid, "spec.paths[0].prefix", "may contain only"}}},
		"path without reference": {func(m *DomainMapping) { m.Spec.Paths = []DomainMappingPath{{Prefix: "/api"}} }, []fault{
			{field.ErrorTypeRequired, "spec.paths[0].ref.apiVersion", ""}, {field.ErrorTypeRequired, "spec.paths[0].ref.kind", ""},
			{field.ErrorTypeRequired, "spec.paths[0].ref.name", ""},
		}},
		"path to another namespace": {func(m *DomainMapping) {
			paths("/api")(m)
			m.Spec.Paths[0].Ref.Namespace = "other"
		}, []fault{{field.ErrorTypeInvalid, "spec.paths[0].ref.namespace", "mismatched namespaces"}}},
		"no Secret":           {func(m *DomainMapping) { m.Spec.TLS = &SecretTLS{} }, nil},
		"no name of a Secret": {func(m *DomainMapping) { m.Spec.TLS = &SecretTLS{SecretName: "../a"} }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			m := mapping(tt.change)
			apitest.ExpectFaults(t, ValidateDomainMapping(m, "cluster.local"), tt.want...)
			apitest.ExpectFaults(t, ValidateDomainMappingUpdate(m, mapping(nil), "cluster.local"), tt.want...)
		})
	}
}
