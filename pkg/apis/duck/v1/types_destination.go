package v1

// KReference refers to an object by kind and name (eventing KReference). It is the part of a core/v1
// ObjectReference that makes sense in a spec.
type KReference struct {
	// Kind of the referent, for instance Service. Required.
	Kind string `json:"kind,omitempty"`

	// Namespace of the referent. Optional; defaults to the namespace of the referring object.
	// +optional
	Namespace string `json:"namespace,omitempty"`

	// Name of the referent. Required.
	Name string `json:"name,omitempty"`

	// APIVersion of the referent, for instance serving.knative.dev/v1. Required.
	// +optional
	APIVersion string `json:"apiVersion,omitempty"`

	// Address selects one of the referent's addresses by name, if it has several. Optional; defaults
	// to the referent's first address.
	// +optional
	Address *string `json:"address,omitempty"`
}

// Destination is the destination of events (eventing duckv1.Destination): an object, a URL, or a
// URL relative to an object's address. At least one of ref and uri is required.
type Destination struct {
	// Ref refers to an Addressable object (one with status.address.url) or a core Service.
	// Optional if uri is an absolute URL.
	// +optional
	Ref *KReference `json:"ref,omitempty"`

	// URI is an absolute URL with scheme and host. In combination with ref it may be relative, and is then
	// resolved against the address of ref. Optional if ref is set.
	// +optional
	URI string `json:"uri,omitempty"`

	// CACerts are the PEM certificates of the authorities to trust for https, in addition to the certificates of
	// the referent's address. Optional.
	// +optional
	CACerts *string `json:"CACerts,omitempty"`

	// Audience is the OIDC audience of the destination, used if ref does not report one. Optional.
	// +optional
	Audience *string `json:"audience,omitempty"`
}

// Addressable is an address at which an object accepts requests or events (serving 10.29, eventing duckv1.Addressable).
type Addressable struct {
	// Name distinguishes this address from others of the same object. Optional.
	// +optional
	Name *string `json:"name,omitempty"`

	// URL, including its scheme, of the object. Required once the object is addressable.
	// +optional
	URL string `json:"url,omitempty"`

	// CACerts are the PEM certificates of the authorities that sign the certificate of URL, if it is https. Optional.
	// +optional
	CACerts *string `json:"CACerts,omitempty"`

	// Audience is the required OIDC audience of tokens sent to URL. Optional.
	// +optional
	Audience *string `json:"audience,omitempty"`
}

// GetURL returns the URL of an address, or "" if there is no address yet.
func (a *Addressable) GetURL() string {
	if a == nil {
		return ""
	}
	return a.URL
}

// AddressStatus is the part of a status that makes an object Addressable.
type AddressStatus struct {
	// Address is the address at which the object accepts events or requests. Set by its controller.
	// +optional
	Address *Addressable `json:"address,omitempty"`

	// Addresses are all addresses at which the object accepts events, the preferred one first, if it has several or only
	// an address with https. Set by its controller.
	// +optional
	// +listType=atomic
	Addresses []Addressable `json:"addresses,omitempty"`
}
