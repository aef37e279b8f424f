package v1

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

func configMapVolume(name string) corev1.Volume {
	return corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{
		ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: ref("a")},
	}}
}

// mounted is a template with one volume, mounted at /data.
func mounted(source corev1.VolumeSource, change ...func(*corev1.VolumeMount)) func(*RevisionSpec) {
	return func(s *RevisionSpec) {
		s.Volumes = []corev1.Volume{{Name: "data", VolumeSource: source}}
		s.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "data", MountPath: "/data"}}
		for _, f := range change {
			f(&s.Containers[0].VolumeMounts[0])
		}
	}
}

// TestMountPaths covers serving 10.4-16.
func TestMountPaths(t *testing.T) {
	const at = "containers[0].volumeMounts[0].mountPath"
	var cases []templateCase
	for path, want := range map[string][]fault{
		"/data":           nil,
		"/dev/shm":        nil,
		"/tmp":            nil,
		"":                {required(at, "")},
		"data":            {invalid(at, "must be an absolute path")},
		"./data":          {invalid(at, "must be an absolute path")},
		"/":               {invalid(at, "reserved paths: /, /dev, /dev/log")},
		"/dev":            {invalid(at, "reserved")},
		"/dev/log":        {invalid(at, "reserved")},
		"//dev/./log/":    {invalid(at, "reserved")},
		"/data/../../dev": {invalid(at, "reserved")},
	} {
		cases = append(cases, templateCase{name: "10.4-16: " + path, want: want, change: mounted(configMapVolume("").VolumeSource, func(m *corev1.VolumeMount) {
			m.MountPath = path
		})})
	}
	runTemplateCases(t, cases)
}

// TestMounts covers serving 10.4-16, 10.20-3 and 10.20-4.
func TestMounts(t *testing.T) {
	configMap := configMapVolume("").VolumeSource
	const at = "containers[0].volumeMounts"
	runTemplateCases(t, []templateCase{
		{name: "10.20-4: read-only by default", change: mounted(configMap)},
		{
			name: "10.20-4: not read-only", change: mounted(configMap), tamper: container(func(c *corev1.Container) { c.VolumeMounts[0].ReadOnly = false }),
			want: []fault{invalid(at+"[0].readOnly", "must be true")},
		},
		{name: "10.20-3: subPath", change: mounted(configMap, func(m *corev1.VolumeMount) { m.SubPath = "a/b" })},
		{
			name: "10.20-3: subPath outside", change: mounted(configMap, func(m *corev1.VolumeMount) { m.SubPath = "a/../.." }),
			want: []fault{invalid(at+"[0].subPath", "must not contain '..'")},
		},
		{
			name: "10.20-3: absolute subPath", change: mounted(configMap, func(m *corev1.VolumeMount) { m.SubPath = "/a" }),
			want: []fault{invalid(at+"[0].subPath", "must be a relative path")},
		},
		{
			name: "fields of mounts",
			change: mounted(configMap, func(m *corev1.VolumeMount) {
				m.SubPathExpr, m.MountPropagation = "a", ptr.To(corev1.MountPropagationBidirectional)
				m.RecursiveReadOnly = ptr.To(corev1.RecursiveReadOnlyEnabled)
			}),
			want: []fault{
				forbidden(at+"[0].subPathExpr", "only mountPath, name, readOnly, subPath"), forbidden(at+"[0].recursiveReadOnly", ""),
				forbidden(at+"[0].mountPropagation", "'kubernetes.podspec-volumes-mount-propagation'"),
			},
		},
		{
			name: "10.4-16: no such volume", change: container(func(c *corev1.Container) {
				c.VolumeMounts = []corev1.VolumeMount{{Name: "x", MountPath: "/x"}, {MountPath: "/y"}}
			}),
			want: []fault{notFound(at + "[0].name"), required(at+"[1].name", "")},
		},
		{
			name: "one path twice",
			change: func(s *RevisionSpec) {
				mounted(configMap)(s)
				s.Containers[0].VolumeMounts = append(s.Containers[0].VolumeMounts, corev1.VolumeMount{Name: "data", MountPath: "/data/"})
			},
			want: []fault{duplicate(at + "[1].mountPath")},
		},
		{
			name: "every volume is mounted", change: func(s *RevisionSpec) { s.Volumes = []corev1.Volume{configMapVolume("a")} },
			want: []fault{invalid("volumes[0].name", "must be mounted by a container")},
		},
		{
			name: "an init container may be the one", features: func(f *Features) { f.InitContainers = true },
			change: func(s *RevisionSpec) {
				s.Volumes = []corev1.Volume{configMapVolume("a")}
				s.InitContainers = []corev1.Container{{Image: "a", VolumeMounts: []corev1.VolumeMount{{Name: "a", MountPath: "/a"}}}}
			},
		},
		{name: "emptyDir may be written to", change: mounted(corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}})},
	})
}

func TestClaims(t *testing.T) {
	claim := func(readOnly, mountReadOnly bool) func(*RevisionSpec) {
		source := corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "c", ReadOnly: readOnly}}
		return mounted(source, func(m *corev1.VolumeMount) { m.ReadOnly = mountReadOnly })
	}
	read := func(f *Features) { f.PersistentVolumeClaim = true }
	write := func(f *Features) { f.PersistentVolumeClaim, f.PersistentVolumeWrite = true, true }
	const mount = "containers[0].volumeMounts[0].readOnly"
	runTemplateCases(t, []templateCase{
		{name: "off", change: claim(true, true), want: []fault{forbidden("volumes[0].persistentVolumeClaim", "'kubernetes.podspec-persistent-volume-claim'")}},
		{name: "read", change: claim(true, true), features: read},
		{name: "write without leave", change: claim(false, false), features: read, want: []fault{
			invalid("volumes[0].persistentVolumeClaim.readOnly", "'kubernetes.podspec-persistent-volume-write'"),
		}},
		{name: "write", change: claim(false, false), features: write},
		{name: "written mount of a read-only claim", change: claim(true, false), features: write, want: []fault{invalid(mount, "claim is readOnly")}},
	})
}
