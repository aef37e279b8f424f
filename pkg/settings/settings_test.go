package settings

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
)

// compared is Settings without derived values.
var compared = cmp.Options{
	cmpopts.IgnoreUnexported(Network{}),
	cmpopts.EquateEmpty(),
}

// set returns a Store after one Update.
func set(data map[string]map[string]string) (Settings, map[string]error) {
	s := NewStore(Default("example.com"))
	faults := s.Update(data)
	return *s.Get(), faults
}

// Every key sets its value, and no other.
func TestValues(t *testing.T) {
	for _, tc := range []struct {
		configMap, key, value string
		want                  func(*Settings)
	}{
		{"config-deployment", "registries-skipping-tag-resolving", " a.local,b.local , ", func(s *Settings) { s.Deployment.SkipTagResolving = []string{"a.local", "b.local"} }},
		{"config-deployment", "registriesSkippingTagResolving", "", func(s *Settings) { s.Deployment.SkipTagResolving = nil }},
		{"config-deployment", "digest-resolution-timeout", "1500ms", func(s *Settings) { s.Deployment.DigestTimeout = 1500 * time.Millisecond }},
		{"config-deployment", "progress-deadline", "30s", func(s *Settings) { s.Deployment.ProgressDeadline = 30 * time.Second }},
		{"config-deployment", "queue-sidecar-image", "x", func(*Settings) {}},
		{"config-network", "external-domain-tls", "Enabled", func(s *Settings) { s.Network.ExternalDomainTLS, s.API.ExternalDomainTLS = true, true }},
		{"config-features", "cross-namespace-event-links", "Enabled", func(s *Settings) { s.Eventing.Links = true }},
		{"config-features", "cross-namespace-event-links", "disabled", func(*Settings) {}},
		{"config-autoscaler", "_example", "anything: at all", func(*Settings) {}},
		{"config-autoscaler", "no-such-key", "x", func(*Settings) {}},
		{"config-autoscaler", "container-concurrency-target-percentage", "80", func(s *Settings) { s.Autoscaler.TargetUtilization = 0.8 }},
		{"config-autoscaler", "container-concurrency-target-percentage", " 0.5\n", func(s *Settings) { s.Autoscaler.TargetUtilization = 0.5 }},
		{"config-autoscaler", "container-concurrency-target-percentage", "1", func(s *Settings) { s.Autoscaler.TargetUtilization = 1 }},
		{"config-autoscaler", "container-concurrency-target-default", "10.5", func(s *Settings) { s.Autoscaler.ConcurrencyTarget = 10.5 }},
		{"config-autoscaler", "requests-per-second-target-default", "7", func(s *Settings) { s.Autoscaler.RPSTarget = 7 }},
		{"config-autoscaler", "target-burst-capacity", "-1", func(s *Settings) { s.Autoscaler.TargetBurstCapacity = -1 }},
		{"config-autoscaler", "stable-window", "2m", func(s *Settings) { s.Autoscaler.StableWindow = 2 * time.Minute }},
		{"config-autoscaler", "panic-window-percentage", "20.0", func(s *Settings) { s.Autoscaler.PanicWindowPercentage = 20 }},
		{"config-autoscaler", "panic-threshold-percentage", "110", func(s *Settings) { s.Autoscaler.PanicThresholdPercentage = 110 }},
		{"config-autoscaler", "max-scale-up-rate", "10", func(s *Settings) { s.Autoscaler.MaxScaleUpRate = 10 }},
		{"config-autoscaler", "max-scale-down-rate", "1.5", func(s *Settings) { s.Autoscaler.MaxScaleDownRate = 1.5 }},
		{"config-autoscaler", "enable-scale-to-zero", "False", func(s *Settings) { s.Autoscaler.EnableScaleToZero = false }},
		{"config-autoscaler", "scale-to-zero-grace-period", "6s", func(s *Settings) { s.Autoscaler.ScaleToZeroGracePeriod = 6 * time.Second }},
		{"config-autoscaler", "scale-to-zero-pod-retention-period", "1500ms", func(s *Settings) { s.Autoscaler.ScaleToZeroPodRetentionTime = 1500 * time.Millisecond }},
		{"config-autoscaler", "scale-down-delay", "15m", func(s *Settings) { s.Autoscaler.ScaleDownDelay = 15 * time.Minute }},
		{"config-autoscaler", "initial-scale", "3", func(s *Settings) { s.Autoscaler.InitialScale = 3 }},
		{"config-autoscaler", "allow-zero-initial-scale", "true", func(s *Settings) { s.API.AllowZeroInitialScale = true }},
		{"config-autoscaler", "min-scale", "2", func(s *Settings) { s.Autoscaler.MinScale = 2 }},
		{"config-autoscaler", "max-scale", "20", func(s *Settings) { s.Autoscaler.MaxScale = 20 }},
		{"config-autoscaler", "max-scale-limit", "30", func(s *Settings) { s.Autoscaler.MaxScaleLimit, s.API.MaxScaleLimit = 30, 30 }},
		{"config-autoscaler", "pod-autoscaler-class", "kpa.autoscaling.knative.dev", func(*Settings) {}},
		{"config-autoscaler", "activator-capacity", "50", func(*Settings) {}},

		{"config-defaults", "revision-timeout-seconds", "100", func(s *Settings) { s.API.TimeoutSeconds = 100 }},
		{"config-defaults", "max-revision-timeout-seconds", "3600", func(s *Settings) { s.API.MaxTimeoutSeconds = 3600 }},
		{"config-defaults", "revision-response-start-timeout-seconds", "300", func(s *Settings) { s.API.ResponseStartTimeoutSeconds = 300 }},
		{"config-defaults", "revision-idle-timeout-seconds", "60", func(s *Settings) { s.API.IdleTimeoutSeconds = 60 }},
		{"config-defaults", "revision-cpu-request", "400m", request(corev1.ResourceCPU, "400m")},
		{"config-defaults", "revision-memory-request", "100M", request(corev1.ResourceMemory, "100M")},
		{"config-defaults", "revision-ephemeral-storage-request", "500M", request(corev1.ResourceEphemeralStorage, "500M")},
		{"config-defaults", "revision-cpu-limit", "1", limit(corev1.ResourceCPU, "1")},
		{"config-defaults", "revision-memory-limit", "200M", limit(corev1.ResourceMemory, "200M")},
		{"config-defaults", "revision-ephemeral-storage-limit", "750M", limit(corev1.ResourceEphemeralStorage, "750M")},
		{"config-defaults", "revision-cpu-limit", "", func(*Settings) {}},
		{"config-defaults", "container-concurrency", "10", func(s *Settings) { s.API.ContainerConcurrency = 10 }},
		{"config-defaults", "container-concurrency-max-limit", "5000", func(s *Settings) { s.API.MaxContainerConcurrency = 5000 }},
		{"config-defaults", "allow-container-concurrency-zero", "false", func(s *Settings) { s.API.AllowZeroContainerConcurrency = false }},
		{"config-defaults", "enable-service-links", "true", func(s *Settings) { s.API.EnableServiceLinks = ptr.To(true) }},
		{"config-defaults", "enable-service-links", "default", func(s *Settings) { s.API.EnableServiceLinks = nil }},
		{"config-defaults", "container-name-template", "c-{{.Name}}", func(*Settings) {}},
		{"config-defaults", "init-container-name-template", `{{.Namespace}}-{{index .Labels "app.example.com/x"}}`, func(*Settings) {}},

		{"config-domain", "apps.example.org", "", func(s *Settings) {
			s.Domain.Domains = []DomainSelector{{Domain: "apps.example.org"}}
		}},
		{"config-domain", "apps.example.org", "selector:\n  app: x\n", func(s *Settings) {
			s.Domain.Domains = []DomainSelector{{"apps.example.org", map[string]string{"app": "x"}}, {Domain: "example.com"}}
		}},

		{"config-features", "kubernetes.podspec-affinity", "enabled", func(s *Settings) { s.API.Features.Affinity = true }},
		{"config-features", "tag-header-based-routing", "Enabled", func(s *Settings) { s.TagHeader = true }},
		{"config-features", "transport-encryption", "Permissive", func(s *Settings) { s.TransportEncryption = TransportPermissive }},
		{"config-features", "transport-encryption", "strict", func(s *Settings) { s.TransportEncryption = TransportStrict }},
		{"config-features", "transport-encryption", "DISABLED", func(*Settings) {}},
		{"config-features", "tag-header-based-routing", "allowed", func(*Settings) {}},
		{"config-features", "tag-header-based-routing", "disabled", func(*Settings) {}},

		{"config-gc", "retain-since-create-time", "1h", func(s *Settings) { s.GC.RetainSinceCreateTime = time.Hour }},
		{"config-gc", "retain-since-create-time", "disabled", func(s *Settings) { s.GC.RetainSinceCreateTime = -1 }},
		{"config-gc", "retain-since-last-active-time", "Disabled", func(s *Settings) { s.GC.RetainSinceLastActiveTime = -1 }},
		{"config-gc", "min-non-active-revisions", "0", func(s *Settings) { s.GC.MinNonActiveRevisions = 0 }},
		{"config-gc", "max-non-active-revisions", "20", func(s *Settings) { s.GC.MaxNonActiveRevisions = 20 }},
		{"config-gc", "max-non-active-revisions", "disabled", func(s *Settings) { s.GC.MaxNonActiveRevisions = -1 }},

		{"config-network", "domain-template", "{{.Name}}-{{.Namespace}}.{{.Domain}}", func(s *Settings) {
			s.Network.DomainTemplate = "{{.Name}}-{{.Namespace}}.{{.Domain}}"
		}},
		{"config-network", "domainTemplate", "{{.Name}}.{{.Domain}}", func(s *Settings) { s.Network.DomainTemplate = "{{.Name}}.{{.Domain}}" }},
		{"config-network", "tag-template", "{{.Name}}-{{.Tag}}", func(s *Settings) { s.Network.TagTemplate = "{{.Name}}-{{.Tag}}" }},
		{"config-certmanager", "issuerRef", "name: ca", func(s *Settings) { s.Network.Issuer = Issuer{Name: "ca", Kind: "Issuer", Group: "cert-manager.io"} }},
		{"config-certmanager", "issuerRef", "kind: ClusterIssuer\nname: letsencrypt\ngroup: issuers.example.com", func(s *Settings) {
			s.Network.Issuer = Issuer{Name: "letsencrypt", Kind: "ClusterIssuer", Group: "issuers.example.com"}
		}},
		{"config-network", "invocation", "rbac", func(s *Settings) { s.Network.Invocation = "rbac" }},
		{"config-network", "acme-directory", "https://acme.example/directory", func(s *Settings) { s.Network.ACME.Directory = "https://acme.example/directory" }},
		{"config-network", "acme-email", "admin@example.org", func(s *Settings) { s.Network.ACME.Email = "admin@example.org" }},
		{"config-network", "acme-accept-terms", "true", func(s *Settings) { s.Network.ACME.AcceptTerms = true }},
		{"config-network", "acme-challenge", "tls-alpn-01", func(s *Settings) { s.Network.ACME.Challenge = "tls-alpn-01" }},
		{"config-network", "rollout-duration", "120", func(s *Settings) { s.Network.RolloutDuration = 2 * time.Minute }},
		{"config-network", "default-external-scheme", "HTTPS", func(s *Settings) { s.Network.DefaultExternalScheme = "https" }},
		{"config-network", "autocreate-cluster-domain-claims", "True", func(s *Settings) { s.Network.AutocreateClusterDomainClaims = true }},
		{"config-network", "autocreateClusterDomainClaims", "true", func(s *Settings) { s.Network.AutocreateClusterDomainClaims = true }},
		{"config-network", "defaultExternalScheme", "https", func(s *Settings) { s.Network.DefaultExternalScheme = "https" }},
	} {
		t.Run(tc.configMap+"/"+tc.key+"="+tc.value, func(t *testing.T) {
			want := Default("example.com")
			tc.want(&want)
			got, faults := set(map[string]map[string]string{tc.configMap: {tc.key: tc.value}})
			if len(faults) > 0 {
				t.Fatalf("faults: %v", faults)
			}
			if diff := cmp.Diff(want, got, compared); diff != "" {
				t.Errorf("settings (-want +got):\n%s", diff)
			}
		})
	}
}

func request(name corev1.ResourceName, quantity string) func(*Settings) {
	return func(s *Settings) { s.API.Requests = corev1.ResourceList{name: resource.MustParse(quantity)} }
}

func limit(name corev1.ResourceName, quantity string) func(*Settings) {
	return func(s *Settings) { s.API.Limits = corev1.ResourceList{name: resource.MustParse(quantity)} }
}

// The error of an invalid value contains the ConfigMap, the key and the valid values.
func TestBadValues(t *testing.T) {
	for _, tc := range []struct {
		configMap string
		data      map[string]string
		want      string
	}{
		{"config-autoscaler", map[string]string{"container-concurrency-target-percentage": "0"}, "key 'container-concurrency-target-percentage' of config-autoscaler must be a percentage above 0 up to 100, or a share above 0 up to 1, not \"0\""},
		{"config-features", map[string]string{"cross-namespace-event-links": "yes"}, "key 'cross-namespace-event-links' of config-features must be 'enabled' or 'disabled', not \"yes\""},
		{"config-autoscaler", map[string]string{"container-concurrency-target-percentage": "101"}, "a percentage above 0"},
		{"config-autoscaler", map[string]string{"container-concurrency-target-percentage": "NaN"}, "a percentage above 0"},
		{"config-autoscaler", map[string]string{"container-concurrency-target-percentage": "1.1", "container-concurrency-target-default": "0.01"}, "key 'container-concurrency-target-percentage' of config-autoscaler must leave at least 0.01"},
		{"config-autoscaler", map[string]string{"container-concurrency-target-default": "0"}, "greater than or equal to 0.01"},
		{"config-autoscaler", map[string]string{"requests-per-second-target-default": "Inf"}, "greater than or equal to 0.01"},
		{"config-autoscaler", map[string]string{"target-burst-capacity": "-2"}, "or -1 for no limit"},
		{"config-autoscaler", map[string]string{"activator-capacity": "0.5"}, "greater than or equal to 1"},
		{"config-autoscaler", map[string]string{"stable-window": "5s"}, "between 6s and 1h"},
		{"config-autoscaler", map[string]string{"stable-window": "61m"}, "between 6s and 1h"},
		{"config-autoscaler", map[string]string{"stable-window": "6500ms"}, "whole seconds"},
		{"config-autoscaler", map[string]string{"stable-window": "60"}, "a duration"},
		{"config-autoscaler", map[string]string{"stable-window": "9s"}, "key 'panic-window-percentage' of config-autoscaler must be at least 11.1"},
		{"config-autoscaler", map[string]string{"panic-window-percentage": "1"}, "less than 1s"},
		{"config-autoscaler", map[string]string{"panic-window-percentage": "101"}, "between 1 and 100"},
		{"config-autoscaler", map[string]string{"panic-threshold-percentage": "109"}, "between 110 and 1000"},
		{"config-autoscaler", map[string]string{"max-scale-up-rate": "1"}, "greater than 1"},
		{"config-autoscaler", map[string]string{"max-scale-down-rate": "0.5"}, "greater than 1"},
		{"config-autoscaler", map[string]string{"enable-scale-to-zero": "yes"}, "true or false"},
		{"config-autoscaler", map[string]string{"scale-to-zero-grace-period": "5s"}, "at least 6s"},
		{"config-autoscaler", map[string]string{"scale-to-zero-pod-retention-period": "-1s"}, "at least 0s"},
		{"config-autoscaler", map[string]string{"scale-down-delay": "1500ms"}, "whole seconds"},
		{"config-autoscaler", map[string]string{"initial-scale": "0"}, "key 'initial-scale' of config-autoscaler must be at least 1, because 'allow-zero-initial-scale' is off"},
		{"config-autoscaler", map[string]string{"initial-scale": "1.5"}, "a whole number"},
		{"config-autoscaler", map[string]string{"min-scale": "-1"}, "between 0 and 2147483647"},
		{"config-autoscaler", map[string]string{"max-scale": "4294967297"}, "between 0 and 2147483647"},
		{"config-autoscaler", map[string]string{"min-scale": "3", "max-scale": "2"}, "key 'min-scale' of config-autoscaler must be at most 'max-scale' (2), not 3"},
		{"config-autoscaler", map[string]string{"max-scale": "3", "max-scale-limit": "2"}, "'max-scale-limit' (2), not 3"},
		{"config-autoscaler", map[string]string{"min-scale": "3", "max-scale-limit": "2"}, "'max-scale-limit' (2), not 3"},
		{"config-autoscaler", map[string]string{"pod-autoscaler-class": "hpa.autoscaling.knative.dev"}, "'kpa.autoscaling.knative.dev'"},

		{"config-deployment", map[string]string{"digest-resolution-timeout": "0s"}, "key 'digest-resolution-timeout' of config-deployment must be a duration of more than 0s, not \"0s\""},
		{"config-deployment", map[string]string{"progress-deadline": "1500ms"}, "in whole seconds"},
		{"config-deployment", map[string]string{"progressDeadline": "-1s"}, "key 'progressDeadline' of config-deployment"},

		{"config-defaults", map[string]string{"revision-timeout-seconds": "0"}, "key 'revision-timeout-seconds' of config-defaults must be a whole number of seconds, 1 or more"},
		{"config-defaults", map[string]string{"revision-timeout-seconds": "601"}, "'max-revision-timeout-seconds' (600), not 601"},
		{"config-defaults", map[string]string{"max-revision-timeout-seconds": "200"}, "'max-revision-timeout-seconds' (200), not 300"},
		{"config-defaults", map[string]string{"max-revision-timeout-seconds": "9223372036854775807"}, "a whole number of seconds"},
		{"config-defaults", map[string]string{"revision-response-start-timeout-seconds": "301"}, "'revision-timeout-seconds' (300), not 301"},
		{"config-defaults", map[string]string{"revision-idle-timeout-seconds": "301"}, "'revision-timeout-seconds' (300), not 301"},
		{"config-defaults", map[string]string{"revision-idle-timeout-seconds": "-1"}, "or 0 for none"},
		{"config-defaults", map[string]string{"revision-cpu-request": "much"}, "a quantity of at least 0"},
		{"config-defaults", map[string]string{"revision-memory-limit": "-1"}, "a quantity of at least 0"},
		{"config-defaults", map[string]string{"revision-cpu-request": "2", "revision-cpu-limit": "1"}, "key 'revision-cpu-request' of config-defaults must be at most 'revision-cpu-limit' (1), not 2"},
		{"config-defaults", map[string]string{"container-concurrency": "-1"}, "at least 0"},
		{"config-defaults", map[string]string{"container-concurrency": "1001"}, "'container-concurrency-max-limit' (1000), not 1001"},
		{"config-defaults", map[string]string{"container-concurrency-max-limit": "0"}, "at least 1"},
		{"config-defaults", map[string]string{"allow-container-concurrency-zero": "2"}, "true or false"},
		{"config-defaults", map[string]string{"enable-service-links": "maybe"}, "'true', 'false' or 'default'"},
		{"config-defaults", map[string]string{"container-name-template": "{{.Nome}}"}, "as a DNS label"},
		{"config-defaults", map[string]string{"container-name-template": "{{"}, "as a DNS label"},
		{"config-defaults", map[string]string{"init-container-name-template": "A_B"}, "as a DNS label"},

		{"config-domain", map[string]string{"not_a_name": ""}, "key 'not_a_name' of config-domain must be a DNS name"},
		{"config-domain", map[string]string{"example.org": "selectors: {app: x}"}, "key 'example.org' of config-domain must be empty or 'selector:'"},
		{"config-domain", map[string]string{"example.org": "selector: x"}, "'selector:' with a map"},

		{"config-features", map[string]string{"multi-container": "true"}, "key 'multi-container' of config-features must be"},
		{"config-features", map[string]string{"tag-header-based-routing": "perhaps"}, "key 'tag-header-based-routing' of config-features must be 'enabled', 'allowed' or 'disabled'"},

		{"config-gc", map[string]string{"retain-since-create-time": "-1h"}, "key 'retain-since-create-time' of config-gc must be a duration of at least 0s, or 'disabled'"},
		{"config-gc", map[string]string{"retain-since-last-active-time": "1d"}, "or 'disabled'"},
		{"config-gc", map[string]string{"min-non-active-revisions": "disabled"}, "a whole number of at least 0"},
		{"config-gc", map[string]string{"max-non-active-revisions": "10"}, "'max-non-active-revisions' (10), not 20"},

		{"config-network", map[string]string{"domain-template": "{{.Name}"}, "key 'domain-template' of config-network must be a text/template"},
		{"config-network", map[string]string{"domain-template": "{{.Nome}}.{{.Domain}}"}, "a text/template"},
		{"config-network", map[string]string{"domain-template": "{{.Domain}}"}, "different for each .Name"},
		{"config-network", map[string]string{"domain-template": "{{.Name}}_{{.Domain}}"}, "a DNS name"},
		{"config-network", map[string]string{"domain-template": ""}, "a DNS name"},
		{"config-network", map[string]string{"domainTemplate": "x"}, "key 'domainTemplate' of config-network"},
		{"config-certmanager", map[string]string{"issuerRef": "kind: ClusterIssuer"}, "key 'issuerRef' of config-certmanager must be empty or YAML with the 'name' of an issuer"},
		{"config-certmanager", map[string]string{"issuerRef": "letsencrypt"}, "YAML with the 'name' of an issuer"},
		{"config-certmanager", map[string]string{"issuerRef": "name: a\nclass: ClusterIssuer"}, "YAML with the 'name' of an issuer"},
		{"config-certmanager", map[string]string{"issuerRef": "name: a b"}, "YAML with the 'name' of an issuer"},
		{"config-certmanager", map[string]string{"issuerRef": "name: a\nkind: cluster issuer"}, "YAML with the 'name' of an issuer"},
		{"config-network", map[string]string{"tag-template": "{{.Name}}"}, "different for each .Tag"},
		{"config-network", map[string]string{"tag-template": "{{.Tag}}"}, "or .Name"},
		{"config-network", map[string]string{"tag-template": "{{.Tag}}/{{.Name}}"}, "a DNS name"},
		{"config-network", map[string]string{"acme-directory": "http://acme.example"}, "an https:// URL"},
		{"config-network", map[string]string{"acme-email": "Admin <admin@example.org>"}, "an e-mail address"},
		{"config-network", map[string]string{"acme-ca-bundle": "x"}, "certificates in PEM"},
		{"config-network", map[string]string{"acme-challenge": "dns-01"}, "'http-01', 'tls-alpn-01' or empty"},
		{"config-network", map[string]string{"rollout-duration": "-1"}, "a whole number of seconds, 0 or more"},
		{"config-network", map[string]string{"rollout-duration": "2m"}, "a whole number of seconds"},
		{"config-network", map[string]string{"default-external-scheme": "ftp"}, "'http' or 'https'"},
	} {
		t.Run(tc.want, func(t *testing.T) {
			got, faults := set(map[string]map[string]string{tc.configMap: tc.data})
			err := faults[tc.configMap]
			if err == nil || !strings.Contains(err.Error(), tc.want) || !strings.Contains(err.Error(), tc.configMap) {
				t.Errorf("error %v lacks %q", err, tc.want)
			}
			if diff := cmp.Diff(Default("example.com"), got, compared); diff != "" {
				t.Errorf("settings changed (-want +got):\n%s", diff)
			}
		})
	}
}

// All errors are reported at once.
func TestAllFaultsOfAConfigMap(t *testing.T) {
	_, faults := set(map[string]map[string]string{"config-gc": {"retain-since-create-time": "x", "retain-since-last-active-time": "y"}})
	for _, key := range []string{"retain-since-create-time", "retain-since-last-active-time"} {
		if err := faults["config-gc"]; err == nil || !strings.Contains(err.Error(), key) {
			t.Errorf("error %v lacks %s", err, key)
		}
	}
}

// Values that are valid only in combination.
func TestValuesTogether(t *testing.T) {
	for name, data := range map[string]map[string]map[string]string{
		"initial scale 0":  {"config-autoscaler": {"initial-scale": "0", "allow-zero-initial-scale": "true"}},
		"short windows":    {"config-autoscaler": {"stable-window": "6s", "panic-window-percentage": "50"}},
		"longer timeout":   {"config-defaults": {"revision-timeout-seconds": "1000", "max-revision-timeout-seconds": "1000"}},
		"request of limit": {"config-defaults": {"revision-cpu-request": "1", "revision-cpu-limit": "1000m"}},
		"fewer revisions":  {"config-gc": {"min-non-active-revisions": "1", "max-non-active-revisions": "1"}},
		"scale bounds":     {"config-autoscaler": {"min-scale": "1", "max-scale": "1", "max-scale-limit": "1"}},
	} {
		if _, faults := set(data); len(faults) > 0 {
			t.Errorf("%s: %v", name, faults)
		}
	}
}

// Current names of keys override former ones.
func TestLegacySpelling(t *testing.T) {
	got, _ := set(map[string]map[string]string{"config-network": {"rolloutDuration": "1", "rollout-duration": "2"}})
	if got.Network.RolloutDuration != 2*time.Second {
		t.Errorf("rollout takes %v", got.Network.RolloutDuration)
	}
}

// Names and keys match the constants in the API packages.
func TestKnown(t *testing.T) {
	for _, name := range []string{
		"config-autoscaler", "config-br-default-channel", "config-br-defaults", "config-certmanager", "config-defaults", "config-deployment", "config-domain", "config-features", "config-gc",
		"config-kreference-mapping", "config-leader-election", "config-logging", "config-network", "config-observability", "config-ping-defaults",
		"config-sugar", "config-tracing", "default-ch-webhook",
	} {
		if !Known(name) {
			t.Errorf("%s is not known", name)
		}
	}
	if Known("config-kafka") || servingv1.FeaturesConfigMapName != "config-features" {
		t.Error("other names are known")
	}
}
