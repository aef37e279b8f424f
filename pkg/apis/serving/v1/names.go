package v1

// Labels and annotations of serving.knative.dev.
const (
	// ServiceLabelKey on Configurations, Routes and Revisions holds the name of their Service.
	ServiceLabelKey = GroupName + "/service"
	// ServiceUIDLabelKey on Revisions holds the UID of their Service.
	ServiceUIDLabelKey = GroupName + "/serviceUID"
	// ConfigurationLabelKey on Revisions holds the name of their Configuration.
	ConfigurationLabelKey = GroupName + "/configuration"
	// ConfigurationUIDLabelKey on Revisions holds the UID of their Configuration.
	ConfigurationUIDLabelKey = GroupName + "/configurationUID"
	// ConfigurationGenerationLabelKey on Revisions holds the generation of the Configuration they were made from.
	ConfigurationGenerationLabelKey = GroupName + "/configurationGeneration"
	// RoutingStateLabelKey on Revisions is pending, active or reserve.
	RoutingStateLabelKey = GroupName + "/routingState"
	// RoutingStateModifiedAnnotationKey on Revisions is when that label last changed, in RFC 3339.
	RoutingStateModifiedAnnotationKey = GroupName + "/routingStateModified"
	// RoutesAnnotationKey on Revisions holds the names of the Routes that refer to them, separated by commas.
	RoutesAnnotationKey = GroupName + "/routes"
	// NoGCAnnotationKey on Revisions keeps them from being collected where it is "true".
	NoGCAnnotationKey = GroupName + "/no-gc"
	// CreatorAnnotationKey and LastModifierAnnotationKey hold the users who made an object and last changed its
	// spec.
	CreatorAnnotationKey      = GroupName + "/creator"
	LastModifierAnnotationKey = GroupName + "/lastModifier"

	// RolloutDurationAnnotationKey on Services and Routes is how long traffic takes to move to a new Revision.
	RolloutDurationAnnotationKey = GroupName + "/rollout-duration"
	// RolloutDurationLegacyAnnotationKey is the older spelling of RolloutDurationAnnotationKey.
	RolloutDurationLegacyAnnotationKey = GroupName + "/rolloutDuration"
	// ProgressDeadlineAnnotationKey on templates is how long a Revision may take to become ready.
	ProgressDeadlineAnnotationKey = GroupName + "/progress-deadline"
)

const (
	// VisibilityLabelKey on Services and Routes is VisibilityClusterLocal where they get no public host name.
	VisibilityLabelKey = "networking.knative.dev/visibility"
	// VisibilityClusterLocal is the only value of VisibilityLabelKey.
	VisibilityClusterLocal = "cluster-local"
)

// The values of RoutingStateLabelKey.
const (
	// RoutingStatePending is the state of Revisions that no Route has looked at yet.
	RoutingStatePending = "pending"
	// RoutingStateActive is the state of Revisions that a Route refers to.
	RoutingStateActive = "active"
	// RoutingStateReserve is the state of Revisions that no Route refers to.
	RoutingStateReserve = "reserve"
)

// The annotations that tune a Revision's scale, on spec.template.metadata.
const (
	AutoscalingGroupName = "autoscaling.knative.dev"

	ClassAnnotationKey                    = AutoscalingGroupName + "/class"
	MetricAnnotationKey                   = AutoscalingGroupName + "/metric"
	MinScaleAnnotationKey                 = AutoscalingGroupName + "/min-scale"
	MaxScaleAnnotationKey                 = AutoscalingGroupName + "/max-scale"
	InitialScaleAnnotationKey             = AutoscalingGroupName + "/initial-scale"
	ActivationScaleAnnotationKey          = AutoscalingGroupName + "/activation-scale"
	TargetAnnotationKey                   = AutoscalingGroupName + "/target"
	TargetUtilizationAnnotationKey        = AutoscalingGroupName + "/target-utilization-percentage"
	TargetBurstCapacityAnnotationKey      = AutoscalingGroupName + "/target-burst-capacity"
	WindowAnnotationKey                   = AutoscalingGroupName + "/window"
	PanicWindowPercentageAnnotationKey    = AutoscalingGroupName + "/panic-window-percentage"
	PanicThresholdPercentageAnnotationKey = AutoscalingGroupName + "/panic-threshold-percentage"
	ScaleDownDelayAnnotationKey           = AutoscalingGroupName + "/scale-down-delay"
	PodRetentionAnnotationKey             = AutoscalingGroupName + "/scale-to-zero-pod-retention-period"
)
