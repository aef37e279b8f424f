package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// +genclient
// +genclient:nonNamespaced
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// ClusterDomainClaim reserves a host name, which is its name, for the DomainMappings of one namespace.
type ClusterDomainClaim struct {
	metav1.TypeMeta `json:",inline"`
	// Standard object metadata. The name is the host name.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec is the desired state.
	Spec ClusterDomainClaimSpec `json:"spec,omitempty"`
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// ClusterDomainClaimList is a list of ClusterDomainClaims.
type ClusterDomainClaimList struct {
	metav1.TypeMeta `json:",inline"`
	// Standard list metadata.
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`

	// Items are the ClusterDomainClaims.
	Items []ClusterDomainClaim `json:"items"`
}

// ClusterDomainClaimSpec is the desired state of a ClusterDomainClaim.
type ClusterDomainClaimSpec struct {
	// Namespace is the only namespace whose DomainMapping may use the host name. Required.
	Namespace string `json:"namespace"`
}
