// Package secret holds the rules of core/v1 Secrets for a server without a host cluster.
package secret

import (
	"encoding/json"

	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/knative-apiserver/knative-apiserver/pkg/registry"
	"github.com/knative-apiserver/knative-apiserver/pkg/registry/core"
)

// Resource describes Secrets.
func Resource() core.Resource[*corev1.Secret] {
	return core.Resource[*corev1.Secret]{
		Plural: "secrets", Singular: "secret",
		New:              func() *corev1.Secret { return &corev1.Secret{} },
		NewList:          func() runtime.Object { return &corev1.SecretList{} },
		PrepareForCreate: complete,
		PrepareForUpdate: func(obj, old *corev1.Secret) {
			if obj.Type == "" {
				obj.Type = old.Type
			}
			complete(obj)
		},
		Name:             apivalidation.NameIsDNSSubdomain,
		ValidateObject:   validate,
		ValidateChange:   validateChange,
		SelectableFields: func(s *corev1.Secret) fields.Set { return fields.Set{"type": string(s.Type)} },
		Columns: []registry.Column[*corev1.Secret]{
			{
				Name: "Type", Type: "string", Description: corev1.Secret{}.SwaggerDoc()["type"],
				Value: func(s *corev1.Secret) any { return string(s.Type) },
			},
			{
				Name: "Data", Type: "string", Description: "Number of keys in data.",
				Value: func(s *corev1.Secret) any { return int64(len(s.Data)) },
			},
		},
	}
}

// complete merges the write-only stringData into data and sets the default type.
func complete(s *corev1.Secret) {
	if s.Type == "" {
		s.Type = corev1.SecretTypeOpaque
	}
	if len(s.StringData) > 0 && s.Data == nil {
		s.Data = make(map[string][]byte, len(s.StringData))
	}
	for key, value := range s.StringData {
		s.Data[key] = []byte(value)
	}
	s.StringData = nil
}

// required lists the keys that a Secret of a type must contain.
var required = map[corev1.SecretType][]string{
	corev1.SecretTypeDockercfg:        {corev1.DockerConfigKey},
	corev1.SecretTypeDockerConfigJson: {corev1.DockerConfigJsonKey},
	corev1.SecretTypeSSHAuth:          {corev1.SSHAuthPrivateKey},
	corev1.SecretTypeTLS:              {corev1.TLSCertKey, corev1.TLSPrivateKeyKey},
}

// validate returns all errors of a Secret. They never contain a value.
func validate(s *corev1.Secret) field.ErrorList {
	var errs field.ErrorList
	data := field.NewPath("data")
	size := 0
	for key, value := range s.Data {
		for _, msg := range validation.IsConfigMapKey(key) {
			errs = append(errs, field.Invalid(data.Key(key), key, msg))
		}
		size += len(value)
	}
	if size > core.MaxDataSize {
		errs = append(errs, field.TooLong(data, "", core.MaxDataSize))
	}
	for _, key := range required[s.Type] {
		value, ok := s.Data[key]
		if !ok || s.Type == corev1.SecretTypeSSHAuth && len(value) == 0 {
			errs = append(errs, field.Required(data.Key(key), ""))
			continue
		}
		switch s.Type {
		case corev1.SecretTypeDockercfg, corev1.SecretTypeDockerConfigJson:
			if err := json.Unmarshal(value, &map[string]any{}); err != nil {
				errs = append(errs, field.Invalid(data.Key(key), "<secret contents redacted>", "must be a JSON object"))
			}
		}
	}
	switch s.Type {
	case corev1.SecretTypeBasicAuth:
		_, user := s.Data[corev1.BasicAuthUsernameKey]
		_, password := s.Data[corev1.BasicAuthPasswordKey]
		if !user && !password {
			errs = append(errs, field.Required(data.Key(corev1.BasicAuthUsernameKey), ""), field.Required(data.Key(corev1.BasicAuthPasswordKey), ""))
		}
	case corev1.SecretTypeServiceAccountToken:
		if s.Annotations[corev1.ServiceAccountNameKey] == "" {
			errs = append(errs, field.Required(field.NewPath("metadata", "annotations").Key(corev1.ServiceAccountNameKey), ""))
		}
	}
	return errs
}

func validateChange(obj, old *corev1.Secret) field.ErrorList {
	errs := core.ValidateImmutable(obj.Immutable, old.Immutable, map[string][2]any{"data": {obj.Data, old.Data}})
	return append(errs, apivalidation.ValidateImmutableField(obj.Type, old.Type, field.NewPath("type"))...)
}
