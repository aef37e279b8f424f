package v1

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/ptr"
)

// What an unset field of a revision template means.
const (
	// DefaultTimeoutSeconds bounds a request that sets no timeoutSeconds.
	DefaultTimeoutSeconds int64 = 300
	// DefaultContainerConcurrency sets no limit (serving 9.4.2-4).
	DefaultContainerConcurrency int64 = 0
	// DefaultContainerPort is the port of a serving container that names none.
	DefaultContainerPort int32 = 8080
	// DefaultContainerName names the only container; several get -0, -1 and so on appended.
	DefaultContainerName = "user-container"
	// DefaultInitContainerName names init containers likewise.
	DefaultInitContainerName = "init-container"
)

// SetDefaults fills the fields that a user left out, so that what is stored says what will run. Settings that
// say otherwise have their say before.
func (s *RevisionSpec) SetDefaults() {
	s.setRequestDefaults(DefaultSettings())
	s.setFixedDefaults()
}

// setFixedDefaults fills what no setting decides: names, ports, probes and how volumes are mounted.
func (s *RevisionSpec) setFixedDefaults() {
	s.setContainerNames()
	writable := s.writableVolumes()
	for i := range s.Containers {
		c := &s.Containers[i]
		setPortDefaults(c.Ports)
		if len(s.Containers) == 1 || len(c.Ports) > 0 {
			addReadinessProbe(c)
		}
		setProbeDefaults(c.ReadinessProbe)
		setProbeDefaults(c.LivenessProbe)
		setProbeDefaults(c.StartupProbe)
		setMountDefaults(c.VolumeMounts, writable)
	}
	for i := range s.InitContainers {
		c := &s.InitContainers[i]
		setProbeDefaults(c.ReadinessProbe)
		setProbeDefaults(c.LivenessProbe)
		setProbeDefaults(c.StartupProbe)
		setMountDefaults(c.VolumeMounts, writable)
	}
}

// KeepCreateDefaults carries over from old what SetCreateDefaults decided about service links, so that writing
// the same manifest again changes nothing.
func (s *RevisionSpec) KeepCreateDefaults(old *RevisionSpec) {
	if s.EnableServiceLinks == nil {
		s.EnableServiceLinks = old.EnableServiceLinks
	}
}

func (s *RevisionSpec) setContainerNames() {
	taken := sets.New[string]()
	for _, c := range s.Containers {
		taken.Insert(c.Name)
	}
	for _, c := range s.InitContainers {
		taken.Insert(c.Name)
	}
	nameContainers(s.Containers, DefaultContainerName, taken)
	nameContainers(s.InitContainers, DefaultInitContainerName, taken)
}

// nameContainers names the unnamed: base when there is one container, base-N when there are several or
// base is taken.
func nameContainers(containers []corev1.Container, base string, taken sets.Set[string]) {
	next := 0
	for i := range containers {
		if containers[i].Name != "" {
			continue
		}
		name := base
		for len(containers) > 1 && name == base || taken.Has(name) {
			name = fmt.Sprintf("%s-%d", base, next)
			next++
		}
		taken.Insert(name)
		containers[i].Name = name
	}
}

// writableVolumes names the volumes whose mounts may be written to; all others are mounted read-only.
func (s *RevisionSpec) writableVolumes() sets.Set[string] {
	writable := sets.New[string]()
	for _, v := range s.Volumes {
		if isWritableVolume(v.VolumeSource) {
			writable.Insert(v.Name)
		}
	}
	return writable
}

func isWritableVolume(v corev1.VolumeSource) bool {
	return v.EmptyDir != nil || v.PersistentVolumeClaim != nil || v.Ephemeral != nil
}

func setMountDefaults(mounts []corev1.VolumeMount, writable sets.Set[string]) {
	for i := range mounts {
		if !writable.Has(mounts[i].Name) {
			mounts[i].ReadOnly = true
		}
	}
}

func setPortDefaults(ports []corev1.ContainerPort) {
	for i := range ports {
		if ports[i].ContainerPort == 0 {
			ports[i].ContainerPort = DefaultContainerPort
		}
		if ports[i].Protocol == "" {
			ports[i].Protocol = corev1.ProtocolTCP
		}
	}
}

// addReadinessProbe gives a serving container that has no readiness probe an empty one, which the defaults
// then make a TCP probe of its port. A port of 0 stands for the container's.
func addReadinessProbe(c *corev1.Container) {
	if c.ReadinessProbe == nil {
		c.ReadinessProbe = &corev1.Probe{}
	}
}

// setProbeDefaults completes a probe: a TCP check unless it says otherwise, one success to pass, and the
// host's defaults where a period is given (no period asks for aggressive probing).
func setProbeDefaults(p *corev1.Probe) {
	if p == nil {
		return
	}
	if p.HTTPGet == nil && p.TCPSocket == nil && p.Exec == nil && p.GRPC == nil {
		p.TCPSocket = &corev1.TCPSocketAction{}
	}
	if p.SuccessThreshold == 0 {
		p.SuccessThreshold = 1
	}
	if p.GRPC != nil && p.GRPC.Service == nil {
		p.GRPC.Service = ptr.To("")
	}
	if p.PeriodSeconds == 0 {
		return
	}
	if p.TimeoutSeconds == 0 {
		p.TimeoutSeconds = 1
	}
	if p.FailureThreshold == 0 {
		p.FailureThreshold = 3
	}
}
