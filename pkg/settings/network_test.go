package settings

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/validation"
)

func TestHostname(t *testing.T) {
	labels := map[string]string{"team": "a"}
	annotations := map[string]string{"sub": "s1", "example.com/zone": "Z"}
	for _, tc := range []struct{ name, template, route, want, err string }{
		{name: "default", route: "hello", want: "hello.shop.example.com"},
		{name: "annotation", template: `{{.Name}}-{{index .Annotations "sub"}}.{{.Namespace}}.{{.Domain}}`, route: "hello", want: "hello-s1.shop.example.com"},
		{name: "label, lower case", template: `{{.Name}}.{{.Labels.team}}.{{index .Annotations "example.com/zone"}}.{{.Domain}}`, route: "hello", want: "hello.a.z.example.com"},
		{name: "missing label", template: `{{.Name}}{{.Labels.no}}.{{.Domain}}`, route: "hello", want: "hello.example.com"},
		{name: "no DNS name", template: `{{index .Labels "no"}}-{{.Name}}.{{.Domain}}`, route: "hello", err: "'domain-template' of config-network"},
		{name: "63 characters", route: strings.Repeat("a", 63), want: strings.Repeat("a", 63) + ".shop.example.com"},
		{name: "64 characters", route: strings.Repeat("a", 64), err: "more than 63 characters"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			data := map[string]string{}
			if tc.template != "" {
				data["domain-template"] = tc.template
			}
			s, faults := set(map[string]map[string]string{"config-network": data})
			if len(faults) > 0 {
				t.Fatal(faults)
			}
			check(t, s.Network, tc.route, labels, annotations, tc.want, tc.err)
			// A value without a parsed template behaves identically.
			check(t, Network{DomainTemplate: s.Network.DomainTemplate}, tc.route, labels, annotations, tc.want, tc.err)
		})
	}
}

func check(t *testing.T, n Network, route string, labels, annotations map[string]string, want, wantErr string) {
	t.Helper()
	got, err := n.Hostname(route, "shop", "example.com", labels, annotations)
	if wantErr != "" {
		if err == nil || !strings.Contains(err.Error(), wantErr) {
			t.Errorf("error %v lacks %q", err, wantErr)
		}
		return
	}
	if err != nil || got != want {
		t.Errorf("got %q, %v; want %q", got, err, want)
	}
}

func TestTagName(t *testing.T) {
	s, _ := set(map[string]map[string]string{"config-network": {"tag-template": "{{.Name}}.{{.Tag}}"}})
	for _, tc := range []struct {
		network Network
		want    string
	}{
		{Default("example.com").Network, "canary-hello"},
		{s.Network, "hello.canary"},
	} {
		if got, err := tc.network.TagName("canary", "hello"); err != nil || got != tc.want {
			t.Errorf("got %q, %v; want %q", got, err, tc.want)
		}
	}
	if _, err := (Network{TagTemplate: "{{"}).TagName("canary", "hello"); err == nil {
		t.Error("no error for a broken template")
	}
}

func TestDomainFor(t *testing.T) {
	s, faults := set(map[string]map[string]string{"config-domain": {
		"_example":       "anything",
		"all.example":    "",
		"app.example":    "selector:\n  app: x\n",
		"both.example":   "selector: {app: x, tier: front}\ntype: wildcard",
		"a.tier.example": "selector: {tier: front}",
		"b.tier.example": "selector: {tier: front}",
	}})
	if len(faults) > 0 {
		t.Fatal(faults)
	}
	for _, tc := range []struct {
		labels map[string]string
		want   string
	}{
		{nil, "all.example"},
		{map[string]string{"app": "other"}, "all.example"},
		{map[string]string{"app": "x", "more": "z"}, "app.example"},
		{map[string]string{"app": "x", "tier": "front"}, "both.example"},
		{map[string]string{"tier": "front"}, "a.tier.example"},
	} {
		if got := s.Domain.For(tc.labels); got != tc.want {
			t.Errorf("domain of %v is %s, want %s", tc.labels, got, tc.want)
		}
	}
}

// Without a domain for all other Routes, the domain of the command line applies.
func TestDomainFallback(t *testing.T) {
	s, _ := set(map[string]map[string]string{"config-domain": {"app.example": "selector: {app: x}"}})
	if got := s.Domain.For(map[string]string{"app": "y"}); got != "example.com" {
		t.Errorf("domain is %s", got)
	}
}

// With all accepted templates, host names are DNS names or errors, and distinct Routes have distinct names.
func FuzzNetwork(f *testing.F) {
	f.Add("{{.Name}}.{{.Namespace}}.{{.Domain}}", "{{.Tag}}-{{.Name}}", "hello", "canary")
	f.Add(`{{if index .Labels "x"}}{{.Name}}-x{{else}}{{.Name}}{{end}}.{{.Domain}}`, "{{.Name}}--{{.Tag}}", "Hello", "v1.0")
	f.Add(`{{.Name}}{{printf "%.3s" .Namespace}}.{{.Domain}}`, "t{{.Tag}}{{.Name}}", "", "-")
	f.Fuzz(func(t *testing.T, domainTemplate, tagTemplate, name, tag string) {
		s, faults := set(map[string]map[string]string{"config-network": {"domain-template": domainTemplate, "tag-template": tagTemplate}})
		if len(faults) > 0 {
			return
		}
		tagged, err := s.Network.TagName(tag, name)
		if err != nil {
			return
		}
		host, err := s.Network.Hostname(tagged, "default", "example.com", nil, nil)
		if err != nil {
			return
		}
		if faults := validation.IsDNS1123Subdomain(host); len(faults) > 0 {
			t.Errorf("%q is not a DNS name: %v", host, faults)
		}
	})
}

// Invalid data of config-network does not allow more callers, also without valid data before.
func TestInvocationOfInvalidData(t *testing.T) {
	for _, test := range []struct {
		before, data map[string]string
		want         string
	}{
		{nil, map[string]string{"rollout-duration": "x"}, "open"},
		{nil, map[string]string{"rollout-duration": "x", "invocation": "rbac"}, "rbac"},
		{nil, map[string]string{"invocation": "RBAC"}, "rbac"},
		{nil, map[string]string{"rollout-duration": "x", "invocation": "open"}, "open"},
		{map[string]string{"invocation": "rbac"}, map[string]string{"invocation": "none"}, "rbac"},
		{map[string]string{"invocation": "open"}, map[string]string{"invocation": "none"}, "open"},
	} {
		store := NewStore(Default("example.com"))
		if test.before != nil {
			store.Update(map[string]map[string]string{NetworkConfigMapName: test.before})
		}
		if faults := store.Update(map[string]map[string]string{NetworkConfigMapName: test.data}); faults[NetworkConfigMapName] == nil {
			t.Errorf("%v is accepted", test.data)
		}
		if got := store.Get().Network.Invocation; got != test.want {
			t.Errorf("%v after %v: %q, want %q", test.data, test.before, got, test.want)
		}
	}
}

// TestTransportOfInvalidData checks that invalid data of config-features does not make Brokers and Channels accept events without TLS if
// strict is intended, and that the last valid value stays.
func TestTransportOfInvalidData(t *testing.T) {
	for _, test := range []struct {
		before, data map[string]string
		want         TransportEncryption
	}{
		{nil, map[string]string{"tag-header-based-routing": "x"}, TransportDisabled},
		{nil, map[string]string{"tag-header-based-routing": "x", "transport-encryption": "Strict"}, TransportStrict},
		{nil, map[string]string{"tag-header-based-routing": "x", "transport-encryption": "permissive"}, TransportDisabled},
		{nil, map[string]string{"transport-encryption": "on"}, TransportStrict},
		{map[string]string{"transport-encryption": "permissive"}, map[string]string{"transport-encryption": "on"}, TransportPermissive},
	} {
		store := NewStore(Default("example.com"))
		if test.before != nil {
			store.Update(map[string]map[string]string{"config-features": test.before})
		}
		if faults := store.Update(map[string]map[string]string{"config-features": test.data}); faults["config-features"] == nil {
			t.Errorf("%v is accepted", test.data)
		}
		if got := store.Get().TransportEncryption; got != test.want {
			t.Errorf("%v after %v: %q, want %q", test.data, test.before, got, test.want)
		}
	}
}
