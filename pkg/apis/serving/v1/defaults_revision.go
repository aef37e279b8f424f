package v1

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/ptr"
)

// Defaults of a revision template.
const (
	// DefaultTimeoutSeconds is the default of timeoutSeconds.
	DefaultTimeoutSeconds int64 = 300
	// DefaultContainerConcurrency means no limit (serving 9.4.2-4).
	DefaultContainerConcurrency int64 = 0
	// DefaultContainerPort is the default port of a serving container.
	DefaultContainerPort int32 = 8080
	// DefaultContainerName is the name of the only unnamed container; several have a suffix -0, -1 and so on.
	DefaultContainerName = "user-container"
	// DefaultInitContainerName is the corresponding name of init containers.
	DefaultInitContainerName = "init-container"
)

// SetDefaults sets the fields that a user omitted, so that the stored spec describes the containers that will run. Defaults from
// settings must be set before.
func (s *RevisionSpec) SetDefaults() {
	s.setRequestDefaults(DefaultSettings())
	s.setFixedDefaults()
}

// setFixedDefaults sets the defaults that do not depend on settings: names, ports, probes and the access to volumes.
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

// KeepCreateDefaults copies the decision of SetCreateDefaults about service links from old, so that applying the same manifest
// again changes nothing.
func (s *RevisionSpec) KeepCreateDefaults(old *RevisionSpec) {
	if s.EnableServiceLinks == nil {
		s.EnableServiceLinks = old.EnableServiceLinks
	}
}

func (s *RevisionSpec) setContainerNames() {
	used := sets.New[string]()
	for _, c := range s.Containers {
		used.Insert(c.Name)
	}
	for _, c := range s.InitContainers {
		used.Insert(c.Name)
	}
	nameContainers(s.Containers, DefaultContainerName, used)
	nameContainers(s.InitContainers, DefaultInitContainerName, used)
}

// nameContainers names unnamed containers: base if there is one container, base-N if there are several or base is in use.
func nameContainers(containers []corev1.Container, base string, used sets.Set[string]) {
	next := 0
	for i := range containers {
		if containers[i].Name != "" {
			continue
		}
		name := base
		for len(containers) > 1 && name == base || used.Has(name) {
			name = fmt.Sprintf("%s-%d", base, next)
			next++
		}
		used.Insert(name)
		containers[i].Name = name
	}
}

// writableVolumes returns the names of the volumes that may be mounted writable; all others are mounted read-only.
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

// addReadinessProbe adds an empty readiness probe to a serving container without one. The defaults make it a TCP probe of the
// container's port. Port 0 means the container's port.
func addReadinessProbe(c *corev1.Container) {
	if c.ReadinessProbe == nil {
		c.ReadinessProbe = &corev1.Probe{}
	}
}

// setProbeDefaults completes a probe: the default is a TCP check, one success to pass, and, if a period is set, the host's defaults
// (no period means aggressive probing).
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
