package v1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
)

// Default limits.
const (
	// DefaultMaxTimeoutSeconds bounds timeoutSeconds.
	DefaultMaxTimeoutSeconds int64 = 600
	// DefaultMaxContainerConcurrency bounds containerConcurrency.
	DefaultMaxContainerConcurrency int64 = 1000
)

// Settings are the operator's settings that affect defaulting and validation. Keys belong to config-defaults unless another
// ConfigMap is named.
//
// +k8s:deepcopy-gen=false
// +k8s:openapi-gen=false
type Settings struct {
	// Features are the optional parts of a Pod that templates may set (config-features).
	Features Features

	// TimeoutSeconds is the default of timeoutSeconds in templates, and MaxTimeoutSeconds its maximum, in seconds
	// (revision-timeout-seconds, max-revision-timeout-seconds).
	TimeoutSeconds, MaxTimeoutSeconds int64
	// ResponseStartTimeoutSeconds and IdleTimeoutSeconds are the defaults of these fields in templates, in seconds; 0 means
	// no default (revision-response-start-timeout-seconds, revision-idle-timeout-seconds).
	ResponseStartTimeoutSeconds, IdleTimeoutSeconds int64

	// ContainerConcurrency is the default of containerConcurrency in templates, and MaxContainerConcurrency its maximum
	// (container-concurrency, container-concurrency-max-limit).
	ContainerConcurrency, MaxContainerConcurrency int64
	// AllowZeroContainerConcurrency allows templates without a limit (allow-container-concurrency-zero).
	AllowZeroContainerConcurrency bool

	// Requests and Limits are the default resources of containers (revision-cpu-request, revision-memory-limit and so on).
	// They must not be modified.
	Requests, Limits corev1.ResourceList
	// EnableServiceLinks is the default of enableServiceLinks in new templates; nil means the host's default
	// (enable-service-links).
	EnableServiceLinks *bool

	// AllowZeroInitialScale allows a Revision to start without backends (allow-zero-initial-scale of
	// config-autoscaler).
	AllowZeroInitialScale bool
	// MaxScaleLimit is the maximum of max-scale in templates; 0 means unlimited (max-scale-limit of
	// config-autoscaler).
	MaxScaleLimit int32

	// ExternalDomainTLS is true if public host names get certificates (external-domain-tls of config-network). Otherwise annotations about them
	// have no effect.
	ExternalDomainTLS bool
}

// DefaultSettings returns the settings without a ConfigMap.
func DefaultSettings() Settings {
	return Settings{
		Features:                      DefaultFeatures(),
		TimeoutSeconds:                DefaultTimeoutSeconds,
		MaxTimeoutSeconds:             DefaultMaxTimeoutSeconds,
		ContainerConcurrency:          DefaultContainerConcurrency,
		MaxContainerConcurrency:       DefaultMaxContainerConcurrency,
		AllowZeroContainerConcurrency: true,
		EnableServiceLinks:            ptr.To(false),
	}
}

// forObject returns the settings for the defaults of an object's template. An object that a Service or a Configuration controls has
// a copy of its owner's template, which already has its defaults: later settings must not make the copy differ from the original.
func (st Settings) forObject(meta *metav1.ObjectMeta) Settings {
	owner := metav1.GetControllerOfNoCopy(meta)
	if owner == nil || schema.FromAPIVersionAndKind(owner.APIVersion, owner.Kind).Group != GroupName {
		return st
	}
	st = DefaultSettings()
	st.EnableServiceLinks = nil
	return st
}
