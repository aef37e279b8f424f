package v1

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
)

func ref(name string) corev1.LocalObjectReference { return corev1.LocalObjectReference{Name: name} }

// TestEnv covers serving 10.5-1, 10.5-2, 10.6-1 and 10.6-2.
// It covers serving 10.5-1 and 10.5-2.
func TestEnv(t *testing.T) {
	env := func(env ...corev1.EnvVar) func(*RevisionSpec) {
		return container(func(c *corev1.Container) { c.Env = env })
	}
	from := func(source corev1.EnvVarSource) func(*RevisionSpec) {
		return env(corev1.EnvVar{Name: "A", ValueFrom: &source})
	}
	configMap := &corev1.ConfigMapKeySelector{LocalObjectReference: ref("a"), Key: "b"}
	secret := &corev1.SecretKeySelector{LocalObjectReference: ref("a"), Key: "b.c"}
	field := &corev1.ObjectFieldSelector{FieldPath: "metadata.name"}
	const at = "containers[0].env[0]"
	runTemplateCases(t, []templateCase{
		{name: "10.5: values", change: env(corev1.EnvVar{Name: "A", Value: "1"}, corev1.EnvVar{Name: "empty"}, corev1.EnvVar{Name: "with.dots-1"})},
		{name: "10.5-1: no name", change: env(corev1.EnvVar{Value: "1"}), want: []fault{required(at+".name", "")}},
		{name: "10.5-1: bad name", change: env(corev1.EnvVar{Name: "A=B"}), want: []fault{invalid(at+".name", "printable ASCII")}},
		{
			name: "reserved",
			change: env(corev1.EnvVar{Name: "PORT"}, corev1.EnvVar{Name: "K_SERVICE"}, corev1.EnvVar{Name: "K_CONFIGURATION"},
				corev1.EnvVar{Name: "K_REVISION"}, corev1.EnvVar{Name: "K_OTHER"}),
			want: []fault{
				invalid(at+".name", "PORT"), invalid("containers[0].env[1].name", ""),
				invalid("containers[0].env[2].name", ""), invalid("containers[0].env[3].name", ""),
			},
		},
		{name: "10.6-1: configMapKeyRef", change: from(corev1.EnvVarSource{ConfigMapKeyRef: configMap})},
		{name: "10.6-2: secretKeyRef", change: from(corev1.EnvVarSource{SecretKeyRef: secret})},
		{
			name: "10.5-2: value and valueFrom", change: env(corev1.EnvVar{Name: "A", Value: "1", ValueFrom: &corev1.EnvVarSource{SecretKeyRef: secret}}),
			want: []fault{forbidden(at+".valueFrom", "may not be set when value is not empty")},
		},
		{
			name: "10.6: no source", change: from(corev1.EnvVarSource{}),
			want: []fault{required(at+".valueFrom", "exactly one of configMapKeyRef, secretKeyRef")},
		},
		{
			name: "10.6: two sources", change: from(corev1.EnvVarSource{ConfigMapKeyRef: configMap, SecretKeyRef: secret}),
			want: []fault{forbidden(at+".valueFrom.secretKeyRef", "together with configMapKeyRef")},
		},
		{
			name: "10.7: empty", change: from(corev1.EnvVarSource{ConfigMapKeyRef: &corev1.ConfigMapKeySelector{}}),
			want: []fault{required(at+".valueFrom.configMapKeyRef.name", ""), required(at+".valueFrom.configMapKeyRef.key", "")},
		},
		{
			name: "10.8: invalid name and key", change: from(corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{LocalObjectReference: ref("A"), Key: "a/b"}}),
			want: []fault{invalid(at+".valueFrom.secretKeyRef.name", ""), invalid(at+".valueFrom.secretKeyRef.key", "")},
		},
		{
			name: "fieldRef", change: from(corev1.EnvVarSource{FieldRef: field}),
			want: []fault{forbidden(at+".valueFrom.fieldRef", "'kubernetes.podspec-fieldref'")},
		},
		{
			name: "fieldRef when it is enabled", change: from(corev1.EnvVarSource{FieldRef: field}),
			features: func(f *Features) { f.FieldRef = true },
		},
		{
			name: "empty references when they are enabled", change: from(corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{}, ResourceFieldRef: &corev1.ResourceFieldSelector{}}),
			features: func(f *Features) { f.FieldRef = true },
			want: []fault{
				required(at+".valueFrom.fieldRef.fieldPath", ""), required(at+".valueFrom.resourceFieldRef.resource", ""),
				forbidden(at+".valueFrom.resourceFieldRef", "together with fieldRef"),
			},
		},
		{
			name: "fileKeyRef", change: from(corev1.EnvVarSource{FileKeyRef: &corev1.FileKeySelector{}}),
			want: []fault{forbidden(at+".valueFrom.fileKeyRef", "only configMapKeyRef, secretKeyRef")},
		},
	})
}

// TestEnvFrom covers serving 10.10-1, 10.10-2, 10.10-3, 10.16-1 and 10.17-1.
func TestEnvFrom(t *testing.T) {
	from := func(source corev1.EnvFromSource) func(*RevisionSpec) {
		return container(func(c *corev1.Container) { c.EnvFrom = []corev1.EnvFromSource{source} })
	}
	configMap := &corev1.ConfigMapEnvSource{LocalObjectReference: ref("a")}
	secret := &corev1.SecretEnvSource{LocalObjectReference: ref("a")}
	const at = "containers[0].envFrom[0]"
	runTemplateCases(t, []templateCase{
		{name: "10.10-1: configMapRef", change: from(corev1.EnvFromSource{Prefix: "A_", ConfigMapRef: configMap})},
		{name: "10.10-3: secretRef", change: from(corev1.EnvFromSource{SecretRef: secret})},
		{
			name: "10.10-2: bad prefix", change: from(corev1.EnvFromSource{Prefix: "=", SecretRef: secret}),
			want: []fault{invalid(at+".prefix", "")},
		},
		{
			name: "none", change: from(corev1.EnvFromSource{Prefix: "A"}),
			want: []fault{required(at, "exactly one of configMapRef, secretRef")},
		},
		{
			name: "both", change: from(corev1.EnvFromSource{ConfigMapRef: configMap, SecretRef: secret}),
			want: []fault{forbidden(at+".secretRef", "together with configMapRef")},
		},
		{name: "10.16-1: no name", change: from(corev1.EnvFromSource{ConfigMapRef: &corev1.ConfigMapEnvSource{}}), want: []fault{required(at+".configMapRef.name", "")}},
		{name: "10.17-1: no name", change: from(corev1.EnvFromSource{SecretRef: &corev1.SecretEnvSource{}}), want: []fault{required(at+".secretRef.name", "")}},
	})
}
