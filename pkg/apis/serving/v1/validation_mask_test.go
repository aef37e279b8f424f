package v1

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// jsonNames lists the JSON names of a struct type's fields.
func jsonNames(t reflect.Type) []string {
	var names []string
	for i := range t.NumField() {
		name, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ",")
		if name == "" {
			names = append(names, jsonNames(t.Field(i).Type)...)
		} else {
			names = append(names, name)
		}
	}
	return names
}

// A name that the type does not have would allow nothing.
func TestMasksNameFieldsOfTheirTypes(t *testing.T) {
	for _, tc := range []struct {
		mask fieldMask
		of   any
	}{
		{podSpecMask, corev1.PodSpec{}},
		{localObjectReferenceMask, corev1.LocalObjectReference{}},
		{containerMask, corev1.Container{}},
		{sidecarMask, corev1.Container{}},
		{initContainerMask, corev1.Container{}},
		{containerPortMask, corev1.ContainerPort{}},
		{envVarMask, corev1.EnvVar{}},
		{envVarSourceMask, corev1.EnvVarSource{}},
		{keySelectorMask, corev1.ConfigMapKeySelector{}},
		{keySelectorMask, corev1.SecretKeySelector{}},
		{envFromSourceMask, corev1.EnvFromSource{}},
		{envSourceMask, corev1.ConfigMapEnvSource{}},
		{envSourceMask, corev1.SecretEnvSource{}},
		{resourcesMask, corev1.ResourceRequirements{}},
		{securityContextMask, corev1.SecurityContext{}},
		{podSecurityContextMask, corev1.PodSecurityContext{}},
		{capabilitiesMask, corev1.Capabilities{}},
		{seccompProfileMask, corev1.SeccompProfile{}},
		{probeMask, corev1.Probe{}},
		{probeHandlerMask, corev1.ProbeHandler{}},
		{execMask, corev1.ExecAction{}},
		{httpGetMask, corev1.HTTPGetAction{}},
		{httpHeaderMask, corev1.HTTPHeader{}},
		{tcpSocketMask, corev1.TCPSocketAction{}},
		{grpcMask, corev1.GRPCAction{}},
		{volumeMountMask, corev1.VolumeMount{}},
		{volumeSourceMask, corev1.VolumeSource{}},
		{configMapVolumeMask, corev1.ConfigMapVolumeSource{}},
		{secretVolumeMask, corev1.SecretVolumeSource{}},
		{keyToPathMask, corev1.KeyToPath{}},
		{emptyDirMask, corev1.EmptyDirVolumeSource{}},
		{projectedVolumeMask, corev1.ProjectedVolumeSource{}},
		{volumeProjectionMask, corev1.VolumeProjection{}},
		{objectProjectionMask, corev1.ConfigMapProjection{}},
		{objectProjectionMask, corev1.SecretProjection{}},
		{tokenProjectionMask, corev1.ServiceAccountTokenProjection{}},
		{downwardAPIMask, corev1.DownwardAPIProjection{}},
		{downwardAPIFileMask, corev1.DownwardAPIVolumeFile{}},
		{objectFieldSelectorMask, corev1.ObjectFieldSelector{}},
		{resourceFieldSelectorMask, corev1.ResourceFieldSelector{}},
	} {
		names := jsonNames(reflect.TypeOf(tc.of))
		for _, name := range tc.mask.allowed {
			if !slices.Contains(names, name) {
				t.Errorf("%T has no field %s", tc.of, name)
			}
		}
		for name, key := range tc.mask.gated {
			if !slices.Contains(names, name) {
				t.Errorf("%T has no field %s", tc.of, name)
			}
			if (&Features{}).flags()[key] == nil {
				t.Errorf("field %s of %T is behind the unknown key %s", name, tc.of, key)
			}
		}
	}
}

func TestFieldMask(t *testing.T) {
	mask := fieldMask{allowed: []string{"image", "name"}, gated: map[string]string{"tty": featureAffinity}}
	c := &corev1.Container{
		Name: "a", Stdin: true, TTY: true, Args: []string{}, // an empty list counts as unset
		Lifecycle: &corev1.Lifecycle{},
	}
	checkFaults(t, mask.validate(c, Features{}, field.NewPath("x")),
		forbidden("x.stdin", "may not be set, only image, name may be set here"),
		forbidden("x.lifecycle", ""),
		forbidden("x.tty", "unless 'kubernetes.podspec-affinity' in config-features is enabled"))
	checkFaults(t, mask.validate(c, Features{Affinity: true}, field.NewPath("x")),
		forbidden("x.stdin", ""), forbidden("x.lifecycle", ""))
}

// fill gives a field some value that is not empty.
func fill(t *testing.T, value reflect.Value) {
	t.Helper()
	switch value.Kind() {
	case reflect.Pointer:
		value.Set(reflect.New(value.Type().Elem()))
	case reflect.Slice:
		value.Set(reflect.MakeSlice(value.Type(), 1, 1))
	case reflect.Map:
		value.Set(reflect.MakeMap(value.Type()))
		value.SetMapIndex(reflect.New(value.Type().Key()).Elem(), reflect.New(value.Type().Elem()).Elem())
	case reflect.Bool:
		value.SetBool(true)
	case reflect.String:
		value.SetString("x")
	case reflect.Int32, reflect.Int64:
		value.SetInt(1)
	default:
		t.Fatalf("cannot fill a %s", value.Type())
	}
}

// Each current or future field of core/v1 without an entry in a mask is rejected once, at its own path.
func TestUnreviewedFieldsAreRejected(t *testing.T) {
	for _, tc := range []struct {
		name string
		mask fieldMask
		path string
		in   func(*RevisionSpec) any
	}{
		{"PodSpec", podSpecMask, "spec.template.spec", func(s *RevisionSpec) any { return &s.PodSpec }},
		{"Container", containerMask, "spec.template.spec.containers[0]", func(s *RevisionSpec) any { return &s.Containers[0] }},
		{"ContainerPort", containerPortMask, "spec.template.spec.containers[0].ports[0]", func(s *RevisionSpec) any {
			s.Containers[0].Ports = []corev1.ContainerPort{{ContainerPort: 8080}}
			return &s.Containers[0].Ports[0]
		}},
		{"Probe", probeMask, "spec.template.spec.containers[0].readinessProbe", func(s *RevisionSpec) any {
			s.Containers[0].ReadinessProbe = &corev1.Probe{
				ProbeHandler: corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{}}, SuccessThreshold: 1,
			}
			return s.Containers[0].ReadinessProbe
		}},
		{"SecurityContext", securityContextMask, "spec.template.spec.containers[0].securityContext", func(s *RevisionSpec) any {
			s.Containers[0].SecurityContext = &corev1.SecurityContext{}
			return s.Containers[0].SecurityContext
		}},
		{"ResourceRequirements", resourcesMask, "spec.template.spec.containers[0].resources", func(s *RevisionSpec) any {
			return &s.Containers[0].Resources
		}},
	} {
		target := reflect.TypeOf(tc.in(&newRevision().Spec)).Elem()
		for i := range target.NumField() {
			name, _, _ := strings.Cut(target.Field(i).Tag.Get("json"), ",")
			if name == "" || slices.Contains(tc.mask.allowed, name) {
				continue
			}
			t.Run(tc.name+"/"+name, func(t *testing.T) {
				s := newService()
				SetDefaults_Service(s)
				value := reflect.ValueOf(tc.in(&s.Spec.Template.Spec)).Elem().Field(i)
				fill(t, value)
				if sc := s.Spec.Template.Spec.SecurityContext; sc != nil {
					sc.RunAsNonRoot = new(bool) // an empty value counts as unset and is accepted
				}
				checkFaults(t, ValidateService(s, DefaultSettings()), forbidden(tc.path+"."+name, "may not be set"))
			})
		}
	}
}
