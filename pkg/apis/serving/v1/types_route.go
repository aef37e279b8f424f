package v1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
)

// +genclient
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// Route distributes the requests to a host name over Revisions (serving 5.4).
type Route struct {
	metav1.TypeMeta `json:",inline"`
	// Standard object metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec is the desired distribution.
	// Spec is the desired traffic distribution.
	Spec RouteSpec `json:"spec,omitempty"`

	// Status is the state observed by controllers. Ignored when the Route itself is written.
	// +optional
	Status RouteStatus `json:"status,omitempty"`
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// RouteList is a list of Routes.
type RouteList struct {
	metav1.TypeMeta `json:",inline"`
	// Standard list metadata.
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`

	// Items are the Routes.
	Items []Route `json:"items"`
}

// RouteSpec is the desired distribution of requests (serving 9.3.2).
type RouteSpec struct {
	// Traffic is the distribution of requests. The percents sum to 100. Optional; defaults to
	// 100 percent to the latest ready Revision (of the Service's Configuration; for a Route without a
	// Service, of the Configuration with the Route's name).
	// +optional
	// +listType=atomic
	Traffic []TrafficTarget `json:"traffic,omitempty"`
}

// TrafficTarget is one entry of a traffic distribution (serving 10.2).
type TrafficTarget struct {
	// Tag adds a host name for this target, which starts with the tag. A DNS-1035 label, unique in
	// the list. Optional.
	// +optional
	Tag string `json:"tag,omitempty"`

	// RevisionName is the Revision that receives the requests. Excludes configurationName. Optional.
	// +optional
	RevisionName string `json:"revisionName,omitempty"`

	// ConfigurationName is the Configuration whose latest ready Revision receives the requests. Excludes
	// revisionName; not allowed in a Service, never set in status. Optional.
	// +optional
	ConfigurationName string `json:"configurationName,omitempty"`

	// LatestRevision is true if and only if revisionName is empty: the target then follows the latest ready
	// Revision. Optional; defaults accordingly.
	// +optional
	LatestRevision *bool `json:"latestRevision,omitempty"`

	// Percent is the share of the Route's requests for this target, 0 to 100. Optional; defaults to 0, which
	// means that only the tag reaches the target.
	// +optional
	Percent *int64 `json:"percent,omitempty"`

	// URL of the target's tag. Set in status only; rejected in spec.
	// +optional
	URL string `json:"url,omitempty"`
}

const (
	// RouteConditionAllTrafficAssigned reports whether every target of spec.traffic receives its share.
	RouteConditionAllTrafficAssigned duckv1.ConditionType = "AllTrafficAssigned"
	// RouteConditionIngressReady reports whether the gateway serves the Route's host names.
	RouteConditionIngressReady duckv1.ConditionType = "IngressReady"
	// RouteConditionCertificateProvisioned reports whether the Route's host names have certificates.
	RouteConditionCertificateProvisioned duckv1.ConditionType = "CertificateProvisioned"
)

// RouteStatus is the observed state of a Route (serving 9.3.3).
type RouteStatus struct {
	duckv1.Status     `json:",inline"`
	RouteStatusFields `json:",inline"`
}

// RouteStatusFields are the fields of a Route's status that are also in a Service's.
type RouteStatusFields struct {
	// URL, including its scheme, of the application.
	// +optional
	URL string `json:"url,omitempty"`

	// Address of the application for other objects of the cluster; it may be internal.
	// +optional
	Address *duckv1.Addressable `json:"address,omitempty"`

	// Traffic is the current distribution, with every target resolved to a Revision.
	// +optional
	// +listType=atomic
	Traffic []TrafficTarget `json:"traffic,omitempty"`
}
