// Package settings holds the operator's choices: the ConfigMaps that Knative operators know, parsed.
package settings

import (
	"text/template"
	"time"

	eventingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1"
	messagingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/messaging/v1"
	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
)

// Settings are all the operator's choices at one moment. Immutable.
type Settings struct {
	// API is what defaulting and validation depend on (config-defaults, config-features, config-autoscaler).
	API servingv1.Settings
	// Eventing is what new Brokers get that leave something out (config-br-defaults).
	Eventing eventingv1.Settings
	// Messaging is what new Channels get that have no template (default-ch-webhook).
	Messaging  messagingv1.Settings
	Autoscaler Autoscaler
	Deployment Deployment
	Domain     Domain
	GC         GC
	Network    Network
	// TagHeader lets the Knative-Serving-Tag header of a request pick a tag of its Route
	// (tag-header-based-routing of config-features).
	TagHeader bool
}

// Autoscaler is config-autoscaler: how revisions scale where their annotations say nothing else.
type Autoscaler struct {
	// TargetUtilization is the share of its target that an instance is to use, 0 to 1
	// (container-concurrency-target-percentage).
	TargetUtilization float64
	// ConcurrencyTarget and RPSTarget are what one instance is to handle at a time and per second
	// (container-concurrency-target-default, requests-per-second-target-default).
	ConcurrencyTarget, RPSTarget float64
	// TargetBurstCapacity is how many requests a burst may bring; -1 means any number (target-burst-capacity).
	TargetBurstCapacity float64
	// StableWindow is averaged over; PanicWindowPercentage of it, 1 to 100, in panic mode, which begins at
	// PanicThresholdPercentage of what the instances are to handle, 110 to 1000.
	StableWindow                                    time.Duration
	PanicWindowPercentage, PanicThresholdPercentage float64
	// MaxScaleUpRate and MaxScaleDownRate bound the factor by which one decision changes the scale.
	MaxScaleUpRate, MaxScaleDownRate float64
	// EnableScaleToZero lets revisions without requests run no instance.
	EnableScaleToZero                                   bool
	ScaleToZeroGracePeriod, ScaleToZeroPodRetentionTime time.Duration
	ScaleDownDelay                                      time.Duration
	// InitialScale, MinScale, MaxScale and MaxScaleLimit are numbers of instances; 0 as a maximum means no limit.
	InitialScale, MinScale, MaxScale, MaxScaleLimit int32
}

// Deployment is config-deployment: how the instances of revisions are deployed.
type Deployment struct {
	// SkipTagResolving are the registries whose tags stay as they are (registries-skipping-tag-resolving).
	SkipTagResolving []string
	// DigestTimeout bounds how long the tags of a revision's images are looked up (digest-resolution-timeout).
	DigestTimeout time.Duration
	// ProgressDeadline is how long a revision may take to become ready whose annotations say nothing else
	// (progress-deadline). Whole seconds.
	ProgressDeadline time.Duration
	// RuntimeClasses are the runtime classes of Pods if their templates name none (runtime-class-name).
	RuntimeClasses RuntimeClasses
	// SpreadOverNodes makes the scheduler prefer nodes without a Pod of the same Revision (default-affinity-type).
	SpreadOverNodes bool
	// AlwaysSchedulable is true if a Pod without a node is no failure, because nodes are added when they are needed
	// (pod-is-always-schedulable).
	AlwaysSchedulable bool
}

// RuntimeClasses selects runtime classes by the labels that a Revision must have, by name.
type RuntimeClasses map[string]map[string]string

// Domain is config-domain: the domain of a Route's public host names.
type Domain struct {
	// Domains are tried from the most specific selector on; that without selector comes last.
	Domains []DomainSelector
}

// DomainSelector gives the Routes that have all of some labels a domain.
type DomainSelector struct {
	Domain string
	Labels map[string]string
}

// GC is config-gc: which Revisions are kept. A negative duration or number means without bound ("disabled").
type GC struct {
	RetainSinceCreateTime, RetainSinceLastActiveTime time.Duration
	MinNonActiveRevisions, MaxNonActiveRevisions     int
}

// Network is config-network.
type Network struct {
	// DomainTemplate and TagTemplate are text/templates over Name, Namespace, Domain, Annotations, Labels, Tag.
	DomainTemplate, TagTemplate string
	// RolloutDuration is how long traffic takes to move to a new Revision; 0 means at once.
	RolloutDuration time.Duration
	// DefaultExternalScheme is http or https.
	DefaultExternalScheme string

	// domain and tag are the templates parsed, or nil where nobody has done so yet.
	domain, tag *template.Template
}

// Default returns what holds where no ConfigMap says otherwise. domain is that of public host names.
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
	}
}
