package v1

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// The defaults of a template with only an image.
func TestDefaultsOfAPlainTemplate(t *testing.T) {
	s := newService()
	SetDefaults_Service(s)
	want := RevisionSpec{
		PodSpec: corev1.PodSpec{Containers: []corev1.Container{{
			Name:  "user-container",
			Image: "registry.example.com/hello:v1",
			ReadinessProbe: &corev1.Probe{
				ProbeHandler:     corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{}},
				SuccessThreshold: 1,
			},
		}}},
		ContainerConcurrency: ptr.To[int64](0),
		TimeoutSeconds:       ptr.To[int64](300),
	}
	if diff := cmp.Diff(want, s.Spec.Template.Spec); diff != "" {
		t.Errorf("service (-want +got):\n%s", diff)
	}
	c := newConfiguration()
	SetDefaults_Configuration(c)
	if diff := cmp.Diff(want, c.Spec.Template.Spec); diff != "" {
		t.Errorf("configuration (-want +got):\n%s", diff)
	}
}

// JSON has whole seconds; a more precise time in memory would make a template differ from its stored form.
func TestTimesOfATemplateHaveWholeSeconds(t *testing.T) {
	fine := time.Date(2026, 1, 1, 0, 0, 0, 5e8, time.UTC)
	c := newConfiguration()
	c.Spec.Template.CreationTimestamp = metav1.NewTime(fine)
	c.Spec.Template.DeletionTimestamp = ptr.To(metav1.NewTime(fine))
	SetDefaults_Configuration(c)
	for _, got := range []metav1.Time{c.Spec.Template.CreationTimestamp, *c.Spec.Template.DeletionTimestamp} {
		if want := fine.Truncate(time.Second); !got.Time.Equal(want) {
			t.Errorf("got %v, want %v", got, want)
		}
	}
}

func TestDefaultTraffic(t *testing.T) {
	s, r := newService(), newRoute()
	SetDefaults_Service(s)
	SetDefaults_Route(r)
	// serving 9.1.2-2
	if diff := cmp.Diff([]TrafficTarget{{LatestRevision: ptr.To(true), Percent: percent(100)}}, s.Spec.Traffic); diff != "" {
		t.Errorf("service (-want +got):\n%s", diff)
	}
	// serving 9.3.2-1
	if diff := cmp.Diff([]TrafficTarget{{ConfigurationName: "hello", LatestRevision: ptr.To(true), Percent: percent(100)}}, r.Spec.Traffic); diff != "" {
		t.Errorf("route (-want +got):\n%s", diff)
	}
	// serving 10.2-3, 10.2-4
	s.Spec.Traffic = []TrafficTarget{{RevisionName: "hello-1"}, {}, {LatestRevision: ptr.To(false)}}
	SetDefaults_Service(s)
	want := []TrafficTarget{
		{RevisionName: "hello-1", LatestRevision: ptr.To(false)}, {LatestRevision: ptr.To(true)}, {LatestRevision: ptr.To(false)},
	}
	if diff := cmp.Diff(want, s.Spec.Traffic); diff != "" {
		t.Errorf("latestRevision (-want +got):\n%s", diff)
	}
}

func TestDefaultContainerNames(t *testing.T) {
	names := func(containers ...corev1.Container) []string {
		s := RevisionSpec{PodSpec: corev1.PodSpec{Containers: containers, InitContainers: []corev1.Container{{}}}}
		s.SetDefaults()
		var names []string
		for _, c := range append(s.Containers, s.InitContainers...) {
			names = append(names, c.Name)
		}
		return names
	}
	for _, tc := range []struct{ got, want []string }{
		{names(corev1.Container{}), []string{"user-container", "init-container"}},
		{names(corev1.Container{Name: "mine"}), []string{"mine", "init-container"}},
		{names(corev1.Container{}, corev1.Container{}), []string{"user-container-0", "user-container-1", "init-container"}},
		{names(corev1.Container{Name: "user-container-0"}, corev1.Container{}), []string{"user-container-0", "user-container-1", "init-container"}},
		{names(corev1.Container{Name: "init-container"}), []string{"init-container", "init-container-0"}},
	} {
		if diff := cmp.Diff(tc.want, tc.got); diff != "" {
			t.Errorf("names (-want +got):\n%s", diff)
		}
	}
}

func TestDefaultProbes(t *testing.T) {
	for _, tc := range []struct {
		name     string
		in, want corev1.Probe
	}{
		{
			name: "with a period, the host's defaults",
			in:   corev1.Probe{PeriodSeconds: 10},
			want: corev1.Probe{
				ProbeHandler:  corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{}},
				PeriodSeconds: 10, SuccessThreshold: 1, TimeoutSeconds: 1, FailureThreshold: 3,
			},
		},
		{
			name: "set values are kept",
			in: corev1.Probe{
				ProbeHandler:  corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"a"}}},
				PeriodSeconds: 1, SuccessThreshold: 2, TimeoutSeconds: 3, FailureThreshold: 4,
			},
			want: corev1.Probe{
				ProbeHandler:  corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"a"}}},
				PeriodSeconds: 1, SuccessThreshold: 2, TimeoutSeconds: 3, FailureThreshold: 4,
			},
		},
		{
			name: "without a period, aggressive probing",
			in:   corev1.Probe{ProbeHandler: corev1.ProbeHandler{GRPC: &corev1.GRPCAction{}}},
			want: corev1.Probe{ProbeHandler: corev1.ProbeHandler{GRPC: &corev1.GRPCAction{Service: ptr.To("")}}, SuccessThreshold: 1},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := RevisionSpec{PodSpec: corev1.PodSpec{Containers: []corev1.Container{{
				ReadinessProbe: tc.in.DeepCopy(), LivenessProbe: tc.in.DeepCopy(), StartupProbe: tc.in.DeepCopy(),
			}}}}
			s.SetDefaults()
			c := s.Containers[0]
			for _, got := range []*corev1.Probe{c.ReadinessProbe, c.LivenessProbe, c.StartupProbe} {
				if diff := cmp.Diff(&tc.want, got); diff != "" {
					t.Errorf("probe (-want +got):\n%s", diff)
				}
			}
		})
	}
}

// Only the serving container gets a default probe; a sidecar's own probe is completed.
func TestDefaultProbesOfSidecars(t *testing.T) {
	s := RevisionSpec{PodSpec: corev1.PodSpec{
		Containers:     []corev1.Container{{Ports: []corev1.ContainerPort{{}}}, {}, {ReadinessProbe: &corev1.Probe{}}},
		InitContainers: []corev1.Container{{}},
	}}
	s.SetDefaults()
	if s.Containers[0].ReadinessProbe == nil {
		t.Error("serving container without probe")
	}
	if s.Containers[1].ReadinessProbe != nil || s.InitContainers[0].ReadinessProbe != nil {
		t.Error("probe on a container that does not serve")
	}
	if got := s.Containers[2].ReadinessProbe.SuccessThreshold; got != 1 {
		t.Errorf("successThreshold %d of a sidecar's probe", got)
	}
	if diff := cmp.Diff([]corev1.ContainerPort{{ContainerPort: 8080, Protocol: corev1.ProtocolTCP}}, s.Containers[0].Ports); diff != "" {
		t.Errorf("port (-want +got):\n%s", diff)
	}
}

// serving 10.20-4
func TestDefaultMounts(t *testing.T) {
	mounts := []corev1.VolumeMount{{Name: "config"}, {Name: "scratch"}, {Name: "claim"}, {Name: "own"}, {Name: "unknown"}}
	s := RevisionSpec{PodSpec: corev1.PodSpec{
		Volumes: []corev1.Volume{
			configMapVolume("config"),
			{Name: "scratch", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
			{Name: "claim", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{}}},
			{Name: "own", VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}},
		},
		Containers:     []corev1.Container{{VolumeMounts: mounts}},
		InitContainers: []corev1.Container{{VolumeMounts: append([]corev1.VolumeMount(nil), mounts...)}},
	}}
	s.SetDefaults()
	for _, c := range []corev1.Container{s.Containers[0], s.InitContainers[0]} {
		for i, want := range []bool{true, false, false, false, true} {
			if got := c.VolumeMounts[i]; got.ReadOnly != want {
				t.Errorf("readOnly of %s is %v", got.Name, got.ReadOnly)
			}
		}
	}
}

func TestCreateDefaults(t *testing.T) {
	unset, set := &RevisionSpec{}, &RevisionSpec{PodSpec: corev1.PodSpec{EnableServiceLinks: ptr.To(true)}}
	unset.SetCreateDefaults(&metav1.ObjectMeta{}, DefaultSettings())
	set.SetCreateDefaults(&metav1.ObjectMeta{}, DefaultSettings())
	if got := unset.EnableServiceLinks; got == nil || *got {
		t.Errorf("enableServiceLinks of a new template is %v", got)
	}
	if !*set.EnableServiceLinks {
		t.Error("enableServiceLinks was overruled")
	}
	reapplied := &RevisionSpec{}
	reapplied.KeepCreateDefaults(set)
	if got := reapplied.EnableServiceLinks; got == nil || !*got {
		t.Errorf("enableServiceLinks of a reapplied template is %v", got)
	}
}
