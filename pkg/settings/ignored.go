package settings

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
)

// UnusedKey is a key of a ConfigMap that has no effect.
type UnusedKey struct {
	Key, Reason string
}

// String returns the key and the reason.
func (k UnusedKey) String() string { return fmt.Sprintf("'%s' (%s)", k.Key, k.Reason) }

// JoinUnused formats keys on one line.
func JoinUnused(keys []UnusedKey) string {
	parts := make([]string, len(keys))
	for i, key := range keys {
		parts[i] = key.String()
	}
	return strings.Join(parts, ", ")
}

// unknown is the reason for a key that Knative's releases do not have.
const unknown = "it is misspelt or not a setting of this server"

// ignoredKeys are keys of a ConfigMap that Knative's releases read, but which have no effect here.
type ignoredKeys struct {
	configMap string
	// reason is the reason, or the alternative.
	reason string
	// keys are the keys. Nil means all other keys.
	keys []string
}

const (
	noSidecar    = "there is no sidecar"
	noIdentity   = "TokenReviews verify tokens"
	plainCluster = "connections within the cluster are plain HTTP"
	noChannel    = "a Broker has no Channel underneath"
	noInjection  = "Brokers are not created automatically"
	noPing       = "PingSources are not served"
	fixedTimes   = "the durations of Leases are fixed"
	metricsPath  = "Prometheus reads /metrics of the API port"
	useTracing   = "use tracing-protocol of config-observability"
	useLogFlags  = "use --v, --vmodule and --logging-format"
)

// ignored returns the keys without effect. Some ConfigMaps have only such keys; tools expect that the ConfigMaps exist.
func ignored() []ignoredKeys {
	const (
		kreferences, election           = "config-kreference-mapping", "config-leader-election"
		logging, observability, tracing = "config-logging", ObservabilityConfigMapName, "config-tracing"
		ping, sugar                     = "config-ping-defaults", "config-sugar"
		features                        = servingv1.FeaturesConfigMapName
	)
	return []ignoredKeys{
		{AutoscalerConfigMapName, "there is no activator", []string{"activator-capacity"}},
		{AutoscalerConfigMapName, "no route has to change before a Revision scales to zero", []string{"scale-to-zero-grace-period"}},
		{AutoscalerConfigMapName, "windows are averaged linearly", []string{"metric-aggregation-algorithm"}},

		{CertManagerConfigMapName, plainCluster, []string{"clusterLocalIssuerRef", "systemInternalIssuerRef"}},

		{DefaultsConfigMapName, "unnamed containers are user-container and init-container", []string{"container-name-template", "init-container-name-template"}},

		{DeploymentConfigMapName, noSidecar, []string{
			"queue-sidecar-image", "queue-sidecar-cpu-request", "queue-sidecar-cpu-limit", "queue-sidecar-memory-request", "queue-sidecar-memory-limit",
			"queue-sidecar-ephemeral-storage-request", "queue-sidecar-ephemeral-storage-limit", "queue-sidecar-token-audiences", "queue-sidecar-rootca",
		}},

		{features, "name the port h2c", []string{"autodetect-http2"}},
		{features, "safe security contexts are always set, as far as the image allows", []string{"secure-pod-defaults"}},
		{features, "templates are always tried as Pods", []string{"kubernetes.podspec-dryrun"}},
		{features, noSidecar, []string{"queueproxy.mount-podinfo", "queueproxy.resource-defaults"}},
		{features, noIdentity, []string{"oidc-discovery-base-url"}},
		{features, "it is always enabled", []string{"delivery-timeout", "delivery-retryafter", "new-trigger-filters"}},
		{features, "references use apiVersion", []string{"kreference-group", "kreference-mapping"}},
		{features, "EventTypes are not served", []string{"eventtype-auto-create"}},
		{features, "ApiServerSources are not served", []string{"new-apiserversource-filters"}},
		{features, "RequestReplies are not served", []string{"requestreply-default-timeout"}},

		{NetworkConfigMapName, "the server is the ingress", []string{"ingress-class"}},
		{NetworkConfigMapName, plainCluster, []string{"cluster-local-domain-tls", "system-internal-tls"}},
		{NetworkConfigMapName, "each public host name has its own certificate", []string{"namespace-wildcard-cert-selector"}},
		{NetworkConfigMapName, "backends are always reached by the addresses of their Pods", []string{"enable-mesh-pod-addressability", "mesh-compatibility-mode"}},

		{BrokerConfigMapName, noChannel, []string{"channel-template-spec"}},
		{kreferences, "references use apiVersion", nil},
		{election, fixedTimes, []string{"lease-duration", "renew-deadline", "retry-period", "buckets"}},
		{election, fixedTimes, nil},
		{logging, useLogFlags, []string{"zap-logger-config", "loglevel.controller", "loglevel.webhook"}},
		{logging, useLogFlags, nil},
		{observability, "the metrics of the Go runtime are exported with all others", []string{runtimeInterval}},
		{observability, "use --profiling, whose readers are authorized", []string{runtimeProfiling}},
		{observability, "use --access-log", []string{"logging.enable-request-log", "logging.request-log-template"}},
		{observability, "probes do not pass the gateway", []string{"logging.enable-probe-request-log"}},
		{observability, "Pods get no volume for /var/log", []string{"logging.enable-var-log-collection"}},
		{observability, "status.logUrl is a path of this API server", []string{"logging.revision-url-template"}},
		{observability, "sources are not served", []string{"sink-event-error-reporting.enable"}},
		{ping, noPing, []string{"data-max-size"}},
		{ping, noPing, nil},
		{sugar, noInjection, []string{"namespace-selector", "trigger-selector"}},
		{sugar, noInjection, nil},
		{tracing, useTracing, []string{"backend", "zipkin-endpoint", "debug", "sample-rate"}},
		{tracing, useTracing, nil},
	}
}

// reasons returns the reason for each key of a ConfigMap without effect, and the reason for all other keys that are not read.
func reasons(configMap string) (known map[string]string, otherwise string) {
	known, otherwise = map[string]string{}, unknown
	for _, i := range ignored() {
		if i.configMap != configMap {
			continue
		}
		if i.keys == nil {
			otherwise = i.reason
		}
		for _, key := range i.keys {
			known[key] = i.reason
		}
	}
	return known, otherwise
}

// idle returns the reason for each key of a ConfigMap that has no effect because of other keys in it. Default values are none.
func idle(name string, s Settings) map[string]string {
	keys := map[string]string{}
	switch d := Default("example.com"); name {
	case servingv1.FeaturesConfigMapName:
		if !s.Senders.OIDC && s.Senders.DefaultMode != d.Senders.DefaultMode {
			keys[defaultAuthorizationKey] = authenticationKey + " is not enabled"
		}
	case NetworkConfigMapName:
		// http-protocol concerns the certificates of DomainMappings too, which need no external-domain-tls.
		if !s.Network.ExternalDomainTLS && s.Network.CertificateClass != d.Network.CertificateClass {
			for _, key := range certificateClassKeys() {
				keys[key] = "external-domain-tls is not Enabled"
			}
		}
		maps.Copy(keys, idleACME(s.Network))
	case ObservabilityConfigMapName:
		maps.Copy(keys, idleObservability(s.Observability))
	}
	return keys
}

// idleACME is idle for the keys about the ACME server.
func idleACME(n Network) map[string]string {
	set := map[string]bool{
		acmeDirectoryKey: n.ACME.Directory != "", acmeEmailKey: n.ACME.Email != "", acmeTermsKey: n.ACME.AcceptTerms,
		acmeBundleKey: n.ACME.Bundle != "", acmeChallengeKey: n.ACME.Challenge != "",
	}
	reason := ""
	switch {
	case n.ACME.Directory == "":
		reason = acmeDirectoryKey + " is not set"
	case !n.ExternalDomainTLS:
		reason = "external-domain-tls is not Enabled"
	case n.CertificateClass != ACMEClass:
		reason = "certificate-class is not " + ACMEClass + ": only objects whose annotation names that class use it"
	default:
		return nil
	}
	keys := map[string]string{}
	for key := range set {
		if set[key] {
			keys[key] = reason
		}
	}
	return keys
}

// Unused returns the keys in the data of a ConfigMap that have no effect, sorted.
func Unused(name string, data map[string]string) []UnusedKey {
	if !Known(name) {
		return nil
	}
	read, s, err := readKeys(name, data)
	known, otherwise := reasons(name)
	if err == nil {
		// Other settings than these apply if one is invalid.
		maps.Copy(known, idle(name, s))
	}
	var keys []UnusedKey
	for _, key := range slices.Sorted(maps.Keys(data)) {
		if reason, ok := known[key]; ok || !read.known.Has(key) {
			keys = append(keys, UnusedKey{key, cmp.Or(reason, otherwise)})
		}
	}
	return keys
}

// Keys returns the current names of the keys of a ConfigMap that Knative's releases document, with and without effect.
func Keys(name string) []string {
	known, _ := reasons(name)
	read, _, _ := readKeys(name, nil)
	keys := slices.AppendSeq(read.present, maps.Keys(known))
	slices.Sort(keys)
	return slices.Compact(keys)
}

// readKeys returns the parser of a ConfigMap after it read data, the settings, and the errors in data, which Store.Update reports.
func readKeys(name string, data map[string]string) (*parser, Settings, error) {
	p, s := newParser(name, data), Default("example.com")
	for _, c := range configMaps() {
		if c.name == name {
			return p, s, c.parse(p, &s)
		}
	}
	return p, s, nil
}
