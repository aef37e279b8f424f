package v1

import "testing"

// TestTLSAnnotations covers the annotations about TLS in all spellings. The oldest spelling counts.
func TestTLSAnnotations(t *testing.T) {
	const prefix = "networking.knative.dev/"
	for value, want := range map[string]bool{"true": true, "1": true, "t": true, "TRUE": true, "false": false, "0": false, "": false, "yes": false} {
		for _, key := range []string{"disableAutoTLS", "disable-auto-tls", "disable-external-domain-tls"} {
			if got := ExternalTLSDisabled(map[string]string{prefix + key: value}); got != want {
				t.Errorf("%s %q disables: %v, want %v", key, value, got, want)
			}
		}
	}
	if ExternalTLSDisabled(nil) || ExternalTLSDisabled(map[string]string{prefix + "disableAutoTLS": "false", prefix + "disable-external-domain-tls": "true"}) {
		t.Error("a Route is excluded, want the oldest spelling to count")
	}

	for _, key := range []string{"certificate.class", "certificate-class"} {
		if got := CertificateClass(map[string]string{prefix + key: "a"}, "b"); got != "a" {
			t.Errorf("%s gives class %q, want a", key, got)
		}
	}
	if got := CertificateClass(map[string]string{prefix + "certificate-class": ""}, "b"); got != "b" {
		t.Errorf("an empty class gives %q, want the default", got)
	}

	for _, test := range []struct {
		value                   string
		otherwise, want, faulty bool
	}{
		{value: "enabled", otherwise: true, want: false},
		{value: "Redirected", want: true},
		{value: "disabled", otherwise: true, want: true, faulty: true},
		{value: "", faulty: true},
	} {
		for _, key := range []string{"httpOption", "http-protocol"} {
			got, err := RedirectsToHTTPS(map[string]string{prefix + key: test.value}, test.otherwise)
			if got != test.want || (err != nil) != test.faulty {
				t.Errorf("%s %q redirects: %v, %v", key, test.value, got, err)
			}
		}
	}
	if got, err := RedirectsToHTTPS(nil, true); !got || err != nil {
		t.Errorf("without annotation: %v, %v, want the default", got, err)
	}
}
