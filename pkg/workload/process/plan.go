package process

import (
	"cmp"
	"fmt"
	"os"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/routing"
	"github.com/knative-apiserver/knative-apiserver/pkg/workload"
	"github.com/knative-apiserver/knative-apiserver/pkg/workload/process/objects"
	"github.com/knative-apiserver/knative-apiserver/pkg/workload/process/spawn"
	"github.com/knative-apiserver/knative-apiserver/pkg/workload/process/volumes"
)

// Reasons of failures, as in Kubernetes and Knative.
const (
	reasonContainerMissing = "ContainerMissing"
	reasonConfigError      = "CreateContainerConfigError"
	reasonFailedCreate     = "FailedCreate"
	reasonRunError         = "RunContainerError"
	reasonUnhealthy        = "Unhealthy"
	reasonExitCode         = "ExitCode"
)

// plan describes the backends of a Revision. Immutable.
type plan struct {
	revision metav1.ObjectMeta
	// service and configuration are the names of the owners, for the runtime contract.
	service, configuration string
	serviceAccount         string
	volumes                []corev1.Volume
	// init containers run one after the other until they exit, native sidecars among them until they have started. Then all
	// containers run at once.
	init, containers []container
	h2c              bool
	// timeout bounds a request, the draining of a backend, and its termination after that.
	timeout time.Duration
}

// container is a container of a plan.
type container struct {
	*corev1.Container
	// sidecar is true for native sidecars: init containers that keep running.
	sidecar bool
	// serving is true for the container that gets PORT and receives requests.
	serving bool
	// path is the field of the container in the spec, for messages.
	path string
	user *spawn.User
}

// logName returns the name of the container in log files. The name of the serving container is empty.
func (c *container) logName() string {
	if c.serving {
		return ""
	}
	return c.Name
}

// newPlan returns the plan for a Revision, or a permanent failure.
func newPlan(revision *servingv1.Revision) (*plan, *workload.Failure) {
	spec := revision.Spec.DeepCopy()
	p := &plan{
		revision:       *revision.ObjectMeta.DeepCopy(),
		service:        revision.Labels[servingv1.ServiceLabelKey],
		configuration:  revision.Labels[servingv1.ConfigurationLabelKey],
		serviceAccount: spec.ServiceAccountName,
		volumes:        spec.Volumes,
		timeout:        time.Duration(ptr.Deref(spec.TimeoutSeconds, servingv1.DefaultTimeoutSeconds)) * time.Second,
	}
	if err := volumes.Check(p.volumes, p.fields("")); err != nil {
		return p, &workload.Failure{Resources: true, Reason: reasonConfigError, Message: err.Error()}
	}
	for i := range spec.InitContainers {
		p.init = append(p.init, container{Container: &spec.InitContainers[i], sidecar: servingv1.IsNativeSidecar(&spec.InitContainers[i]), path: fmt.Sprintf("spec.template.spec.initContainers[%d]", i)})
	}
	serving := servingContainer(spec.Containers)
	for i := range spec.Containers {
		p.containers = append(p.containers, container{
			Container: &spec.Containers[i], serving: i == serving, path: fmt.Sprintf("spec.template.spec.containers[%d]", i),
		})
	}
	if len(p.containers) == 0 {
		return p, missing("spec.template.spec.containers[0]")
	}
	for _, c := range p.containers[serving].Ports {
		p.h2c = c.Name == string(routing.H2C)
	}
	for _, all := range [][]container{p.init, p.containers} {
		for i := range all {
			if failure := p.complete(&all[i], spec.SecurityContext); failure != nil {
				return p, failure
			}
		}
	}
	return p, nil
}

// servingContainer returns the index of the container with a port. The port of a single container may be omitted.
func servingContainer(containers []corev1.Container) int {
	for i := range containers {
		if len(containers[i].Ports) > 0 {
			return i
		}
	}
	return 0
}

func missing(path string) *workload.Failure {
	return &workload.Failure{Reason: reasonContainerMissing, Message: fmt.Sprintf(
		"Standalone runs the command and args of a container as a process of this machine, not its image: set %s.command.", path)}
}

// complete sets the user of a container, and returns a failure if the container cannot run here.
func (p *plan) complete(c *container, pod *corev1.PodSecurityContext) *workload.Failure {
	if len(c.Command) == 0 {
		return missing(c.path)
	}
	err := volumes.CheckMounts(c.VolumeMounts, c.path)
	if err == nil {
		_, err = p.variables(c, "", "", nil)
	}
	if err != nil {
		return &workload.Failure{Resources: true, Reason: reasonConfigError, Message: err.Error()}
	}
	if pod == nil {
		pod = &corev1.PodSecurityContext{}
	}
	own := ptr.Deref(c.SecurityContext, corev1.SecurityContext{})
	uid, gid := int64(os.Getuid()), int64(os.Getgid())
	wanted := spawn.User{UID: uint32(ptr.Deref(own.RunAsUser, ptr.Deref(pod.RunAsUser, uid)))}
	// A user without a group gets the group of the same number, never the server's privileges.
	group := gid
	if int64(wanted.UID) != uid {
		group = int64(wanted.UID)
	}
	wanted.GID = uint32(ptr.Deref(own.RunAsGroup, ptr.Deref(pod.RunAsGroup, group)))
	if int64(wanted.UID) == uid && int64(wanted.GID) == gid {
		return nil
	}
	if uid != 0 {
		return &workload.Failure{Resources: true, Reason: reasonConfigError, Message: fmt.Sprintf(
			"The server runs as user %d and cannot start a process as user %d, group %d: remove runAsUser and runAsGroup from %s.securityContext and spec.template.spec.securityContext.",
			uid, wanted.UID, wanted.GID, c.path)}
	}
	c.user = &wanted
	return nil
}

// port returns the TCP port for a probe. The serving container listens on PORT instead of its containerPort, so probes of
// that port use PORT. Other ports are unchanged.
func (c *container) port(serving int, probed string) (int, error) {
	if c.serving && (probed == "" || probed == "0" || c.isOwnPort(probed)) {
		return serving, nil
	}
	port, err := strconv.Atoi(probed)
	if err != nil {
		return 0, fmt.Errorf("the port %q of a probe of %s is not a number", probed, c.path)
	}
	return port, nil
}

// isOwnPort reports whether a probe's port, by number or name, is the port for requests of a serving container.
func (c *container) isOwnPort(probed string) bool {
	if len(c.Ports) == 0 {
		return probed == strconv.Itoa(int(servingv1.DefaultContainerPort))
	}
	own := &c.Ports[0]
	return probed == own.Name || probed == strconv.Itoa(int(cmp.Or(own.ContainerPort, servingv1.DefaultContainerPort)))
}

// references returns the objects that a plan refers to.
func (p *plan) references() []objects.Reference {
	var all []objects.Reference
	add := func(kind objects.Kind, name string) {
		if r := (objects.Reference{Kind: kind, Namespace: p.revision.Namespace, Name: name}); name != "" && !slices.Contains(all, r) {
			all = append(all, r)
		}
	}
	add(objects.ServiceAccount, p.serviceAccount)
	for i := range p.volumes {
		volumes.References(&p.volumes[i], add)
	}
	for _, containers := range [][]container{p.init, p.containers} {
		for _, c := range containers {
			for _, from := range c.EnvFrom {
				if from.ConfigMapRef != nil {
					add(objects.ConfigMap, from.ConfigMapRef.Name)
				}
				if from.SecretRef != nil {
					add(objects.Secret, from.SecretRef.Name)
				}
			}
			for _, variable := range c.Env {
				from := ptr.Deref(variable.ValueFrom, corev1.EnvVarSource{})
				if from.ConfigMapKeyRef != nil {
					add(objects.ConfigMap, from.ConfigMapKeyRef.Name)
				}
				if from.SecretKeyRef != nil {
					add(objects.Secret, from.SecretKeyRef.Name)
				}
			}
		}
	}
	return all
}
