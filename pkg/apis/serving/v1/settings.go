package v1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
)

// Limits where the operator sets no others.
const (
	// DefaultMaxTimeoutSeconds bounds timeoutSeconds.
	DefaultMaxTimeoutSeconds int64 = 600
	// DefaultMaxContainerConcurrency bounds containerConcurrency.
	DefaultMaxContainerConcurrency int64 = 1000
)

// Settings are the operator's choices that defaulting and validation depend on. Keys are those of
// config-defaults unless another ConfigMap is named.
//
// +k8s:deepcopy-gen=false
// +k8s:openapi-gen=false
type Settings struct {
	// Features says which gated parts of a Pod templates may set (config-features).
	Features Features

	// TimeoutSeconds is the timeoutSeconds of templates that set none, and MaxTimeoutSeconds the greatest that
	// they may set, in seconds (revision-timeout-seconds, max-revision-timeout-seconds).
	TimeoutSeconds, MaxTimeoutSeconds int64
	// ResponseStartTimeoutSeconds and IdleTimeoutSeconds are what templates get that set none, in seconds; 0
	// leaves them unset (revision-response-start-timeout-seconds, revision-idle-timeout-seconds).
	ResponseStartTimeoutSeconds, IdleTimeoutSeconds int64

	// ContainerConcurrency is the containerConcurrency of templates that set none, and MaxContainerConcurrency
	// the greatest that they may set (container-concurrency, container-concurrency-max-limit).
	ContainerConcurrency, MaxContainerConcurrency int64
	// AllowZeroContainerConcurrency lets templates ask for no limit (allow-container-concurrency-zero).
	AllowZeroContainerConcurrency bool

	// Requests and Limits are the resources that containers get which say nothing about them
	// (revision-cpu-request, revision-memory-limit and so on). Not to be changed.
	Requests, Limits corev1.ResourceList
	// EnableServiceLinks is the enableServiceLinks of new templates that do not set it; nil leaves it to the
	// host (enable-service-links).
	EnableServiceLinks *bool

	// AllowZeroInitialScale lets a revision start without instances (allow-zero-initial-scale of
	// config-autoscaler).
	AllowZeroInitialScale bool
	// MaxScaleLimit bounds the max-scale that templates may set; 0 sets no bound (max-scale-limit of
	// config-autoscaler).
	MaxScaleLimit int32
}

// DefaultSettings returns what holds where no ConfigMap says otherwise.
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

// forObject returns the settings that complete the template of an object. What a Service or a Configuration
// controls has a copy of its template, which was completed when that one was written: settings that came
// since may not make the copy differ from its original.
func (st Settings) forObject(meta *metav1.ObjectMeta) Settings {
	owner := metav1.GetControllerOfNoCopy(meta)
	if owner == nil || schema.FromAPIVersionAndKind(owner.APIVersion, owner.Kind).Group != GroupName {
		return st
	}
	st = DefaultSettings()
	st.EnableServiceLinks = nil
	return st
}
