package v1

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/knative-apiserver/knative-apiserver/pkg/apis/internal/apitest"
)

// TestValidateDestination covers eventing Destination Resolution and duckv1.Destination.
func TestValidateDestination(t *testing.T) {
	service := func() *KReference {
		return &KReference{APIVersion: "v1", Kind: "Service", Namespace: "shop", Name: "orders"}
	}
	certificate, key := newCertificate(t), newKey(t)
	truncated := certificate[:len(certificate)/2]
	const uri, certs = "spec.subscriber.uri", "spec.subscriber.CACerts"

	tests := []struct {
		name string
		in   *Destination
		want []fault
	}{
		{"left out", nil, nil},
		{"reference", &Destination{Ref: service()}, nil},
		{"absolute URL", &Destination{URI: "http://orders.shop.svc:8080/in?x=1"}, nil},
		{"https", &Destination{URI: "HTTPS://[::1]/"}, nil},
		{"reference with a path", &Destination{Ref: service(), URI: "/update"}, nil},
		{"reference with a relative path", &Destination{Ref: service(), URI: "update?x=1"}, nil},
		{"neither", &Destination{}, []fault{
			{field.ErrorTypeRequired, "spec.subscriber", "must have at least one of `ref` and `uri`"}}},
		{"neither, with an audience", &Destination{Audience: ptr.To("a")}, []fault{
			{field.ErrorTypeRequired, "spec.subscriber", "must have at least one of `ref` and `uri`"}}},
		{"relative without reference", &Destination{URI: "/update"}, []fault{
			{field.ErrorTypeInvalid, uri, "must be an absolute URL"}}},
		{"host alone", &Destination{URI: "orders.shop.svc"}, []fault{
			{field.ErrorTypeInvalid, uri, "must be an absolute URL"}}},
		{"unparsable", &Destination{URI: "http://orders\x7f/"}, []fault{
			{field.ErrorTypeInvalid, uri, "must be a URL: net/url: invalid control character"}}},
		{"bad escape", &Destination{URI: "http://orders/%zz"}, []fault{
			{field.ErrorTypeInvalid, uri, "invalid URL escape"}}},
		{"unparsable with reference", &Destination{Ref: service(), URI: "/%zz"}, []fault{
			{field.ErrorTypeInvalid, uri, "must be a URI: invalid URL escape"}}},
		{"bad port", &Destination{URI: "http://orders:65536"}, []fault{
			{field.ErrorTypeInvalid, uri, "port must be between 0 and 65535"}}},
		{"no host", &Destination{URI: "http:///in"}, []fault{
			{field.ErrorTypeInvalid, uri, "must name a host"}}},
		{"port without host", &Destination{URI: "http://:80/"}, []fault{
			{field.ErrorTypeInvalid, uri, "must name a host"}}},
		{"other scheme", &Destination{URI: "ftp://orders/in"}, []fault{
			{field.ErrorTypeInvalid, uri, "must have the scheme 'http' or 'https'"}}},
		{"opaque", &Destination{URI: "mailto:orders"}, []fault{
			{field.ErrorTypeInvalid, uri, "must have the scheme"},
			{field.ErrorTypeInvalid, uri, "must name a host"}}},
		{"absolute with reference", &Destination{Ref: service(), URI: "http://orders/in"}, []fault{
			{field.ErrorTypeInvalid, uri, "may not be absolute when `ref` is set"}}},
		{"host with reference", &Destination{Ref: service(), URI: "//elsewhere/in"}, []fault{
			{field.ErrorTypeInvalid, uri, "may not be absolute when `ref` is set"}}},
		{"faults of the reference and the URI", &Destination{Ref: &KReference{}, URI: "http://orders"}, []fault{
			{field.ErrorTypeRequired, "spec.subscriber.ref.apiVersion", "'<group>/<version>'"},
			{field.ErrorTypeRequired, "spec.subscriber.ref.kind", "must name a kind"},
			{field.ErrorTypeRequired, "spec.subscriber.ref.name", "must name the object"},
			{field.ErrorTypeInvalid, uri, "may not be absolute"}}},
		{"certificates", &Destination{Ref: service(), CACerts: ptr.To("# ours\n" + certificate + certificate)}, nil},
		{"empty certificates", &Destination{Ref: service(), CACerts: ptr.To("")}, nil},
		{"not PEM", &Destination{Ref: service(), CACerts: ptr.To("certificate")}, []fault{
			{field.ErrorTypeInvalid, certs, "must be PEM certificates"}}},
		{"truncated", &Destination{Ref: service(), CACerts: &truncated}, []fault{
			{field.ErrorTypeInvalid, certs, "must be PEM certificates"}}},
		{"truncated before a complete certificate", &Destination{Ref: service(), CACerts: ptr.To(truncated + "\n" + certificate)}, []fault{
			{field.ErrorTypeInvalid, certs, "must be PEM certificates"}}},
		{"not X.509", &Destination{Ref: service(), CACerts: ptr.To("-----BEGIN CERTIFICATE-----\naGVsbG8=\n-----END CERTIFICATE-----\n")}, []fault{
			{field.ErrorTypeInvalid, certs, "must hold X.509 certificates"}}},
		{"key", &Destination{Ref: service(), CACerts: ptr.To(certificate + key)}, []fault{
			{field.ErrorTypeInvalid, certs, "not 'PRIVATE KEY'"}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			apitest.ExpectFaults(t, tt.in.Validate(field.NewPath("spec", "subscriber")), tt.want...)
		})
	}

	t.Run("a key is not repeated", func(t *testing.T) {
		in := &Destination{Ref: service(), CACerts: &key}
		for _, err := range in.Validate(nil) {
			if strings.Contains(err.Error(), strings.Split(key, "\n")[1]) {
				t.Errorf("the error repeats the key: %v", err)
			}
		}
	})
}

// TestValidateReference covers eventing KReference-1 to -3.
func TestValidateReference(t *testing.T) {
	with := func(change func(*KReference)) *KReference {
		r := &KReference{APIVersion: "serving.knative.dev/v1", Kind: "Service", Name: "orders"}
		change(r)
		return r
	}
	tests := []struct {
		name string
		in   *KReference
		want []fault
	}{
		{"left out", nil, nil},
		{"complete", with(func(*KReference) {}), nil},
		{"core group", with(func(r *KReference) { r.APIVersion = "v1" }), nil},
		{"dotted name, namespace and address", with(func(r *KReference) {
			r.Name, r.Namespace, r.Address = "orders.eu", "shop", ptr.To("http")
		}), nil},
		{"no kind", with(func(r *KReference) { r.Kind = "" }), []fault{{field.ErrorTypeRequired, "ref.kind", "must"}}},
		{"no name", with(func(r *KReference) { r.Name = "" }), []fault{{field.ErrorTypeRequired, "ref.name", "must"}}},
		{"no apiVersion", with(func(r *KReference) { r.APIVersion = "" }), []fault{{field.ErrorTypeRequired, "ref.apiVersion", "must"}}},
		{"path as name", with(func(r *KReference) { r.Name = "../secrets/key" }), []fault{{field.ErrorTypeInvalid, "ref.name", "RFC 1123 subdomain"}}},
		{"namespace", with(func(r *KReference) { r.Namespace = "shop.eu" }), []fault{{field.ErrorTypeInvalid, "ref.namespace", "must not contain dots"}}},
		{"two slashes", with(func(r *KReference) { r.APIVersion = "a/b/v1" }), []fault{{field.ErrorTypeInvalid, "ref.apiVersion", "'<group>/<version>'"}}},
		{"slash alone", with(func(r *KReference) { r.APIVersion = "/" }), []fault{{field.ErrorTypeInvalid, "ref.apiVersion", "must"}}},
		{"empty group", with(func(r *KReference) { r.APIVersion = "/v1" }), []fault{{field.ErrorTypeInvalid, "ref.apiVersion", "must"}}},
		{"empty version", with(func(r *KReference) { r.APIVersion = "apps/" }), []fault{{field.ErrorTypeInvalid, "ref.apiVersion", "must"}}},
		{"path as version", with(func(r *KReference) { r.APIVersion = "apps/.." }), []fault{{field.ErrorTypeInvalid, "ref.apiVersion", "must"}}},
		{"path as group", with(func(r *KReference) { r.APIVersion = "../v1" }), []fault{{field.ErrorTypeInvalid, "ref.apiVersion", "must"}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			apitest.ExpectFaults(t, tt.in.Validate(field.NewPath("ref")), tt.want...)
		})
	}
}
