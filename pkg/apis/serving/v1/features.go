package v1

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// FeaturesConfigMapName is the name of the ConfigMap that FeaturesFromConfigMap parses.
const FeaturesConfigMapName = "config-features"

// Keys of config-features that gate fields of a revision template.
const (
	featureMultiContainer              = "multi-container"
	featureMultiContainerProbing       = "multi-container-probing"
	featureAffinity                    = "kubernetes.podspec-affinity"
	featureTopologySpreadConstraints   = "kubernetes.podspec-topologyspreadconstraints"
	featureHostAliases                 = "kubernetes.podspec-hostaliases"
	featureNodeSelector                = "kubernetes.podspec-nodeselector"
	featureRuntimeClassName            = "kubernetes.podspec-runtimeclassname"
	featureTolerations                 = "kubernetes.podspec-tolerations"
	featurePodSecurityContext          = "kubernetes.podspec-securitycontext"
	featureShareProcessNamespace       = "kubernetes.podspec-shareprocessnamespace"
	featurePriorityClassName           = "kubernetes.podspec-priorityclassname"
	featureSchedulerName               = "kubernetes.podspec-schedulername"
	featureInitContainers              = "kubernetes.podspec-init-containers"
	featureInitContainersRestartPolicy = "kubernetes.podspec-init-containers-restart-policy"
	featureDNSPolicy                   = "kubernetes.podspec-dnspolicy"
	featureDNSConfig                   = "kubernetes.podspec-dnsconfig"
	featureHostIPC                     = "kubernetes.podspec-hostipc"
	featureHostPID                     = "kubernetes.podspec-hostpid"
	featureHostNetwork                 = "kubernetes.podspec-hostnetwork"
	featureFieldRef                    = "kubernetes.podspec-fieldref"
	featureVolumeEmptyDir              = "kubernetes.podspec-volumes-emptydir"
	featureVolumeHostPath              = "kubernetes.podspec-volumes-hostpath"
	featureVolumeCSI                   = "kubernetes.podspec-volumes-csi"
	featureVolumeEphemeral             = "kubernetes.podspec-volumes-ephemeral"
	featureVolumeImage                 = "kubernetes.podspec-volumes-image"
	featureMountPropagation            = "kubernetes.podspec-volumes-mount-propagation"
	featurePersistentVolumeClaim       = "kubernetes.podspec-persistent-volume-claim"
	featurePersistentVolumeWrite       = "kubernetes.podspec-persistent-volume-write"
	featureAddCapabilities             = "kubernetes.containerspec-addcapabilities"
)

// Features are the optional parts of a Pod that the operator allows in revision templates. The comment of each field is its key in
// config-features.
//
// +k8s:deepcopy-gen=false
// +k8s:openapi-gen=false
type Features struct {
	MultiContainer              bool // multi-container: more than one container
	MultiContainerProbing       bool // multi-container-probing: probes on containers without a port
	Affinity                    bool // kubernetes.podspec-affinity
	TopologySpreadConstraints   bool // kubernetes.podspec-topologyspreadconstraints
	HostAliases                 bool // kubernetes.podspec-hostaliases
	NodeSelector                bool // kubernetes.podspec-nodeselector
	RuntimeClassName            bool // kubernetes.podspec-runtimeclassname
	Tolerations                 bool // kubernetes.podspec-tolerations
	PodSecurityContext          bool // kubernetes.podspec-securitycontext
	ShareProcessNamespace       bool // kubernetes.podspec-shareprocessnamespace
	PriorityClassName           bool // kubernetes.podspec-priorityclassname
	SchedulerName               bool // kubernetes.podspec-schedulername
	InitContainers              bool // kubernetes.podspec-init-containers
	InitContainersRestartPolicy bool // kubernetes.podspec-init-containers-restart-policy: native sidecars
	DNSPolicy                   bool // kubernetes.podspec-dnspolicy
	DNSConfig                   bool // kubernetes.podspec-dnsconfig
	HostIPC                     bool // kubernetes.podspec-hostipc
	HostPID                     bool // kubernetes.podspec-hostpid
	HostNetwork                 bool // kubernetes.podspec-hostnetwork
	FieldRef                    bool // kubernetes.podspec-fieldref: fieldRef and resourceFieldRef in env
	VolumeEmptyDir              bool // kubernetes.podspec-volumes-emptydir
	VolumeHostPath              bool // kubernetes.podspec-volumes-hostpath
	VolumeCSI                   bool // kubernetes.podspec-volumes-csi
	VolumeEphemeral             bool // kubernetes.podspec-volumes-ephemeral
	VolumeImage                 bool // kubernetes.podspec-volumes-image
	MountPropagation            bool // kubernetes.podspec-volumes-mount-propagation
	PersistentVolumeClaim       bool // kubernetes.podspec-persistent-volume-claim
	PersistentVolumeWrite       bool // kubernetes.podspec-persistent-volume-write: claims that are not readOnly
	AddCapabilities             bool // kubernetes.containerspec-addcapabilities: any capabilities.add
}

// DefaultFeatures returns the features without config-features: several containers and emptyDir volumes.
func DefaultFeatures() Features {
	return Features{MultiContainer: true, VolumeEmptyDir: true}
}

// flags maps each key of config-features to its field in f.
func (f *Features) flags() map[string]*bool {
	return map[string]*bool{
		featureMultiContainer:              &f.MultiContainer,
		featureMultiContainerProbing:       &f.MultiContainerProbing,
		featureAffinity:                    &f.Affinity,
		featureTopologySpreadConstraints:   &f.TopologySpreadConstraints,
		featureHostAliases:                 &f.HostAliases,
		featureNodeSelector:                &f.NodeSelector,
		featureRuntimeClassName:            &f.RuntimeClassName,
		featureTolerations:                 &f.Tolerations,
		featurePodSecurityContext:          &f.PodSecurityContext,
		featureShareProcessNamespace:       &f.ShareProcessNamespace,
		featurePriorityClassName:           &f.PriorityClassName,
		featureSchedulerName:               &f.SchedulerName,
		featureInitContainers:              &f.InitContainers,
		featureInitContainersRestartPolicy: &f.InitContainersRestartPolicy,
		featureDNSPolicy:                   &f.DNSPolicy,
		featureDNSConfig:                   &f.DNSConfig,
		featureHostIPC:                     &f.HostIPC,
		featureHostPID:                     &f.HostPID,
		featureHostNetwork:                 &f.HostNetwork,
		featureFieldRef:                    &f.FieldRef,
		featureVolumeEmptyDir:              &f.VolumeEmptyDir,
		featureVolumeHostPath:              &f.VolumeHostPath,
		featureVolumeCSI:                   &f.VolumeCSI,
		featureVolumeEphemeral:             &f.VolumeEphemeral,
		featureVolumeImage:                 &f.VolumeImage,
		featureMountPropagation:            &f.MountPropagation,
		featurePersistentVolumeClaim:       &f.PersistentVolumeClaim,
		featurePersistentVolumeWrite:       &f.PersistentVolumeWrite,
		featureAddCapabilities:             &f.AddCapabilities,
	}
}

// enabled reports whether the feature with this key of config-features is enabled.
func (f Features) enabled(key string) bool {
	flag := f.flags()[key]
	return flag != nil && *flag
}

// FeaturesFromConfigMap parses the data of config-features on top of the defaults. Each value is enabled, allowed or disabled in any
// case; both enabled and allowed permit the field in templates. Keys of other features are ignored. The error names every key with
// an invalid value, and the valid values.
func FeaturesFromConfigMap(data map[string]string) (Features, error) {
	features := DefaultFeatures()
	var errs []error
	for key, flag := range features.flags() {
		value, ok := data[key]
		if !ok {
			continue
		}
		switch strings.ToLower(strings.TrimSpace(value)) {
		case "enabled", "allowed":
			*flag = true
		case "disabled":
			*flag = false
		default:
			errs = append(errs, fmt.Errorf("key '%s' of %s must be 'enabled', 'allowed' or 'disabled', not %q",
				key, FeaturesConfigMapName, value))
		}
	}
	if len(errs) > 0 {
		slices.SortFunc(errs, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
		return Features{}, errors.Join(errs...)
	}
	return features, nil
}

// FeatureKeys returns the keys of config-features that FeaturesFromConfigMap reads.
func FeatureKeys() []string {
	return slices.Collect(maps.Keys((&Features{}).flags()))
}
