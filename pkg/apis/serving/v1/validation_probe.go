package v1

import (
	"fmt"
	"math"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// probeKind is the name of the container field that contains a probe.
//
// +k8s:deepcopy-gen=false
// +k8s:openapi-gen=false
type probeKind string

const (
	livenessProbe  probeKind = "livenessProbe"
	readinessProbe probeKind = "readinessProbe"
	startupProbe   probeKind = "startupProbe"
)

var (
	// probeHandlerMask allows the types of probes.
	probeHandlerMask = fieldMask{allowed: []string{"exec", "grpc", "httpGet", "tcpSocket"}}
	probeMask        = fieldMask{allowed: slices.Concat(probeHandlerMask.allowed, []string{
		"failureThreshold", "initialDelaySeconds", "periodSeconds", "successThreshold", "terminationGracePeriodSeconds", "timeoutSeconds",
	})}
	execMask       = fieldMask{allowed: []string{"command"}}
	httpGetMask    = fieldMask{allowed: []string{"host", "httpHeaders", "path", "port", "scheme"}}
	httpHeaderMask = fieldMask{allowed: []string{"name", "value"}}
	tcpSocketMask  = fieldMask{allowed: []string{"host", "port"}}
	grpcMask       = fieldMask{allowed: []string{"port", "service"}}
)

// probeValidator validates one probe of a container.
//
// +k8s:deepcopy-gen=false
// +k8s:openapi-gen=false
type probeValidator struct {
	kind     probeKind
	probe    *corev1.Probe
	features Features
	// role and port are the role and the port of the container.
	role containerRole
	port corev1.ContainerPort
}

// validate returns all errors of a probe (serving 10.9).
func (v probeValidator) validate(path *field.Path) field.ErrorList {
	p := v.probe
	errs := probeMask.validate(p, v.features, path)
	errs = append(errs, validateOneOf(probeHandlerMask, &p.ProbeHandler, v.features, path)...)
	errs = append(errs, v.validateNumbers(path)...)
	errs = append(errs, v.validateGracePeriod(path.Child("terminationGracePeriodSeconds"))...)
	if p.Exec != nil {
		errs = append(errs, execMask.validate(p.Exec, v.features, path.Child("exec"))...)
		if len(p.Exec.Command) == 0 {
			errs = append(errs, field.Required(path.Child("exec", "command"), ""))
		}
	}
	if p.HTTPGet != nil {
		errs = append(errs, v.validateHTTPGet(p.HTTPGet, path.Child("httpGet"))...)
	}
	if p.TCPSocket != nil {
		at := path.Child("tcpSocket")
		errs = append(errs, tcpSocketMask.validate(p.TCPSocket, v.features, at)...)
		errs = append(errs, v.validatePort(p.TCPSocket.Port, at.Child("port"))...)
		errs = append(errs, validateHost(p.TCPSocket.Host, at.Child("host"))...)
	}
	if p.GRPC != nil {
		at := path.Child("grpc")
		errs = append(errs, grpcMask.validate(p.GRPC, v.features, at)...)
		errs = append(errs, v.validatePort(intstr.FromInt32(p.GRPC.Port), at.Child("port"))...)
	}
	return errs
}

// validateNumbers validates the intervals and thresholds of a probe. A readiness probe without a period is repeated until it
// succeeds, so it has neither timeout nor failure threshold. The kubelet requires a success threshold of 1 for liveness and startup.
func (v probeValidator) validateNumbers(path *field.Path) field.ErrorList {
	p := v.probe
	errs := validateNotNegative(p.InitialDelaySeconds, path.Child("initialDelaySeconds"))
	errs = append(errs, validateNotNegative(p.PeriodSeconds, path.Child("periodSeconds"))...)
	success := path.Child("successThreshold")
	if v.kind != readinessProbe {
		errs = append(errs, validateNotNegative(p.TimeoutSeconds, path.Child("timeoutSeconds"))...)
		errs = append(errs, validateNotNegative(p.FailureThreshold, path.Child("failureThreshold"))...)
		if p.SuccessThreshold != 1 {
			errs = append(errs, field.Invalid(success, p.SuccessThreshold, "must be 1"))
		}
		return errs
	}
	errs = append(errs, validateRange(int64(p.SuccessThreshold), 1, math.MaxInt32, success)...)
	for _, number := range []struct {
		name  string
		value int32
	}{
		{"timeoutSeconds", p.TimeoutSeconds},
		{"failureThreshold", p.FailureThreshold},
	} {
		switch {
		case p.PeriodSeconds != 0:
			errs = append(errs, validateRange(int64(number.value), 1, math.MaxInt32, path.Child(number.name))...)
		case number.value != 0:
			errs = append(errs, field.Forbidden(path.Child(number.name),
				"may not be set while periodSeconds is 0, which asks for aggressive probing"))
		}
	}
	return errs
}

// validateGracePeriod validates the time for a container to exit after its probe failed. A failed readiness probe does not end a
// container.
func (v probeValidator) validateGracePeriod(path *field.Path) field.ErrorList {
	period := v.probe.TerminationGracePeriodSeconds
	switch {
	case period == nil:
		return nil
	case v.kind == readinessProbe:
		return field.ErrorList{field.Forbidden(path, "may not be set in a readiness probe, which ends no container")}
	default:
		return validateRange(*period, 1, math.MaxInt32, path)
	}
}

func validateNotNegative(n int32, path *field.Path) field.ErrorList {
	return validateRange(int64(n), 0, math.MaxInt32, path)
}

// validateHTTPGet validates an HTTP probe (serving 10.12, 10.14).
func (v probeValidator) validateHTTPGet(get *corev1.HTTPGetAction, path *field.Path) field.ErrorList {
	errs := httpGetMask.validate(get, v.features, path)
	errs = append(errs, v.validatePort(get.Port, path.Child("port"))...)
	errs = append(errs, validateHost(get.Host, path.Child("host"))...)
	supported := []corev1.URIScheme{corev1.URISchemeHTTP, corev1.URISchemeHTTPS}
	if get.Scheme != "" && !slices.Contains(supported, get.Scheme) {
		errs = append(errs, field.NotSupported(path.Child("scheme"), get.Scheme, supported))
	}
	for i := range get.HTTPHeaders {
		header, at := &get.HTTPHeaders[i], path.Child("httpHeaders").Index(i)
		errs = append(errs, httpHeaderMask.validate(header, v.features, at)...)
		if header.Name == "" {
			errs = append(errs, field.Required(at.Child("name"), ""))
			continue
		}
		for _, msg := range validation.IsHTTPHeaderName(header.Name) {
			errs = append(errs, field.Invalid(at.Child("name"), header.Name, msg))
		}
	}
	return errs
}

// validatePort validates the probed port. A serving container may omit its own port; health may have a separate port without a name,
// because a container declares only the port of its requests. Other containers declare no ports.
func (v probeValidator) validatePort(port intstr.IntOrString, path *field.Path) field.ErrorList {
	unset := port.String() == "0" || port.String() == ""
	named := port.Type == intstr.String
	switch v.role {
	case roleServing:
		switch {
		case unset, named && port.StrVal == v.port.Name:
			return nil
		case named && v.port.Name == "":
			return field.ErrorList{field.Invalid(path, port.StrVal, "must be a number, because the container's port has no name")}
		case named:
			return field.ErrorList{field.Invalid(path, port.StrVal, fmt.Sprintf("must be a number or '%s', the name of the container's port", v.port.Name))}
		default:
			return validateRange(int64(port.IntVal), 1, 65535, path)
		}
	case roleSidecar, roleNativeSidecar:
		switch {
		case unset:
			return field.ErrorList{field.Required(path, "must be set in a container without a port")}
		case named:
			return field.ErrorList{field.Invalid(path, port.StrVal, "must be a number in a container without a port")}
		default:
			return validateRange(int64(port.IntVal), 1, 65535, path)
		}
	default:
		// The missing port of all containers is reported elsewhere.
		return nil
	}
}

// validateHost validates a host name or address to probe instead of the Pod's own (serving 10.12-1, 10.13-1).
func validateHost(host string, path *field.Path) field.ErrorList {
	if host == "" || len(validation.IsValidIP(path, host)) == 0 {
		return nil
	}
	if len(validation.IsDNS1123SubdomainWithUnderscore(host)) == 0 {
		return nil
	}
	return field.ErrorList{field.Invalid(path, host, "must be a host name in lower case or an IP address")}
}
