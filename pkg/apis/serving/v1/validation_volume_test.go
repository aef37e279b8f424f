package v1

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"
)

// TestVolumes covers serving 10.21-1, 10.21-2, 10.22-1, 10.22-3 and 10.23-3.
func TestVolumes(t *testing.T) {
	configMap := &corev1.ConfigMapVolumeSource{LocalObjectReference: ref("a")}
	secret := &corev1.SecretVolumeSource{SecretName: "a"}
	items := []corev1.KeyToPath{{Key: "k", Path: "a/b", Mode: ptr.To[int32](0o644)}}
	badItems := []corev1.KeyToPath{{}, {Key: "a/b", Path: "/a", Mode: ptr.To[int32](0o1000)}, {Key: "k", Path: "../a"}, {Key: "k", Path: "..a"}}
	badItemsAt := func(path string) []fault {
		return []fault{
			required(path+"[0].key", ""), required(path+"[0].path", ""),
			invalid(path+"[1].key", ""), invalid(path+"[1].path", "relative"), invalid(path+"[1].mode", "0777 (octal)"),
			invalid(path+"[2].path", "must not contain '..'"), invalid(path+"[3].path", "must not start with '..'"),
		}
	}
	const at = "volumes[0]"
	runTemplateCases(t, []templateCase{
		{name: "10.21-1: configMap", change: mounted(corev1.VolumeSource{ConfigMap: configMap})},
		{name: "10.21-2: secret", change: mounted(corev1.VolumeSource{Secret: secret})},
		{
			name: "no source", change: mounted(corev1.VolumeSource{}),
			want: []fault{required(at, "exactly one of configMap, projected, secret")},
		},
		{
			name: "two sources", change: mounted(corev1.VolumeSource{Secret: secret, ConfigMap: configMap}),
			want: []fault{forbidden(at+".configMap", "together with secret")},
		},
		{
			name: "other sources", change: mounted(corev1.VolumeSource{NFS: &corev1.NFSVolumeSource{}, DownwardAPI: &corev1.DownwardAPIVolumeSource{}}),
			want: []fault{forbidden(at+".nfs", "only configMap, projected, secret"), forbidden(at+".downwardAPI", "")},
		},
		{
			name: "names",
			change: func(s *RevisionSpec) {
				s.Volumes = []corev1.Volume{configMapVolume("same"), configMapVolume("same"), configMapVolume("A.b"), configMapVolume("")}
				s.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "same", MountPath: "/a"}, {Name: "A.b", MountPath: "/b"}}
			},
			want: []fault{duplicate("volumes[1].name"), invalid("volumes[2].name", "RFC 1123 label"), required("volumes[3].name", "")},
		},
		{
			name:   "10.22: complete",
			change: mounted(corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: ref("a"), Items: items, DefaultMode: ptr.To[int32](0o777), Optional: ptr.To(true)}}),
		},
		{name: "10.22-3: no name", change: mounted(corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{}}), want: []fault{required(at+".configMap.name", "")}},
		{
			name: "10.22-1: mode", change: mounted(corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: ref("a"), DefaultMode: ptr.To[int32](-1)}}),
			want: []fault{invalid(at+".configMap.defaultMode", "between 0 and 0777")},
		},
		{
			name: "10.25: items of a configMap", change: mounted(corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: ref("a"), Items: badItems}}),
			want: badItemsAt(at + ".configMap.items"),
		},
		{name: "10.23-3: no name", change: mounted(corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{}}), want: []fault{required(at+".secret.secretName", "")}},
		{
			name: "10.25: items of a secret", change: mounted(corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "a", Items: badItems}}),
			want: badItemsAt(at + ".secret.items"),
		},
		{name: "emptyDir", change: mounted(corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: "Memory", SizeLimit: ptr.To(resource.MustParse("1Gi"))}})},
		{
			name: "bad emptyDir", change: mounted(corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: "Disk", SizeLimit: ptr.To(resource.MustParse("-1")), Mode: ptr.To[int32](0)}}),
			want: []fault{
				notSupported(at+".emptyDir.medium", `"Memory"`), invalid(at+".emptyDir.sizeLimit", "greater than or equal to 0"),
				forbidden(at+".emptyDir.mode", ""),
			},
		},
	})
}

func TestGatedVolumes(t *testing.T) {
	for name, tc := range map[string]struct {
		key    string
		source corev1.VolumeSource
		// empty is a source without its required field, whose path is missing.
		empty   corev1.VolumeSource
		missing string
	}{
		"emptyDir": {key: "kubernetes.podspec-volumes-emptydir", source: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
		"hostPath": {
			"kubernetes.podspec-volumes-hostpath", corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/a"}},
			corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{}}, ".path",
		},
		"csi": {
			"kubernetes.podspec-volumes-csi", corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{Driver: "a"}},
			corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{}}, ".driver",
		},
		"ephemeral": {
			"kubernetes.podspec-volumes-ephemeral",
			corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{VolumeClaimTemplate: &corev1.PersistentVolumeClaimTemplate{}}},
			corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}, ".volumeClaimTemplate",
		},
		"image": {
			"kubernetes.podspec-volumes-image", corev1.VolumeSource{Image: &corev1.ImageVolumeSource{Reference: "a"}},
			corev1.VolumeSource{Image: &corev1.ImageVolumeSource{}}, ".reference",
		},
	} {
		set := func(on bool) func(*Features) {
			return func(f *Features) { *f.flags()[tc.key] = on }
		}
		cases := []templateCase{
			{name: name + " off", change: mounted(tc.source), features: set(false), want: []fault{forbidden("volumes[0]."+name, "'"+tc.key+"'")}},
			{name: name + " on", change: mounted(tc.source), features: set(true)},
		}
		if tc.missing != "" {
			cases = append(cases, templateCase{
				name: name + " empty", change: mounted(tc.empty), features: set(true),
				want: []fault{required("volumes[0]."+name+tc.missing, "")},
			})
		}
		runTemplateCases(t, cases)
	}
}

// TestProjectedVolumes covers serving 10.24-2.
func TestProjectedVolumes(t *testing.T) {
	projected := func(sources ...corev1.VolumeProjection) func(*RevisionSpec) {
		return mounted(corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: sources}})
	}
	const at = "volumes[0].projected.sources"
	runTemplateCases(t, []templateCase{
		{name: "10.24, 10.26: complete", change: projected(
			corev1.VolumeProjection{ConfigMap: &corev1.ConfigMapProjection{LocalObjectReference: ref("a")}},
			corev1.VolumeProjection{Secret: &corev1.SecretProjection{LocalObjectReference: ref("a"), Items: []corev1.KeyToPath{{Key: "k", Path: "p"}}}},
			corev1.VolumeProjection{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "token", ExpirationSeconds: ptr.To[int64](600)}},
			corev1.VolumeProjection{DownwardAPI: &corev1.DownwardAPIProjection{Items: []corev1.DownwardAPIVolumeFile{
				{Path: "labels", FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.labels"}},
			}}},
		)},
		{name: "10.24-2: no sources", change: projected(), want: []fault{required("volumes[0].projected.sources", "at least one")}},
		{
			name: "10.26: none and two",
			change: projected(corev1.VolumeProjection{}, corev1.VolumeProjection{
				ConfigMap: &corev1.ConfigMapProjection{LocalObjectReference: ref("a")}, Secret: &corev1.SecretProjection{LocalObjectReference: ref("a")},
			}),
			want: []fault{
				required(at+"[0]", "exactly one of configMap, downwardAPI, secret, serviceAccountToken"),
				forbidden(at+"[1].configMap", "together with secret"),
			},
		},
		{
			name: "10.27-2, 10.28-2: no names, invalid items",
			change: projected(
				corev1.VolumeProjection{ConfigMap: &corev1.ConfigMapProjection{Items: []corev1.KeyToPath{{Key: "k"}}}},
				corev1.VolumeProjection{Secret: &corev1.SecretProjection{Items: []corev1.KeyToPath{{Path: "p"}}}},
			),
			want: []fault{
				required(at+"[0].configMap.name", ""), required(at+"[0].configMap.items[0].path", ""),
				required(at+"[1].secret.name", ""), required(at+"[1].secret.items[0].key", ""),
			},
		},
		{
			name: "token and downward API",
			change: projected(
				corev1.VolumeProjection{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{ExpirationSeconds: ptr.To[int64](599)}},
				corev1.VolumeProjection{DownwardAPI: &corev1.DownwardAPIProjection{Items: []corev1.DownwardAPIVolumeFile{{Mode: ptr.To[int32](-1)}}}},
			),
			want: []fault{
				required(at+"[0].serviceAccountToken.path", ""), invalid(at+"[0].serviceAccountToken.expirationSeconds", "between 600"),
				required(at+"[1].downwardAPI.items[0].path", ""), invalid(at+"[1].downwardAPI.items[0].mode", ""),
				required(at+"[1].downwardAPI.items[0]", "exactly one of fieldRef, resourceFieldRef"),
			},
		},
		{
			name: "other projections", change: projected(corev1.VolumeProjection{PodCertificate: &corev1.PodCertificateProjection{}}),
			want: []fault{forbidden(at+"[0].podCertificate", "may not be set")},
		},
	})
}
