package v1

import (
	"fmt"
	"slices"

	"github.com/google/go-containerregistry/pkg/name"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// containerRole is the role of a container in a Revision.
//
// +k8s:deepcopy-gen=false
// +k8s:openapi-gen=false
type containerRole int

const (
	// roleServing receives the requests: the only container, or the one with a port.
	roleServing containerRole = iota
	// roleSidecar runs beside the serving container.
	roleSidecar
	// roleInit runs before the others.
	roleInit
	// roleNativeSidecar starts in the order of the init containers, and runs until the other containers have exited.
	roleNativeSidecar
	// roleUnknown is the role of several containers without any port: any of them may be intended to serve.
	roleUnknown
)

// containerMask allows the fields in serving 10.4. It deliberately omits lifecycle, stdin, stdinOnce, tty and volumeDevices.
var containerMask = fieldMask{allowed: []string{
	"args", "command", "env", "envFrom", "image", "imagePullPolicy", "livenessProbe", "name", "ports",
	"readinessProbe", "resources", "securityContext", "startupProbe", "terminationMessagePath",
	"terminationMessagePolicy", "volumeMounts", "workingDir",
}}

// sidecarMask gates the probes, which add traffic to a port without requests.
var sidecarMask = fieldMask{
	allowed: without(containerMask.allowed, "livenessProbe", "readinessProbe", "startupProbe"),
	gated: map[string]string{
		"livenessProbe":  featureMultiContainerProbing,
		"readinessProbe": featureMultiContainerProbing,
		"startupProbe":   featureMultiContainerProbing,
	},
}

// initContainerMask has neither probes nor ports: an init container exits before the Revision serves.
var initContainerMask = fieldMask{
	allowed: without(containerMask.allowed, "livenessProbe", "readinessProbe", "startupProbe", "ports"),
	gated:   map[string]string{"restartPolicy": featureInitContainersRestartPolicy},
}

// nativeSidecarMask allows probes, because the containers after a native sidecar wait until it has started.
var nativeSidecarMask = fieldMask{allowed: without(containerMask.allowed, "ports"), gated: initContainerMask.gated}

var containerPortMask = fieldMask{allowed: []string{"containerPort", "name", "protocol"}}

func without(names []string, dropped ...string) []string {
	return slices.DeleteFunc(slices.Clone(names), func(name string) bool { return slices.Contains(dropped, name) })
}

func (r containerRole) mask() fieldMask {
	switch r {
	case roleSidecar:
		return sidecarMask
	case roleInit:
		return initContainerMask
	case roleNativeSidecar:
		return nativeSidecarMask
	default:
		return containerMask
	}
}

// containerValidator checks one container of a Pod.
//
// +k8s:deepcopy-gen=false
// +k8s:openapi-gen=false
type containerValidator struct {
	role     containerRole
	features Features
	volumes  map[string]*corev1.Volume
}

// validate returns all errors of a container (serving 10.4). names contains the names of the previous containers, and it adds the
// container's.
func (v containerValidator) validate(c *corev1.Container, names sets.Set[string], path *field.Path) field.ErrorList {
	mask := v.role.mask()
	errs := mask.validate(c, v.features, path)
	errs = append(errs, validateContainerName(c.Name, names, path.Child("name"))...)
	errs = append(errs, validateImage(c.Image, path.Child("image"))...)
	errs = append(errs, validatePullPolicy(c.ImagePullPolicy, path.Child("imagePullPolicy"))...)
	errs = append(errs, validateMessagePolicy(c.TerminationMessagePolicy, path.Child("terminationMessagePolicy"))...)
	errs = append(errs, validateEnv(c.Env, v.role, v.features, path.Child("env"))...)
	errs = append(errs, validateEnvFrom(c.EnvFrom, v.features, path.Child("envFrom"))...)
	errs = append(errs, validateResources(&c.Resources, v.features, path.Child("resources"))...)
	errs = append(errs, validateSecurityContext(c.SecurityContext, v.features, path.Child("securityContext"))...)
	errs = append(errs, validateMounts(c.VolumeMounts, v.volumes, v.features, path.Child("volumeMounts"))...)
	if policy := c.RestartPolicy; policy != nil && v.role == roleInit && mask.permits("restartPolicy", v.features) {
		errs = append(errs, field.NotSupported(path.Child("restartPolicy"), *policy, []corev1.ContainerRestartPolicy{corev1.ContainerRestartPolicyAlways}))
	}
	if mask.permits("ports", v.features) {
		errs = append(errs, validatePorts(c.Ports, v.features, path.Child("ports"))...)
	}
	for _, probe := range []probeValidator{
		{kind: livenessProbe, probe: c.LivenessProbe},
		{kind: readinessProbe, probe: c.ReadinessProbe},
		{kind: startupProbe, probe: c.StartupProbe},
	} {
		if probe.probe != nil && mask.permits(string(probe.kind), v.features) {
			probe.features, probe.role, probe.port = v.features, v.role, portOf(c)
			errs = append(errs, probe.validate(path.Child(string(probe.kind)))...)
		}
	}
	return errs
}

// portOf returns the port at which a serving container receives requests.
func portOf(c *corev1.Container) corev1.ContainerPort {
	if len(c.Ports) > 0 {
		return c.Ports[0]
	}
	return corev1.ContainerPort{ContainerPort: DefaultContainerPort}
}

func validateContainerName(name string, names sets.Set[string], path *field.Path) field.ErrorList {
	if name == "" {
		return field.ErrorList{field.Required(path, "")}
	}
	var errs field.ErrorList
	for _, msg := range validation.IsDNS1123Label(name) {
		errs = append(errs, field.Invalid(path, name, msg))
	}
	if name == reservedContainerName {
		errs = append(errs, field.Invalid(path, name, fmt.Sprintf("must not be '%s', which is reserved", reservedContainerName)))
	}
	if names.Has(name) {
		errs = append(errs, field.Duplicate(path, name))
	}
	names.Insert(name)
	return errs
}

// validateImage checks that an image reference can be parsed (serving 10.4-5).
func validateImage(image string, path *field.Path) field.ErrorList {
	if image == "" {
		return field.ErrorList{field.Required(path, "")}
	}
	if _, err := name.ParseReference(image, name.WeakValidation); err != nil {
		return field.ErrorList{field.Invalid(path, image, "must be an image reference such as 'registry.example.com/app:v1': "+err.Error())}
	}
	return nil
}

func validatePullPolicy(policy corev1.PullPolicy, path *field.Path) field.ErrorList {
	supported := []corev1.PullPolicy{corev1.PullAlways, corev1.PullIfNotPresent, corev1.PullNever}
	if policy == "" || slices.Contains(supported, policy) {
		return nil
	}
	return field.ErrorList{field.NotSupported(path, policy, supported)}
}

func validateMessagePolicy(policy corev1.TerminationMessagePolicy, path *field.Path) field.ErrorList {
	supported := []corev1.TerminationMessagePolicy{corev1.TerminationMessageFallbackToLogsOnError, corev1.TerminationMessageReadFile}
	if policy == "" || slices.Contains(supported, policy) {
		return nil
	}
	return field.ErrorList{field.NotSupported(path, policy, supported)}
}

// reservedPorts returns the ports of Knative's own container in a Revision's Pods, so that a Revision that runs here also runs with
// Knative.
func reservedPorts() []int32 {
	return []int32{8008, 8012, 8013, 8022, 9090, 9091}
}

// validatePorts validates the port at which a container receives requests (serving 10.4-9, 10.15).
func validatePorts(ports []corev1.ContainerPort, features Features, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if len(ports) > 1 {
		errs = append(errs, field.TooMany(path, len(ports), 1))
	}
	for i := range ports {
		port, at := &ports[i], path.Index(i)
		errs = append(errs, containerPortMask.validate(port, features, at)...)
		if slices.Contains(reservedPorts(), port.ContainerPort) {
			errs = append(errs, field.Invalid(at.Child("containerPort"), port.ContainerPort,
				fmt.Sprintf("must not be one of the reserved ports %v", reservedPorts())))
		} else {
			errs = append(errs, validateRange(int64(port.ContainerPort), 1, 65535, at.Child("containerPort"))...)
		}
		if port.Protocol != "" && port.Protocol != corev1.ProtocolTCP {
			errs = append(errs, field.NotSupported(at.Child("protocol"), port.Protocol, []corev1.Protocol{corev1.ProtocolTCP}))
		}
		if !slices.Contains([]string{"", portNameHTTP1, portNameH2C}, port.Name) {
			errs = append(errs, field.NotSupported(at.Child("name"), port.Name, []string{portNameH2C, portNameHTTP1}))
		}
	}
	return errs
}

// Names of a port, which determine the container's protocol (serving 10.15-1).
const (
	portNameHTTP1 = "http1"
	portNameH2C   = "h2c"
)
