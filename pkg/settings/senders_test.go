package settings

import (
	"strings"
	"testing"

	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
)

// TestSenders covers the keys that restrict senders of events. Values may be in any case.
func TestSenders(t *testing.T) {
	for name, tt := range map[string]struct {
		data map[string]string
		want Senders
		err  string
	}{
		"default":       {nil, Senders{DefaultMode: "allow-same-namespace"}, ""},
		"enabled":       {map[string]string{"authentication-oidc": "ENABLED"}, Senders{OIDC: true, DefaultMode: "allow-same-namespace"}, ""},
		"disabled":      {map[string]string{"authentication-oidc": "disabled", "default-authorization-mode": "deny-all"}, Senders{DefaultMode: "deny-all"}, ""},
		"mode":          {map[string]string{"authentication-oidc": "enabled", "default-authorization-mode": "Allow-All"}, Senders{OIDC: true, DefaultMode: "allow-all"}, ""},
		"unknown value": {map[string]string{"authentication-oidc": "allowed"}, Senders{OIDC: true, DefaultMode: "allow-same-namespace"}, "'authentication-oidc' of config-features must be 'enabled' or 'disabled'"},
		"unknown mode":  {map[string]string{"default-authorization-mode": "none"}, Senders{DefaultMode: "allow-same-namespace"}, "'default-authorization-mode' of config-features must be 'allow-all', 'allow-same-namespace' or 'deny-all'"},
	} {
		t.Run(name, func(t *testing.T) {
			s, faults := set(map[string]map[string]string{servingv1.FeaturesConfigMapName: tt.data})
			if s.Senders != tt.want {
				t.Errorf("got %+v, want %+v", s.Senders, tt.want)
			}
			err := faults[servingv1.FeaturesConfigMapName]
			if (err != nil) != (tt.err != "") || err != nil && !strings.Contains(err.Error(), tt.err) {
				t.Errorf("fault %v, want %q", err, tt.err)
			}
		})
	}
}

// TestSendersOfInvalidData checks that invalid data admits no sender that the ConfigMap may have excluded: neither at first, nor later.
func TestSendersOfInvalidData(t *testing.T) {
	for name, tt := range map[string]struct {
		data map[string]string
		want Senders
	}{
		"another key":           {map[string]string{"tag-header-based-routing": "x"}, Senders{DefaultMode: "allow-same-namespace"}},
		"enabled, another key":  {map[string]string{"authentication-oidc": " Enabled ", "tag-header-based-routing": "x"}, Senders{OIDC: true, DefaultMode: "allow-same-namespace"}},
		"disabled, another key": {map[string]string{"authentication-oidc": "Disabled", "tag-header-based-routing": "x"}, Senders{DefaultMode: "allow-same-namespace"}},
		"an unknown mode":       {map[string]string{"authentication-oidc": "enabled", "default-authorization-mode": "x"}, Senders{OIDC: true, DefaultMode: "deny-all"}},
		"a mode":                {map[string]string{"authentication-oidc": "x", "default-authorization-mode": "Allow-All"}, Senders{OIDC: true, DefaultMode: "allow-all"}},
	} {
		t.Run(name, func(t *testing.T) {
			store := NewStore(Default("example.com"))
			invalid := map[string]map[string]string{servingv1.FeaturesConfigMapName: tt.data}
			if faults := store.Update(invalid); len(faults) != 1 || store.Get().Senders != tt.want {
				t.Errorf("got %+v with faults %v, want %+v", store.Get().Senders, faults, tt.want)
			}
			store.Update(map[string]map[string]string{servingv1.FeaturesConfigMapName: {"authentication-oidc": "enabled"}})
			store.Update(invalid)
			if got := store.Get().Senders; !got.OIDC || !store.Eventing().OIDC {
				t.Errorf("after valid data: %+v", got)
			}
		})
	}
}
