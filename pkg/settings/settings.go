// Package settings parses and watches the operator's ConfigMaps.
package settings

import (
	"text/template"
	"time"

	eventingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1"
	messagingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/messaging/v1"
	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
)

// Settings is an immutable snapshot of all settings of the operator.
type Settings struct {
	// API are the settings of defaulting and validation (config-defaults, config-features, config-autoscaler).
	API servingv1.Settings
	// Eventing are the defaults of Brokers (config-br-defaults), and the features of Eventing (config-features).
	Eventing eventingv1.Settings
	// Messaging are the defaults of Channels (default-ch-webhook).
	Messaging  messagingv1.Settings
	Autoscaler Autoscaler
	Deployment Deployment
	Domain     Domain
	GC         GC
	Network    Network
	// Observability selects where traces and metrics are exported to (config-observability).
	Observability Observability
	Senders       Senders
	// TransportEncryption selects the schemes by which Brokers and Channels accept events (transport-encryption of config-features).
	TransportEncryption TransportEncryption
	// TagHeader makes the request header Knative-Serving-Tag select a tag of the Route (tag-header-based-routing of
	// config-features).
	TagHeader bool
}

// Autoscaler is config-autoscaler: the scaling of Revisions unless their annotations override it.
type Autoscaler struct {
	// TargetUtilization is the fraction of its target that a backend should use, 0 to 1
	// (container-concurrency-target-percentage).
	TargetUtilization float64
	// ConcurrencyTarget and RPSTarget are the target numbers of concurrent requests and of requests per second of a backend
	// (container-concurrency-target-default, requests-per-second-target-default).
	ConcurrencyTarget, RPSTarget float64
	// TargetBurstCapacity is the number of requests in a burst; -1 means unlimited (target-burst-capacity).
	TargetBurstCapacity float64
	// StableWindow is the averaging window. PanicWindowPercentage is the percentage of it, 1 to 100, used in panic mode,
	// which begins at PanicThresholdPercentage of the capacity of the backends, 110 to 1000.
	StableWindow                                    time.Duration
	PanicWindowPercentage, PanicThresholdPercentage float64
	// MaxScaleUpRate and MaxScaleDownRate bound the factor by which one decision changes the scale.
	MaxScaleUpRate, MaxScaleDownRate float64
	// EnableScaleToZero allows Revisions without requests to scale to zero.
	EnableScaleToZero                                   bool
	ScaleToZeroGracePeriod, ScaleToZeroPodRetentionTime time.Duration
	ScaleDownDelay                                      time.Duration
	// InitialScale, MinScale, MaxScale and MaxScaleLimit are numbers of backends; 0 as a maximum means unlimited.
	InitialScale, MinScale, MaxScale, MaxScaleLimit int32
}

// Deployment is config-deployment: the deployment of Revisions.
type Deployment struct {
	// SkipTagResolving are the registries whose tags are not resolved (registries-skipping-tag-resolving).
	SkipTagResolving []string
	// DigestTimeout bounds the resolution of a Revision's image tags (digest-resolution-timeout).
	DigestTimeout time.Duration
	// ProgressDeadline is the default time for a Revision to become ready (progress-deadline), in whole seconds.
	ProgressDeadline time.Duration
	// RuntimeClasses are the default runtime classes of Pods (runtime-class-name).
	RuntimeClasses RuntimeClasses
	// SpreadOverNodes makes the scheduler prefer nodes without a Pod of the same Revision (default-affinity-type).
	SpreadOverNodes bool
	// AlwaysSchedulable is true if an unschedulable Pod is not a failure, because nodes are added on demand
	// (pod-is-always-schedulable).
	AlwaysSchedulable bool
}

// RuntimeClasses maps the names of runtime classes to the labels that select Revisions.
type RuntimeClasses map[string]map[string]string

// Domain is config-domain: the domain of a Route's public host names.
type Domain struct {
	// Domains are ordered from the most specific selector; the domain without a selector is last.
	Domains []DomainSelector
}

// DomainSelector assigns a domain to the Routes with all of the labels.
type DomainSelector struct {
	Domain string
	Labels map[string]string
}

// GC is config-gc: the retention of Revisions. A negative duration or number means unlimited ("disabled").
type GC struct {
	RetainSinceCreateTime, RetainSinceLastActiveTime time.Duration
	MinNonActiveRevisions, MaxNonActiveRevisions     int
}

// Network is config-network.
type Network struct {
	// DomainTemplate and TagTemplate are text/templates over Name, Namespace, Domain, Annotations, Labels, Tag.
	DomainTemplate, TagTemplate string
	// RolloutDuration is the time in which traffic moves to a new Revision; 0 means immediately.
	RolloutDuration time.Duration
	// DefaultExternalScheme is http or https.
	DefaultExternalScheme string
	// Invocation selects the callers of Routes without an annotation: open or rbac.
	Invocation string
	// AutocreateClusterDomainClaims creates a ClusterDomainClaim for a DomainMapping whose host name has none.
	AutocreateClusterDomainClaims bool
	// ExternalDomainTLS is true if the public host names of Routes and DomainMappings get certificates (external-domain-tls).
	ExternalDomainTLS bool
	// CertificateClass is the class of their certificates (certificate-class). Unknown classes issue none.
	CertificateClass string
	// ACME is the ACME server of class ACMEClass (acme-directory and others).
	ACME ACME
	// Issuer is the issuer of class CertManagerClass (issuerRef of config-certmanager).
	Issuer Issuer
	// Redirect is true if requests without TLS to hosts with a certificate are redirected (http-protocol).
	Redirect bool

	// domain and tag are the parsed templates, nil until they are parsed.
	domain, tag *template.Template
}

// Senders restricts the senders of events to Brokers and Channels (authentication-oidc and default-authorization-mode of config-features).
type Senders struct {
	// OIDC is true if senders are authenticated by tokens.
	OIDC bool
	// DefaultMode applies to a Broker or Channel without EventPolicies: allow-all, allow-same-namespace or deny-all.
	DefaultMode string
}

// Default returns the default settings. domain is the domain of public host names.
func Default(domain string) Settings {
	return Settings{
		API:       servingv1.DefaultSettings(),
		Eventing:  eventingv1.DefaultSettings(),
		Messaging: messagingv1.DefaultSettings(),
		Autoscaler: Autoscaler{
			TargetUtilization: 0.7, ConcurrencyTarget: 100, RPSTarget: 200, TargetBurstCapacity: 211,
			StableWindow: time.Minute, PanicWindowPercentage: 10, PanicThresholdPercentage: 200,
			MaxScaleUpRate: 1000, MaxScaleDownRate: 2, EnableScaleToZero: true,
			ScaleToZeroGracePeriod: 30 * time.Second, InitialScale: 1,
		},
		Deployment: Deployment{
			SkipTagResolving: []string{"kind.local", "ko.local", "dev.local"}, DigestTimeout: 10 * time.Second, ProgressDeadline: 10 * time.Minute, SpreadOverNodes: true,
		},
		Domain:  Domain{Domains: []DomainSelector{{Domain: domain}}},
		GC:      GC{RetainSinceCreateTime: 48 * time.Hour, RetainSinceLastActiveTime: 15 * time.Hour, MinNonActiveRevisions: 20, MaxNonActiveRevisions: 1000},
		Network: defaultNetwork(),
		Senders: Senders{DefaultMode: SendersSameNamespace},

		Observability: defaultObservability(),

		TransportEncryption: TransportDisabled,
	}
}
