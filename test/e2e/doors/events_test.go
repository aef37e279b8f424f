package doors

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log"
	"maps"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/cert"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	eventingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1"
	messagingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/messaging/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/certs"
	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// The tests below do not run in parallel, because their settings concern all Brokers.

const broker = "{apiVersion: eventing.knative.dev/v1, kind: Broker, metadata: {name: default}}"

func trigger(name, subscriber, delivery string) string {
	return fmt.Sprintf("{apiVersion: eventing.knative.dev/v1, kind: Trigger, metadata: {name: %s}, spec: {broker: default, subscriber: %s, delivery: %s}}", name, subscriber, delivery)
}

// set sets keys of config-features until the test ends.
func set(t *testing.T, values map[string]string) {
	t.Helper()
	restore, err := configure("config-features", values)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := restore(); err != nil {
			t.Error(err)
		}
	})
}

// untilAddressed waits until a Broker or Channel, such as Broker/default, has an address of a form, and returns it.
func untilAddressed(t *testing.T, namespace, name, what string, form func(*duckv1.Addressable) bool) *duckv1.Addressable {
	t.Helper()
	var address *duckv1.Addressable
	eventually(t, what, func(ctx context.Context) (err error) {
		if address, err = addressOf(ctx, namespace, name); err == nil && !form(address) {
			err = fmt.Errorf("the address is %+v", address)
		}
		return err
	})
	return address
}

func addressOf(ctx context.Context, namespace, name string) (address *duckv1.Addressable, err error) {
	kind, object, _ := strings.Cut(name, "/")
	switch kind {
	case "Broker":
		var b *eventingv1.Broker
		if b, err = node.Admin.Knative.EventingV1().Brokers(namespace).Get(ctx, object, metav1.GetOptions{}); err == nil {
			address = b.Status.Address
		}
	case "Channel":
		var c *messagingv1.Channel
		if c, err = node.Admin.Knative.MessagingV1().Channels(namespace).Get(ctx, object, metav1.GetOptions{}); err == nil {
			address = c.Status.Address
		}
	}
	if err == nil && address == nil {
		err = fmt.Errorf("%s has no address", name)
	}
	return address, err
}

// post sends an event on a connection of its own, to the ClusterIP of broker-ingress, and returns the status code and the body of the response.
func post(ctx context.Context, to *duckv1.Addressable, id, token string) (int, string, error) {
	service, err := node.Host.CoreV1().Services(harness.SystemNamespace).Get(ctx, "broker-ingress", metav1.GetOptions{})
	if err != nil {
		return 0, "", err
	}
	roots := x509.NewCertPool()
	if to.CACerts != nil {
		roots.AppendCertsFromPEM([]byte(*to.CACerts))
	}
	transport := &http.Transport{
		DisableKeepAlives: true, TLSClientConfig: &tls.Config{RootCAs: roots},
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			_, port, err := net.SplitHostPort(address)
			if err != nil {
				return nil, err
			}
			return new(net.Dialer).DialContext(ctx, network, net.JoinHostPort(service.Spec.ClusterIP, port))
		},
	}
	request, err := newEvent(ctx, to.URL, id, token)
	if err != nil {
		return 0, "", err
	}
	return harness.Exchange(&http.Client{Transport: transport, Timeout: time.Minute}, request)
}

// newEvent returns a request with an event and a bearer token, unless that is "".
func newEvent(ctx context.Context, address, id, token string) (*http.Request, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, address, strings.NewReader("event"))
	if err != nil {
		return nil, err
	}
	for name, value := range map[string]string{"Ce-Specversion": "1.0", "Ce-Id": id, "Ce-Source": "/e2e", "Ce-Type": "order"} {
		request.Header.Set(name, value)
	}
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	return request, nil
}

// TestSenders covers event senders with and without token, whom the default mode, an EventPolicy or a permission allows to send.
func TestSenders(t *testing.T) {
	set(t, map[string]string{"authentication-oidc": "enabled"})
	s, other := node.NewSpace(t, "senders"), node.NewSpace(t, "strangers")
	sink := harness.NewSinkOn(t, node.Address)
	subscriber := sink.At("/")
	s.Apply(t, broker, trigger("all", fmt.Sprintf("{uri: %q}", subscriber.URL), "{}"))
	s.Ready(t, "trigger/all")
	to := untilAddressed(t, s.Name, "Broker/default", "the Broker has an audience", func(a *duckv1.Addressable) bool { return a.Audience != nil })
	cluster := node.AsCluster()
	token := func(namespace, audience string) string {
		t.Helper()
		cluster.ServiceAccount(t, namespace, "sender")
		text, err := cluster.Token(t.Context(), namespace, "sender", audience)
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	own, foreign := token(s.Name, *to.Audience), token(other.Name, *to.Audience)
	wrong, err := cluster.Token(t.Context(), s.Name, "sender", "another")
	if err != nil {
		t.Fatal(err)
	}
	// Each attempt has an event of its own: replicas apply a change one after the other.
	accepted, rejected := map[string]bool{}, map[string]bool{}
	send := post
	until := func(what, name, token string, code int, text string) {
		t.Helper()
		number := 0
		eventually(t, what, func(ctx context.Context) error {
			number++
			id := fmt.Sprintf("%s-%d", name, number)
			got, body, err := send(ctx, to, id, token)
			if err != nil {
				return err
			}
			accepted[id], rejected[id] = got == http.StatusAccepted, got != http.StatusAccepted
			if got != code || !strings.Contains(body, text) {
				return fmt.Errorf("got %d %s, want %d %s", got, body, code, text)
			}
			return nil
		})
	}
	until("a sender needs a token", "none", "", http.StatusUnauthorized, "")
	until("the token needs the audience", "wrong", wrong, http.StatusUnauthorized, "")
	until("another namespace may not send", "foreign", foreign, http.StatusForbidden, "")
	until("the own namespace may send", "own", own, http.StatusAccepted, "")
	send = postByCurl
	until("curl needs a token", "curl-none", "", http.StatusUnauthorized, "")
	until("curl may send with a token", "curl-own", own, http.StatusAccepted, "")
	send = post

	stranger := "system:serviceaccount:" + other.Name + ":sender"
	s.Apply(t, `
apiVersion: eventing.knative.dev/v1alpha1
kind: EventPolicy
metadata: {name: strangers}
spec:
  to: [{ref: {apiVersion: eventing.knative.dev/v1, kind: Broker, name: default}}]
  from: [{sub: "`+stranger+`"}]`)
	s.Ready(t, "eventpolicy/strangers")
	until("the policy allows others", "allowed", foreign, http.StatusAccepted, "")
	until("the policy names all senders", "unnamed", own, http.StatusForbidden, "strangers")
	cluster.Bind(t, s.Name, "system:serviceaccount:"+s.Name+":sender", "ClusterRole", "knative-eventing-sender")
	until("the permission allows", "permitted", own, http.StatusAccepted, "")
	s.Delete(t, "eventpolicy/strangers")
	until("the policy is deleted", "late", foreign, http.StatusForbidden, "")

	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	maps.DeleteFunc(accepted, func(_ string, yes bool) bool { return !yes })
	if err := subscriber.AwaitAll(ctx, slices.Collect(maps.Keys(accepted))); err != nil {
		t.Error(err)
	}
	for _, delivery := range subscriber.Deliveries() {
		switch {
		case rejected[delivery.ID]:
			t.Errorf("event %s of a rejected sender was delivered", delivery.ID)
		case delivery.Header.Get("Authorization") != "":
			t.Errorf("event %s was delivered with the token of its sender", delivery.ID)
		}
	}
}

// secureServer serves a sink over TLS, on a new connection for each request: with the first of two self-signed certificates until change.
type secureServer struct {
	// address is the URL, with a slash at the end.
	address string
	// bundles are what clients must trust, for each certificate.
	bundles [2]string
	current atomic.Int32
}

func newSecureServer(t *testing.T, sink *harness.Sink) *secureServer {
	t.Helper()
	s := &secureServer{}
	var certificates [2]tls.Certificate
	for i := range certificates {
		certificate, key, err := cert.GenerateSelfSignedCertKey(node.Address, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		if certificates[i], err = tls.X509KeyPair(certificate, key); err != nil {
			t.Fatal(err)
		}
		s.bundles[i] = string(certificate)
	}
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", net.JoinHostPort(node.Address, "0"))
	if err != nil {
		t.Fatal(err)
	}
	s.address = "https://" + listener.Addr().String() + "/"
	// Failed handshakes are part of the tests.
	server := &http.Server{Handler: sink, ReadHeaderTimeout: time.Minute, ErrorLog: log.New(io.Discard, "", 0)}
	server.SetKeepAlivesEnabled(false)
	secure := tls.NewListener(listener, &tls.Config{
		MinVersion:     tls.VersionTLS12,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return &certificates[s.current.Load()], nil },
	})
	go func() { _ = server.Serve(secure) }() // ends with http.ErrServerClosed
	t.Cleanup(func() { server.Close() })
	return s
}

// change makes the server use the second certificate.
func (s *secureServer) change() { s.current.Store(1) }

// newTrustBundle creates a ConfigMap with authorities that all deliveries trust until the test ends. change replaces them.
func newTrustBundle(t *testing.T, name, authorities string) (change func(authorities string)) {
	t.Helper()
	configMaps := node.Host.CoreV1().ConfigMaps(harness.SystemNamespace)
	_, err := configMaps.Create(t.Context(), &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{certs.TrustBundleLabelKey: "true"}}, Data: map[string]string{"authorities.pem": authorities},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := configMaps.Delete(context.WithoutCancel(t.Context()), name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	return func(authorities string) {
		t.Helper()
		harness.Edit(t, configMaps, name, func(configMap *corev1.ConfigMap) { configMap.Data["authorities.pem"] = authorities })
	}
}

// ingressFollows returns an error unless the address of the Broker default has the authorities in a Secret, and each replica presents a certificate of
// the one that signs.
func ingressFollows(ctx context.Context, namespace string, secret *corev1.Secret) error {
	to, err := addressOf(ctx, namespace, "Broker/default")
	if err != nil {
		return err
	}
	if to.CACerts == nil {
		return errors.New("the address of the Broker has no authorities")
	}
	if err := contains(*to.CACerts, secret); err != nil {
		return fmt.Errorf("address of the Broker: %w", err)
	}
	at, err := url.Parse(to.URL)
	if err != nil {
		return err
	}
	pods, err := node.ServerPods(ctx)
	if err != nil {
		return err
	}
	return presented(ctx, pods, "8446", signer(secret), at.Hostname())
}

// gatewaysFollow returns an error unless clients can read the authorities in a Secret, and each gateway presents a certificate of the one that signs.
func gatewaysFollow(ctx context.Context, host string, secret *corev1.Secret) error {
	published, err := node.Host.CoreV1().ConfigMaps(harness.SystemNamespace).Get(ctx, harness.HostAuthoritySecret, metav1.GetOptions{})
	if err != nil {
		return err
	}
	if err := contains(published.Data["ca.crt"], secret); err != nil {
		return fmt.Errorf("ConfigMap of clients: %w", err)
	}
	return served(ctx, signer(secret), host)
}

// contains returns an error unless certificates in PEM contain the authority in a Secret that signs and the next one, if any.
func contains(certificates string, secret *corev1.Secret) error {
	for _, key := range []string{corev1.TLSCertKey, "next.crt"} {
		if !strings.Contains(certificates, strings.TrimSpace(string(secret.Data[key]))) {
			return fmt.Errorf("the authority %s is missing", key)
		}
	}
	return nil
}

// signer returns a pool with the authority in a Secret that signs.
func signer(secret *corev1.Secret) *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(secret.Data[corev1.TLSCertKey])
	return pool
}

// TestEncryption covers events that travel over TLS only, from the sender and to subscribers that a Trigger or the operator trusts, while all
// authorities are replaced: senders and clients of HTTPS get no error, and no event is lost.
func TestEncryption(t *testing.T) {
	set(t, map[string]string{"transport-encryption": "strict"})
	s, site := newSpace(t, "encryption", "")
	sink := harness.NewSinkOn(t, node.Address)
	subscriber, deadLetters := sink.At("/"), sink.At("/dead")
	server, bundled := newSecureServer(t, sink), newSecureServer(t, sink)
	address, bundles := server.address, server.bundles
	const retried = "{retry: 30, backoffPolicy: linear, backoffDelay: PT0.2S}"
	s.Apply(t, broker, trigger("all", fmt.Sprintf("{uri: %q, CACerts: %q}", address, bundles[0]), retried),
		trigger("distrustful", fmt.Sprintf("{uri: %q, CACerts: %q}", address+"never", bundles[1]), fmt.Sprintf("{retry: 0, deadLetterSink: {uri: %q}}", deadLetters.URL)))
	s.Ready(t, "trigger/all", "trigger/distrustful")
	to := untilAddressed(t, s.Name, "Broker/default", "the Broker has only an encrypted address", func(a *duckv1.Addressable) bool {
		return strings.HasPrefix(a.URL, "https://") && a.CACerts != nil
	})
	plain := *to
	plain.URL = "http" + strings.TrimPrefix(to.URL, "https")
	eventually(t, "events without TLS are refused", func(ctx context.Context) error {
		code, body, err := post(ctx, &plain, "plain", "")
		if err == nil && code != http.StatusNotFound {
			err = fmt.Errorf("%d %s", code, body)
		}
		return err
	})
	eventually(t, "events with TLS are accepted", func(ctx context.Context) error {
		code, body, err := post(ctx, to, "encrypted", "")
		if err == nil && code != http.StatusAccepted {
			err = fmt.Errorf("%d %s", code, body)
		}
		return err
	})
	eventually(t, "events of curl are accepted", func(ctx context.Context) error {
		code, body, err := postByCurl(ctx, to, "curl", "")
		if err == nil && code != http.StatusAccepted {
			err = fmt.Errorf("%d %s", code, body)
		}
		return err
	})
	mustDistrust(t, func(ctx context.Context) error {
		_, _, err := postByCurl(ctx, &duckv1.Addressable{URL: to.URL}, "distrustful", "")
		return err
	})
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := errors.Join(subscriber.AwaitAll(ctx, []string{"encrypted", "curl"}), deadLetters.AwaitAll(ctx, []string{"encrypted", "curl"})); err != nil {
		t.Fatal(err)
	}

	// From here on, the operator trusts the other server for all deliveries. Deliveries are retried until that takes effect.
	trust := newTrustBundle(t, s.Name, bundled.bundles[0])
	s.Apply(t, trigger("bundled", fmt.Sprintf("{uri: %q}", bundled.address+"bundled"), "{}"))
	s.Ready(t, "trigger/bundled")

	// Senders and clients read the trusted certificates again for each connection, as they must during a rotation.
	var accepted []string
	var events atomic.Int32
	repeat, stop := startLoad(t)
	repeat(func(ctx context.Context, number int) error {
		id := fmt.Sprintf("rotation-%d", number)
		to, err := addressOf(ctx, s.Name, "Broker/default")
		if err != nil {
			return err
		}
		code, body, err := post(ctx, to, id, "")
		if err != nil || code != http.StatusAccepted {
			return fmt.Errorf("event %s: %d %s, %w", id, code, body, err)
		}
		accepted = append(accepted, id)
		events.Add(1)
		return nil
	})
	repeat(func(ctx context.Context, number int) error {
		configMap, err := node.Host.CoreV1().ConfigMaps(harness.SystemNamespace).Get(ctx, harness.HostAuthoritySecret, metav1.GetOptions{})
		if err != nil {
			return err
		}
		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM([]byte(configMap.Data["ca.crt"]))
		transport := &http.Transport{DialContext: dial, DisableKeepAlives: true, TLSClientConfig: &tls.Config{RootCAs: roots}}
		got, err := send(ctx, &http.Client{Transport: transport, Timeout: time.Minute}, site, "")
		if err != nil || got.code != http.StatusOK {
			return fmt.Errorf("request %d: %+v, %w", number, got, err)
		}
		return nil
	})
	node.Rotate(t, harness.AuthoritySecret, func(ctx context.Context, secret *corev1.Secret) error { return ingressFollows(ctx, s.Name, secret) })
	node.Rotate(t, harness.HostAuthoritySecret, func(ctx context.Context, secret *corev1.Secret) error {
		return gatewaysFollow(ctx, strings.TrimPrefix(site, "https://"), secret)
	})
	// The subscriber's owner does the same: trust both, change the certificate, trust the next one alone.
	s.Apply(t, trigger("all", fmt.Sprintf("{uri: %q, CACerts: %q}", address, bundles[0]+bundles[1]), retried))
	s.Ready(t, "trigger/all")
	eventually(t, "both certificates of the subscriber are trusted", func(ctx context.Context) error {
		current, err := node.Admin.Knative.EventingV1().Triggers(s.Name).Get(ctx, "all", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if got := current.Status.SubscriberCACerts; got == nil || strings.Count(*got, "BEGIN CERTIFICATE") != strings.Count(bundles[0]+bundles[1], "BEGIN CERTIFICATE") {
			return errors.New("the status has one certificate")
		}
		return nil
	})
	trust(bundled.bundles[0] + bundled.bundles[1])
	server.change()
	bundled.change()
	trust(bundled.bundles[1])
	s.Apply(t, trigger("all", fmt.Sprintf("{uri: %q, CACerts: %q}", address, bundles[1]), retried))
	s.Ready(t, "trigger/all")
	// Events after the rotation prove that the next certificates alone are trusted.
	rotated := events.Load()
	eventually(t, "events are accepted after the rotation", func(context.Context) error {
		if t.Failed() {
			t.FailNow()
		}
		if more := events.Load() - rotated; more < 20 {
			return fmt.Errorf("%d events since", more)
		}
		return nil
	})
	stop()
	ctx, cancel = context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := errors.Join(subscriber.AwaitAll(ctx, accepted), sink.At("/bundled").AwaitAll(ctx, accepted)); err != nil {
		t.Error(err)
	}
	t.Logf("%d events", len(accepted))
}
