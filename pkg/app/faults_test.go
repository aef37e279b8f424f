package app

import (
	"errors"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/record"

	"github.com/knative-apiserver/knative-apiserver/pkg/settings"
)

// recorded records Events with the UID of their object.
type recorded struct {
	record.EventRecorder
	events []string
}

func (r *recorded) Event(about runtime.Object, kind, reason, message string) {
	of, _ := about.(*corev1.ObjectReference)
	r.events = append(r.events, fmt.Sprintf("%s %s %s/%s/%s: %s", kind, reason, of.Namespace, of.Name, of.UID, message))
}

// The leader records Events about faults and keys without effect, including ones that were found before it led.
func TestFaults(t *testing.T) {
	recorder := &recorded{}
	f := newFaults("system")
	expect := func(what string, want ...string) {
		t.Helper()
		if diff := cmp.Diff(want, recorder.events); diff != "" {
			t.Errorf("events %s (-want +got):\n%s", what, diff)
		}
		recorder.events = nil
	}
	f.Fault("config-gc", "u1", errors.New("not a number"))
	f.Fault("config-domain", "u2", errors.New("not a name"))
	f.Fault("config-domain", "u2", nil)
	f.Unused("config-gc", "u1", []settings.UnusedKey{{Key: "activator-capacity", Reason: "there is no activator"}})
	f.Unused("config-domain", "u2", []settings.UnusedKey{{Key: "key", Reason: "it is misspelt"}})
	f.Unused("config-domain", "u2", nil)
	f.recordBy(recorder)
	f.Fault("config-network", "u3", errors.New("not a duration"))
	expect("of a replica that does not lead")
	f.lead(true)
	expect("once it leads", "Warning InvalidSettings system/config-gc/u1: not a number", "Warning InvalidSettings system/config-network/u3: not a duration",
		"Warning UnusedSettings system/config-gc/u1: Keys have no effect: 'activator-capacity' (there is no activator)")
	f.Fault("config-gc", "u1", nil)
	f.Fault("config-domain", "u2", errors.New("no name"))
	f.Unused("config-gc", "u1", nil)
	f.Unused("config-network", "u3", []settings.UnusedKey{{Key: "a", Reason: "1"}, {Key: "b", Reason: "2"}})
	expect("while it leads", "Normal ValidSettings system/config-gc/u1: The settings are in force", "Warning InvalidSettings system/config-domain/u2: no name",
		"Warning UnusedSettings system/config-network/u3: Keys have no effect: 'a' (1), 'b' (2)")
	f.TrustBundle("corporate", "u4", errors.New("no certificate"))
	f.TrustBundle("corporate", "u4", nil)
	expect("about trust bundles", "Warning InvalidTrustBundle system/corporate/u4: The certificates are not trusted: no certificate",
		"Normal ValidTrustBundle system/corporate/u4: The certificates are trusted, unless they were deleted")
	f.HTTPSNotServed("config-features", "no listener")
	f.HTTPSNotServed("config-features", "no listener")
	f.lead(true)
	f.HTTPSNotServed("config-features", "")
	expect("about HTTPS, also of a new leader", "Warning HTTPSNotServed system/config-features/: no listener", "Warning InvalidSettings system/config-domain/u2: no name",
		"Warning InvalidSettings system/config-network/u3: not a duration", "Warning UnusedSettings system/config-network/u3: Keys have no effect: 'a' (1), 'b' (2)",
		"Warning HTTPSNotServed system/config-features/: no listener")
	f.lead(false)
	f.Fault("config-domain", "u2", nil)
	expect("when it no longer leads")
}

// TestHTTPSNotServed covers external-domain-tls with and without a listener for HTTPS: one Event for each change of the setting.
func TestHTTPSNotServed(t *testing.T) {
	recorder := &recorded{}
	o := servingOptions{settings: settings.NewStore(settings.Default("example.com")), faults: newFaults("system")}
	o.faults.recordBy(recorder)
	o.faults.lead(true)
	external := func(value string) {
		t.Helper()
		if faults := o.settings.Update(map[string]map[string]string{"config-network": {"external-domain-tls": value}}); len(faults) > 0 {
			t.Fatal(faults)
		}
		o.reportUnserved()
		o.reportUnserved()
	}
	const event = "Warning HTTPSNotServed system/config-network/: 'external-domain-tls' has no effect: the gateway does not serve HTTPS (--gateway-tls-port)"
	external("Disabled")
	external("Enabled")
	external("Disabled")
	external("Enabled")
	o.certificates = &hostCertificates{}
	external("Disabled")
	external("Enabled")
	if diff := cmp.Diff([]string{event, event}, recorder.events); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
}
