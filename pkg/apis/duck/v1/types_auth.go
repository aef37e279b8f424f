package v1

// ConditionOIDCIdentityCreated is the type of the condition of Triggers and Subscriptions that reports whether the ServiceAccount exists
// whose tokens authenticate deliveries.
const ConditionOIDCIdentityCreated ConditionType = "OIDCIdentityCreated"

// AuthStatus is the part of a status that identifies an object as a sender of events.
type AuthStatus struct {
	// Auth is the identity of the object, while OIDC authentication is enabled.
	// +optional
	Auth *Auth `json:"auth,omitempty"`
}

// Auth is the identity of an object that sends events.
type Auth struct {
	// ServiceAccountName is the name of the ServiceAccount, in the namespace of the object, whose tokens the object sends.
	// +optional
	ServiceAccountName *string `json:"serviceAccountName,omitempty"`

	// ServiceAccountNames are the names of the ServiceAccounts of an object that has several.
	// +optional
	// +listType=atomic
	ServiceAccountNames []string `json:"serviceAccountNames,omitempty"`
}
