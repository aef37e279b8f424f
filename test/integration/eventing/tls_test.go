package eventing

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/cert"
	"k8s.io/utils/ptr"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	eventingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1"
	messagingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/messaging/v1"
	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// secureSubscriber forwards events that it accepts over TLS to a subscriber, and returns its URL and the certificates to trust.
func secureSubscriber(t *testing.T, to *harness.Subscriber) (address, authority string) {
	t.Helper()
	certificate, key, err := cert.GenerateSelfSignedCertKey("127.0.0.1", []net.IP{net.IPv4(127, 0, 0, 1)}, nil)
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(certificate, key)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		request, err := http.NewRequestWithContext(r.Context(), r.Method, to.URL, r.Body)
		if err == nil {
			request.Header = r.Header
			var response *http.Response
			if response, err = sender.Do(request); err == nil {
				response.Body.Close()
				w.WriteHeader(response.StatusCode)
				return
			}
		}
		http.Error(w, err.Error(), http.StatusInternalServerError)
	}))
	server.TLS = &tls.Config{Certificates: []tls.Certificate{pair}}
	server.StartTLS()
	t.Cleanup(server.Close)
	return server.URL, string(certificate)
}

// writeEncryption writes transport-encryption into a directory of settings.
func writeEncryption(t *testing.T, dir, mode string) {
	t.Helper()
	content := "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: config-features}\ndata: {transport-encryption: " + mode + "}\n"
	// A reader sees the old or the new file.
	if err := errors.Join(os.WriteFile(filepath.Join(dir, ".new"), []byte(content), 0o600), os.Rename(filepath.Join(dir, ".new"), filepath.Join(dir, "features.yaml"))); err != nil {
		t.Fatal(err)
	}
}

// code posts an event with certificates to trust, and returns the status code of the response.
func code(t *testing.T, address, id, authority string) int {
	t.Helper()
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM([]byte(authority))
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}}
	defer transport.CloseIdleConnections()
	request, err := http.NewRequestWithContext(bounded(t), http.MethodPost, address, strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range map[string]string{"Ce-Specversion": "1.0", "Ce-Id": id, "Ce-Type": "order", "Ce-Source": "/test", "Content-Type": "application/json"} {
		request.Header.Set(name, value)
	}
	response, err := (&http.Client{Transport: transport}).Do(request)
	if err != nil {
		t.Fatal(err)
	}
	response.Body.Close()
	return response.StatusCode
}

// schemes returns the schemes of an object's addresses, status.address first.
func schemes(status duckv1.AddressStatus) string {
	all := []string{strings.SplitN(status.Address.GetURL(), ":", 2)[0] + ":"}
	for _, address := range status.Addresses {
		all = append(all, strings.SplitN(address.URL, ":", 2)[0])
	}
	return strings.Join(all, " ")
}

// TestStrictWithoutHTTPS covers a server without a listener for HTTPS: with strict, it accepts no events, and conditions and an Event report it.
func TestStrictWithoutHTTPS(t *testing.T) {
	t.Parallel()
	config, ns := t.TempDir(), namespace()
	writeEncryption(t, config, "permissive")
	s := start(t, t.TempDir(), "--config-dir", config, "--broker-tls-port", "-1")
	plain := s.broker(t, ns, "orders")
	s.channel(t, ns, "copies")
	if got := code(t, plain, "one", ""); got != http.StatusAccepted {
		t.Errorf("permissive, http: %d, want 202", got)
	}
	writeEncryption(t, config, "strict")
	eventually(t, s.Knative.EventingV1().Brokers(ns), "orders", "has no address", func(b *eventingv1.Broker) error {
		if b.Status.Address != nil || len(b.Status.Addresses) > 0 {
			return fmt.Errorf("the addresses are %+v", b.Status.AddressStatus)
		}
		return condition(b, &b.Status.Status, duckv1.ConditionReady, corev1.ConditionFalse, "HTTPSNotServed")
	})
	eventually(t, s.Knative.MessagingV1().Channels(ns), "copies", "has no address", func(c *messagingv1.Channel) error {
		if c.Status.Address != nil || len(c.Status.Addresses) > 0 {
			return fmt.Errorf("the addresses are %+v", c.Status.AddressStatus)
		}
		return condition(c, &c.Status.Status, duckv1.ConditionReady, corev1.ConditionFalse, "HTTPSNotServed")
	})
	if got := code(t, plain, "refused", ""); got != http.StatusNotFound {
		t.Errorf("strict, http: %d, want 404", got)
	}
	core, err := kubernetes.NewForConfig(s.Config)
	if err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, "an Event has the reason", func() error {
		events, err := core.CoreV1().Events(harness.SystemNamespace).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		var messages []string
		for _, e := range events.Items {
			if e.Reason == "HTTPSNotServed" && e.InvolvedObject.Name == "config-features" && strings.Contains(e.Message, "is strict, but") {
				return nil
			}
			messages = append(messages, e.Reason+": "+e.Message)
		}
		return fmt.Errorf("the Events are %q", messages)
	})
	writeEncryption(t, config, "disabled")
	eventually(t, s.Knative.EventingV1().Brokers(ns), "orders", "has its address again", func(b *eventingv1.Broker) error {
		if got := b.Status.Address.GetURL(); got != plain {
			return fmt.Errorf("the address is %q", got)
		}
		return nil
	})
}

// TestTransportEncryption covers events over TLS: addresses and listeners for each value of transport-encryption, which takes effect at
// once; deliveries to a reference, to a destination with CACerts, and to one with a certificate in a trust bundle; and a destination that
// is not trusted.
func TestTransportEncryption(t *testing.T) {
	t.Parallel()
	config, ns := t.TempDir(), namespace()
	writeEncryption(t, config, "Permissive")
	s := start(t, t.TempDir(), "--config-dir", config)
	s.broker(t, ns, "orders")
	s.channel(t, ns, "copies")
	brokers := s.Knative.EventingV1().Brokers(ns)
	has := func(want string) duckv1.AddressStatus {
		t.Helper()
		return eventually(t, brokers, "orders", "has the addresses "+want, func(b *eventingv1.Broker) error {
			if got := schemes(b.Status.AddressStatus); got != want {
				return fmt.Errorf("the addresses are %q", got)
			}
			return nil
		}).Status.AddressStatus
	}

	sink, received := harness.NewSink(t), map[string]*harness.Subscriber{}
	for _, name := range []string{"copies", "certificates", "bundle", "untrusted"} {
		received[name] = sink.At("/" + name)
	}
	// A reference to a Channel resolves to its first address.
	s.subscription(t, ns, "copies", "copies", received["copies"].URL)
	s.trigger(t, ns, "orders", "copies", "", sentTo(channelRef("copies")))
	resolves := func(scheme string, certificates bool) {
		t.Helper()
		eventually(t, s.Knative.EventingV1().Triggers(ns), "copies", "sends to the Channel by "+scheme, func(trigger *eventingv1.Trigger) error {
			got := trigger.Status
			if !strings.HasPrefix(got.SubscriberURI, scheme+"://") || (ptr.Deref(got.SubscriberCACerts, "") != "") != certificates {
				return fmt.Errorf("the Channel resolves to %q with the certificates %q", got.SubscriberURI, ptr.Deref(got.SubscriberCACerts, ""))
			}
			return condition(trigger, &got.Status, duckv1.ConditionReady, corev1.ConditionTrue, "")
		})
	}
	resolves("https", true)
	withCertificates, authority := secureSubscriber(t, received["certificates"])
	s.trigger(t, ns, "orders", "certificates", "", sentTo(&duckv1.Destination{URI: withCertificates, CACerts: &authority}))
	bundled, authority := secureSubscriber(t, received["bundle"])
	bundle := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "corporate", Labels: map[string]string{"networking.knative.dev/trust-bundle": "true"}},
		Data:       map[string]string{"corporate.pem": authority},
	}
	core, err := kubernetes.NewForConfig(s.Config)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := core.CoreV1().ConfigMaps(harness.SystemNamespace).Create(t.Context(), bundle, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	// The bundle takes effect within the retries.
	s.trigger(t, ns, "orders", "bundle", bundled, delivered(retries(1000, "PT0.2S")))
	untrusted, _ := secureSubscriber(t, sink.At("/never"))
	dead := retries(0, "PT0.1S")
	dead.DeadLetterSink = uri(received["untrusted"].URL)
	s.trigger(t, ns, "orders", "untrusted", untrusted, delivered(dead))

	both := has("http: https http")
	secure, plain := both.Addresses[0], both.Addresses[1]
	if got := code(t, secure.URL, "one", ptr.Deref(secure.CACerts, "")); got != http.StatusAccepted {
		t.Errorf("permissive, https: %d, want 202", got)
	}
	for name, subscriber := range received {
		d := deliveryOf(t, subscriber, "one")
		if failure := d.Header.Get("Ce-Knativeerrordest"); (failure != "") != (name == "untrusted") {
			t.Errorf("%s: the event has the error destination %q", name, failure)
		}
	}

	writeEncryption(t, config, "strict")
	has("https: https")
	if got := code(t, secure.URL, "two", ptr.Deref(secure.CACerts, "")); got != http.StatusAccepted {
		t.Errorf("strict, https: %d, want 202", got)
	}
	if got := code(t, plain.URL, "refused", ""); got != http.StatusNotFound {
		t.Errorf("strict, http: %d, want 404", got)
	}
	deliveryOf(t, received["copies"], "two")

	writeEncryption(t, config, "disabled")
	has("http:")
	resolves("http", false)
	if got := code(t, secure.URL, "refused", ptr.Deref(secure.CACerts, "")); got != http.StatusNotFound {
		t.Errorf("disabled, https: %d, want 404", got)
	}
	if got := code(t, plain.URL, "three", ""); got != http.StatusAccepted {
		t.Errorf("disabled, http: %d, want 202", got)
	}
	deliveryOf(t, received["copies"], "three")
}
