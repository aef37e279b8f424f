package secret

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/knative-apiserver/knative-apiserver/pkg/registry/core"
)

func fixture(kind corev1.SecretType, data ...string) *corev1.Secret {
	s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "a"}, Type: kind, Data: map[string][]byte{}}
	for i := 0; i < len(data); i += 2 {
		s.Data[data[i]] = []byte(data[i+1])
	}
	return s
}

func TestValidate(t *testing.T) {
	tests := map[string]struct {
		secret *corev1.Secret
		// want are the paths of the fields with errors.
		want []string
	}{
		"opaque":                        {secret: fixture(corev1.SecretTypeOpaque, "a.B-c_1", "x")},
		"a type of the user":            {secret: fixture("example.com/mine")},
		"a path as key":                 {secret: fixture("", "../a", "x"), want: []string{"data[../a]"}},
		"dots as key":                   {secret: fixture("", "..", "x"), want: []string{"data[..]"}},
		"no key":                        {secret: fixture("", "", "x"), want: []string{"data[]"}},
		"a long key":                    {secret: fixture("", strings.Repeat("a", 254), "x"), want: []string{"data[" + strings.Repeat("a", 254) + "]"}},
		"maximum size":                  {secret: fixture("", "a", strings.Repeat("x", core.MaxDataSize))},
		"too large":                     {secret: fixture("", "a", strings.Repeat("x", core.MaxDataSize), "b", "x"), want: []string{"data"}},
		"dockerconfigjson":              {secret: fixture(corev1.SecretTypeDockerConfigJson, ".dockerconfigjson", `{"auths":{}}`)},
		"dockerconfigjson without key":  {secret: fixture(corev1.SecretTypeDockerConfigJson), want: []string{"data[.dockerconfigjson]"}},
		"dockerconfigjson without JSON": {secret: fixture(corev1.SecretTypeDockerConfigJson, ".dockerconfigjson", "hunter2"), want: []string{"data[.dockerconfigjson]"}},
		"dockercfg without key":         {secret: fixture(corev1.SecretTypeDockercfg), want: []string{"data[.dockercfg]"}},
		"tls":                           {secret: fixture(corev1.SecretTypeTLS, "tls.crt", "", "tls.key", "")},
		"tls without keys":              {secret: fixture(corev1.SecretTypeTLS), want: []string{"data[tls.crt]", "data[tls.key]"}},
		"basic-auth with a password":    {secret: fixture(corev1.SecretTypeBasicAuth, "password", "")},
		"basic-auth without keys":       {secret: fixture(corev1.SecretTypeBasicAuth), want: []string{"data[username]", "data[password]"}},
		"ssh-auth with an empty key":    {secret: fixture(corev1.SecretTypeSSHAuth, "ssh-privatekey", ""), want: []string{"data[ssh-privatekey]"}},
		"a token without account":       {secret: fixture(corev1.SecretTypeServiceAccountToken), want: []string{"metadata.annotations[kubernetes.io/service-account.name]"}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, fault := range core.NewStrategy(Resource(), nil).Validate(t.Context(), test.secret) {
				got = append(got, fault.Field)
				if strings.Contains(fault.Error(), "hunter2") {
					t.Errorf("a value is in the error: %v", fault)
				}
			}
			if !slices.Equal(slices.Compact(got), test.want) {
				t.Errorf("faults at %q, want %q", got, test.want)
			}
		})
	}
}

func TestStringDataIsMerged(t *testing.T) {
	s := fixture("", "a", "old", "b", "kept")
	s.StringData = map[string]string{"a": "new", "c": "x"}
	core.NewStrategy(Resource(), nil).PrepareForCreate(t.Context(), s)
	if s.StringData != nil || s.Type != corev1.SecretTypeOpaque || len(s.Data) != 3 ||
		!bytes.Equal(s.Data["a"], []byte("new")) || !bytes.Equal(s.Data["b"], []byte("kept")) || !bytes.Equal(s.Data["c"], []byte("x")) {
		t.Errorf("Secret is %+v", s)
	}
}

func TestValidateUpdate(t *testing.T) {
	immutable := func(s *corev1.Secret) *corev1.Secret { s.Immutable = ptr.To(true); return s }
	tests := map[string]struct {
		old, obj *corev1.Secret
		want     []string
	}{
		"another value":                     {old: fixture("", "a", "1"), obj: fixture("", "a", "2")},
		"another type":                      {old: fixture("x", "a", "1"), obj: fixture("y", "a", "1"), want: []string{"type"}},
		"becomes immutable":                 {old: fixture("", "a", "1"), obj: immutable(fixture("", "a", "2"))},
		"an unchanged immutable one":        {old: immutable(fixture("", "a", "1")), obj: immutable(fixture("", "a", "1"))},
		"another value of an immutable one": {old: immutable(fixture("", "a", "1")), obj: immutable(fixture("", "a", "2")), want: []string{"data"}},
		"mutable again":                     {old: immutable(fixture("", "a", "1")), obj: fixture("", "a", "1"), want: []string{"immutable"}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			complete(test.old)
			test.old.ResourceVersion, test.obj.ResourceVersion = "1", "1"
			rules := core.NewStrategy(Resource(), nil)
			rules.PrepareForUpdate(t.Context(), test.obj, test.old)
			var got []string
			for _, fault := range rules.ValidateUpdate(t.Context(), test.obj, test.old) {
				got = append(got, fault.Field)
			}
			if !slices.Equal(got, test.want) {
				t.Errorf("faults at %q, want %q", got, test.want)
			}
		})
	}
}
