package v1

// Labels and annotations of serving.knative.dev.
const (
	// ServiceLabelKey on Configurations, Routes and Revisions is the name of their Service.
	ServiceLabelKey = GroupName + "/service"
	// ServiceUIDLabelKey on Revisions is the UID of their Service.
	ServiceUIDLabelKey = GroupName + "/serviceUID"
	// ConfigurationLabelKey on Revisions is the name of their Configuration.
	ConfigurationLabelKey = GroupName + "/configuration"
	// ConfigurationUIDLabelKey on Revisions is the UID of their Configuration.
	ConfigurationUIDLabelKey = GroupName + "/configurationUID"
	// ConfigurationGenerationLabelKey on Revisions is the generation of the Configuration that they were created from.
	ConfigurationGenerationLabelKey = GroupName + "/configurationGeneration"
	// RoutingStateLabelKey on Revisions is pending, active or reserve.
	RoutingStateLabelKey = GroupName + "/routingState"
	// RoutingStateModifiedAnnotationKey on Revisions is the time of the last change of that label, in RFC 3339.
	RoutingStateModifiedAnnotationKey = GroupName + "/routingStateModified"
	// RoutesAnnotationKey on Revisions contains the names of the Routes that refer to them, separated by commas.
	RoutesAnnotationKey = GroupName + "/routes"
	// NoGCAnnotationKey on Revisions excludes them from garbage collection if it is "true".
	NoGCAnnotationKey = GroupName + "/no-gc"
	// CreatorAnnotationKey and LastModifierAnnotationKey are the users who created an object and last changed its spec.
	CreatorAnnotationKey      = GroupName + "/creator"
	LastModifierAnnotationKey = GroupName + "/lastModifier"

	// InvocationAnnotationKey on Services, Routes and Namespaces decides who may send requests: InvocationRBAC or InvocationOpen.
	InvocationAnnotationKey = GroupName + "/invocation"
	// RolloutDurationAnnotationKey on Services and Routes is the time in which traffic moves to a new Revision.
	RolloutDurationAnnotationKey = GroupName + "/rollout-duration"
	// RolloutDurationLegacyAnnotationKey is the former name of RolloutDurationAnnotationKey.
	RolloutDurationLegacyAnnotationKey = GroupName + "/rolloutDuration"
	// ProgressDeadlineAnnotationKey on templates bounds the time for a Revision to become ready.
	ProgressDeadlineAnnotationKey = GroupName + "/progress-deadline"
)

// Values of InvocationAnnotationKey, and of the key invocation of config-network.
const (
	// InvocationOpen allows all clients.
	InvocationOpen = "open"
	// InvocationRBAC allows users with the permission to invoke the Service, or the Route without a Service.
	InvocationRBAC = "rbac"
)

const (
	// VisibilityLabelKey on Services and Routes is VisibilityClusterLocal if they have no public host name.
	VisibilityLabelKey = "networking.knative.dev/visibility"
	// VisibilityClusterLocal is the only value of VisibilityLabelKey.
	VisibilityClusterLocal = "cluster-local"
)

// The values of RoutingStateLabelKey.
const (
	// RoutingStatePending is the state of Revisions that no Route has processed yet.
	RoutingStatePending = "pending"
	// RoutingStateActive is the state of Revisions that a Route refers to.
	RoutingStateActive = "active"
	// RoutingStateReserve is the state of Revisions that no Route refers to.
	RoutingStateReserve = "reserve"
)

// The annotations of a Revision's autoscaling, on spec.template.metadata.
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
