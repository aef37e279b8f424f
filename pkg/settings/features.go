package settings

import (
	"errors"
	"strings"

	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
)

// transportKey is the key of config-features that decides how Brokers and Channels accept events.
const transportKey = "transport-encryption"

// TransportEncryption selects the schemes by which Brokers and Channels accept events.
type TransportEncryption string

// TransportDisabled accepts events by http, TransportPermissive by http and https, TransportStrict by https.
const (
	TransportDisabled   TransportEncryption = disabled
	TransportPermissive TransportEncryption = "permissive"
	TransportStrict     TransportEncryption = "strict"
)

// The values of default-authorization-mode.
const (
	SendersAll           = "allow-all"
	SendersSameNamespace = "allow-same-namespace"
	SendersNone          = "deny-all"
)

// The keys of config-features that decide who may send events.
const (
	authenticationKey       = "authentication-oidc"
	defaultAuthorizationKey = "default-authorization-mode"
)

// parseFeatures sets the values of config-features in s.
func parseFeatures(p *parser, s *Settings) error {
	features, err := servingv1.FeaturesFromConfigMap(p.data)
	s.API.Features = features
	// For templates, allowed enables a feature on request. Requests cannot do so, so allowed does not enable it here.
	read(p, &s.TagHeader, func(value string) (bool, bool) {
		switch strings.ToLower(value) {
		case "enabled":
			return true, true
		case "allowed", disabled:
			return false, true
		default:
			return false, false
		}
	}, "'enabled', 'allowed' or 'disabled'", "tag-header-based-routing")
	read(p, &s.Eventing.Links, toggle, "'enabled' or 'disabled'", "cross-namespace-event-links")
	read(p, &s.TransportEncryption, parseTransportEncryption, "'disabled', 'permissive' or 'strict'", transportKey)
	read(p, &s.Senders.OIDC, toggle, "'enabled' or 'disabled'", authenticationKey)
	read(p, &s.Senders.DefaultMode, parseDefaultAuthorization, "'allow-all', 'allow-same-namespace' or 'deny-all'", defaultAuthorizationKey)
	for _, key := range servingv1.FeatureKeys() {
		p.lookup(key)
	}
	return errors.Join(err, p.done())
}

// toggle parses a feature that is on or off.
func toggle(value string) (enabled, ok bool) {
	value = strings.ToLower(value)
	return value == "enabled", value == "enabled" || value == disabled
}

// parseDefaultAuthorization parses default-authorization-mode.
func parseDefaultAuthorization(value string) (mode string, ok bool) {
	mode = strings.ToLower(value)
	return mode, mode == SendersAll || mode == SendersSameNamespace || mode == SendersNone
}

// parseTransportEncryption parses transport-encryption.
func parseTransportEncryption(value string) (mode TransportEncryption, ok bool) {
	mode = TransportEncryption(strings.ToLower(value))
	return mode, mode == TransportDisabled || mode == TransportPermissive || mode == TransportStrict
}

// restrictingFeatures returns the data of config-features that applies instead of invalid data before there was any valid: invalid data
// must not admit senders that the operator may have excluded. It returns nil if the data has no restrictions.
func restrictingFeatures(invalid map[string]string) map[string]string {
	restricted := map[string]string{}
	if value, found := invalid[transportKey]; found {
		if mode, ok := parseTransportEncryption(strings.TrimSpace(value)); !ok || mode == TransportStrict {
			restricted[transportKey] = string(TransportStrict)
		}
	}
	if value, found := invalid[authenticationKey]; found {
		if enabled, ok := toggle(strings.TrimSpace(value)); !ok || enabled {
			restricted[authenticationKey] = "enabled"
			if value, found := invalid[defaultAuthorizationKey]; found {
				mode, ok := parseDefaultAuthorization(strings.TrimSpace(value))
				if !ok {
					mode = SendersNone
				}
				restricted[defaultAuthorizationKey] = mode
			}
		}
	}
	if len(restricted) == 0 {
		return nil
	}
	return restricted
}
