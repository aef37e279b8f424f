package v1beta1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
)

// +genclient
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// DomainMapping serves an application at a host name of the user's choice, which is the name of the DomainMapping.
type DomainMapping struct {
	metav1.TypeMeta `json:",inline"`
	// Standard object metadata. The name is the host name: a fully qualified DNS name in lower case, outside of the domain
	// of the cluster.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec is the desired state.
	Spec DomainMappingSpec `json:"spec,omitempty"`

	// Status is the state observed by controllers. Ignored when the DomainMapping itself is written.
	// +optional
	Status DomainMappingStatus `json:"status,omitempty"`
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// DomainMappingList is a list of DomainMappings.
type DomainMappingList struct {
	metav1.TypeMeta `json:",inline"`
	// Standard list metadata.
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`

	// Items are the DomainMappings.
	Items []DomainMapping `json:"items"`
}

// DomainMappingSpec is the desired state of a DomainMapping.
type DomainMappingSpec struct {
	// Ref is the application that receives the requests: a Service or Route of serving.knative.dev, or a core Service of one.
	// It must be in the namespace of the DomainMapping. Required.
	Ref duckv1.KReference `json:"ref"`

	// TLS is the certificate of the host name. Optional; defaults to a certificate of the operator's choice, or none.
	// +optional
	TLS *SecretTLS `json:"tls,omitempty"`

	// Paths are the applications that receive the requests below a path instead of ref. The longest prefix of a path counts. Optional;
	// Knative's releases do not have the field.
	// +optional
	// +listType=map
	// +listMapKey=prefix
	Paths []DomainMappingPath `json:"paths,omitempty"`
}

// DomainMappingPath is the application of a path.
type DomainMappingPath struct {
	// Prefix is the path, such as /api, which stands for /api and all paths below /api/. Requests keep their path. It consists of one
	// segment or more, each with a slash before it, of letters, digits, "-", ".", "_" and "~"; case matters. Required.
	Prefix string `json:"prefix"`

	// Ref is the application that receives the requests, with the same rules as spec.ref. Required.
	Ref duckv1.KReference `json:"ref"`
}

// SecretTLS is a certificate in a Secret.
type SecretTLS struct {
	// SecretName is the name of a Secret of type kubernetes.io/tls in the namespace of the DomainMapping. Required.
	SecretName string `json:"secretName"`
}

const (
	// DomainMappingConditionDomainClaimed reports whether the DomainMapping may use its host name.
	DomainMappingConditionDomainClaimed duckv1.ConditionType = "DomainClaimed"
	// DomainMappingConditionCertificateProvisioned reports whether the host name has a certificate, if it needs one.
	DomainMappingConditionCertificateProvisioned duckv1.ConditionType = "CertificateProvisioned"
	// DomainMappingConditionReferenceResolved reports whether spec.ref and the references of spec.paths name applications that can
	// be mapped.
	DomainMappingConditionReferenceResolved duckv1.ConditionType = "ReferenceResolved"
	// DomainMappingConditionIngressReady reports whether the gateway serves the host name.
	DomainMappingConditionIngressReady duckv1.ConditionType = "IngressReady"
)

// DomainMappingStatus is the observed state of a DomainMapping.
type DomainMappingStatus struct {
	duckv1.Status `json:",inline"`

	// URL, including its scheme, of the host name.
	// +optional
	URL string `json:"url,omitempty"`

	// Address contains the same URL.
	// +optional
	Address *duckv1.Addressable `json:"address,omitempty"`
}
