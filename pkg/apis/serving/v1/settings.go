package v1

// DefaultMaxTimeoutSeconds bounds timeoutSeconds where the operator sets no other limit.
const DefaultMaxTimeoutSeconds int64 = 600

// Settings are the operator's choices that validation depends on.
//
// +k8s:deepcopy-gen=false
// +k8s:openapi-gen=false
type Settings struct {
	// Features says which gated parts of a Pod templates may set (config-features).
	Features Features
	// MaxTimeoutSeconds is the greatest timeoutSeconds, in seconds (max-revision-timeout-seconds of
	// config-defaults).
	MaxTimeoutSeconds int64
	// AllowZeroInitialScale lets a revision start without instances (allow-zero-initial-scale of
	// config-autoscaler).
	AllowZeroInitialScale bool
}

// DefaultSettings returns what holds where no ConfigMap says otherwise.
func DefaultSettings() Settings {
	return Settings{Features: DefaultFeatures(), MaxTimeoutSeconds: DefaultMaxTimeoutSeconds}
}
