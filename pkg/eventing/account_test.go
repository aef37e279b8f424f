package eventing

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/validation"
)

// TestAccountName covers the names that Knative's releases give ServiceAccounts of senders, of objects with short, long and longest names.
func TestAccountName(t *testing.T) {
	for _, test := range []struct{ group, kind, object, want string }{
		{"eventing.knative.dev", "Trigger", "t", "t-oidc-eventing.knative.dev-trigger"},
		{"messaging.knative.dev", "Subscription", "s", "s-oidc-messaging.knative.dev-subscription"},
		{"eventing.knative.dev", "Trigger", strings.Repeat("a", 29), strings.Repeat("a", 29) + "-oidc-eventing.knative.dev-trigger"},
		// The MD5 sum of the name with the suffix.
		{"eventing.knative.dev", "Trigger", strings.Repeat("a", 30), "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaa27637eeef263f5da107802d5564fa0d0"},
		{"messaging.knative.dev", "Subscription", strings.Repeat("b", 24), "bbbbbbbbbbbbbbbbbbbbbbbbbbeb50c996e878233b22c3a8ab0a715c-oidc-m"},
		{"eventing.knative.dev", "Trigger", strings.Repeat("c", 63), "ccccccccccccccccccccccccccccccc963dd7820c387c887523df9d8368f9bb"},
	} {
		got := AccountName(test.group, test.kind, test.object)
		if got != test.want {
			t.Errorf("account of %s %s is %q, want %q", test.kind, test.object, got, test.want)
		}
		if errs := validation.ValidateServiceAccountName(got, false); len(errs) > 0 || len(got) > 63 {
			t.Errorf("account of %s %s is %q: %v", test.kind, test.object, got, errs)
		}
	}
	if a, b := AccountName("eventing.knative.dev", "Trigger", strings.Repeat("d", 40)+"1"), AccountName("eventing.knative.dev", "Trigger", strings.Repeat("d", 40)+"2"); a == b {
		t.Errorf("two Triggers have the account %s", a)
	}
}
