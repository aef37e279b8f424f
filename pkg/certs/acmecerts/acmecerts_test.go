package acmecerts

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/crypto/acme"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"
)

const namespace = "knative-system"

// newIssuer returns an Issuer that does not run.
func newIssuer(client kubernetes.Interface, config Config, c clock.WithTicker) *Issuer {
	return New(Options{
		Client: client, Namespace: namespace, ClusterDomain: "cluster.local", Config: func() Config { return config }, Clock: c, Logger: klog.Background(),
	})
}

// newRecord returns the record of a self-signed certificate.
func newRecord(t *testing.T, host string, now time.Time, valid time.Duration) record {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(now.UnixNano()), DNSNames: []string{host}, NotBefore: now, NotAfter: now.Add(valid)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	encoded, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return record{Certificate: [][]byte{der}, Key: encoded, Directory: "https://acme.example/dir", Renew: renewal(leaf)}
}

var accepted = Config{Directory: "https://acme.example/dir", AcceptTerms: true}

// TestOrderable covers the host names for which nothing is ordered.
func TestOrderable(t *testing.T) {
	i := newIssuer(nil, accepted, clock.RealClock{})
	private := accepted
	private.Bundle = "x"
	for host, want := range map[string][2]bool{
		"hello.default.example.com":       {true, true},
		"hello.192.0.2.1.sslip.io":        {true, true},
		"shop.github.io":                  {true, true},
		"hello.default.internal-name":     {false, true},
		"hello.localhost":                 {false, true},
		"com":                             {false, true},
		"hello":                           {false, true},
		"hello.default.svc.cluster.local": {false, false},
		"cluster.local":                   {false, false},
		"192.0.2.1":                       {false, false},
		"*.example.com":                   {false, false},
		"not-cluster.local":               {false, true},
		strings.Repeat("a", 63) + ".example.co.uk": {true, true},
	} {
		if got := i.orderable(host, accepted) == nil; got != want[0] {
			t.Errorf("orderable(%q) = %v with a public ACME server, want %v", host, got, want[0])
		}
		if got := i.orderable(host, private) == nil; got != want[1] {
			t.Errorf("orderable(%q) = %v with a private ACME server, want %v", host, got, want[1])
		}
	}
}

// TestFairness covers that orders are bounded and alternate among namespaces, and that failed host names wait.
func TestFairness(t *testing.T) {
	now := clocktesting.NewFakeClock(time.Now())
	i := newIssuer(fake.NewClientset(), accepted, now)
	for n := range 10 {
		i.Require(fmt.Sprintf("a%d.example.com", n), "greedy")
	}
	i.Require("b.example.com", "other")
	i.Require("c.example.com", "third")
	namespaces := map[string]int{}
	var begun []string
	for host := i.next(accepted); host != ""; host = i.next(accepted) {
		begun = append(begun, host)
		namespaces[i.wanted[host]]++
	}
	if len(begun) != maxOrders || namespaces["other"] != 1 || namespaces["third"] != 1 || namespaces["greedy"] != maxOrders-2 {
		t.Errorf("began %v, want %d orders, one of each namespace first", begun, maxOrders)
	}

	// The order of one fails: the next host name of another namespace begins.
	failing := begun[0]
	next := i.failed(t.Context(), failing, record{}, &acme.Error{StatusCode: http.StatusForbidden, ProblemType: "urn:ietf:params:acme:error:rejectedIdentifier", Detail: "no"})
	if err := i.save(t.Context(), failing, next); err != nil {
		t.Fatal(err)
	}
	i.setStage(failing, "")
	if _, state := i.Certificate(failing); !state.Failed || !strings.Contains(state.Problem, "rejectedIdentifier") || !strings.Contains(state.Problem, "retrying at ") {
		t.Errorf("the state is %+v, want the problem and the time of the next order", state)
	}
	if host := i.next(accepted); host == failing || host == "" {
		t.Errorf("began %q after a failure of %q", host, failing)
	}
	for _, host := range slices.Concat(begun, []string{"a0.example.com", "a1.example.com", "a2.example.com"}) {
		i.setStage(host, "")
	}
	now.Step(i.options.FirstRetry)
	for host := range i.wanted {
		if host != failing {
			i.Release(host)
		}
	}
	if host := i.next(accepted); host != failing {
		t.Errorf("began %q after the delay, want %q", host, failing)
	}
}

// TestBackoff covers the delays after failures, which double up to a limit.
func TestBackoff(t *testing.T) {
	now := clocktesting.NewFakeClock(time.Now())
	i := newIssuer(fake.NewClientset(), accepted, now)
	r, last := record{}, time.Duration(0)
	for n := range 20 {
		r = i.failed(t.Context(), "a.example.com", r, &acme.OrderError{Status: acme.StatusInvalid})
		delay := r.Retry.Sub(now.Now())
		if r.Failures != n+1 || delay < last || delay > lastRetry {
			t.Errorf("after %d failures the delay is %s, before it was %s", r.Failures, delay, last)
		}
		last = delay
	}
	if last != lastRetry {
		t.Errorf("the delay is %s in the end, want %s", last, lastRetry)
	}
	r = i.failed(t.Context(), "a.example.com", record{Failures: 3}, &url.Error{Op: "Get", URL: accepted.Directory, Err: errors.New("connection refused\n" + strings.Repeat("x", 10_000))})
	if r.Failures != 3 || r.Retry.Sub(now.Now()) != outagePause {
		t.Errorf("an unreachable ACME server counts as failure of the host name: %+v", r)
	}
	if len(r.Problem) > maxProblem || !strings.HasSuffix(r.Problem, "...") || strings.Contains(r.Problem, "\n") {
		t.Errorf("the problem has %d bytes", len(r.Problem))
	}
	if i.Require("b.example.com", "default"); i.next(accepted) != "" {
		t.Error("an order begins right after the ACME server did not respond")
	}
	if now.Step(outagePause); i.next(accepted) != "b.example.com" {
		t.Error("no order begins after the pause")
	}
}

// TestRenewal covers the time of renewals and that certificates of another directory are replaced.
func TestRenewal(t *testing.T) {
	now := clocktesting.NewFakeClock(time.Now().Truncate(time.Second))
	i := newIssuer(fake.NewClientset(), accepted, now)
	const host, lifetime = "a.example.com", 90 * 24 * time.Hour
	r := newRecord(t, host, now.Now(), lifetime)
	if at := r.Renew.Sub(now.Now()); at > lifetime*2/3 || at < lifetime*2/3-lifetime/20 {
		t.Errorf("the certificate is renewed after %s", at)
	}
	if err := i.save(t.Context(), host, r); err != nil {
		t.Fatal(err)
	}
	i.Require(host, "default")
	certificate, state := i.Certificate(host)
	if certificate == nil || !state.Ready || state.Outdated || state.Problem != "" {
		t.Errorf("the state is %+v", state)
	}
	if i.next(accepted) != "" {
		t.Error("a new certificate is renewed")
	}
	other := accepted
	if other.Directory += "2"; !i.due(host, now.Now(), other) {
		t.Error("the certificate of another directory is not due")
	}
	now.Step(lifetime * 2 / 3)
	if got := i.next(accepted); got != host {
		t.Errorf("began %q, want a renewal", got)
	}
	now.Step(lifetime)
	if _, state := i.Certificate(host); !state.Outdated || !strings.Contains(state.Problem, "expired") {
		t.Errorf("the state is %+v, want expired", state)
	}
}

// TestRestart covers that another replica reads certificates, failures, pauses and challenges from the Secrets, and that deleted ones are removed.
func TestRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset()
		first := newIssuer(client, accepted, clock.RealClock{})
		const good, bad = "good.example.com", "bad.example.com"
		r := newRecord(t, good, time.Now(), 24*time.Hour)
		pending := challenge{Host: bad, Type: TLSALPN01, Token: "t", Response: "t.r", Expires: time.Now().Add(time.Hour).UTC()}
		if err := errors.Join(first.save(t.Context(), good, r), first.save(t.Context(), bad, first.failed(t.Context(), bad, record{}, &acme.OrderError{})),
			first.setChallenge(t.Context(), bad, pending)); err != nil {
			t.Fatal(err)
		}
		first.setPause(t.Context(), time.Hour, "the server is busy")

		second := newIssuer(client, accepted, clock.RealClock{})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); second.Run(ctx) }()
		defer func() { cancel(); <-done }()
		changed := make(chan []string, 100)
		second.Subscribe(func(hosts []string) { changed <- hosts })
		second.Await(t.Context())
		// Await may return before the Secrets are watched.
		synctest.Wait()
		if certificate, state := second.Certificate(good); certificate == nil || !state.Ready || !slices.Equal(certificate.Certificate[0], r.Certificate[0]) {
			t.Errorf("the state is %+v", state)
		}
		if _, state := second.Certificate(bad); !state.Failed || !strings.Contains(state.Problem, "retrying at") {
			t.Errorf("the state is %+v, want the failure", state)
		}
		if got := second.Challenge(bad); got == nil || got.Token != "t" || got.Response != "t.r" || !got.TLS {
			t.Errorf("the challenge is %+v", got)
		}
		second.Require("new.example.com", "default")
		if _, state := second.Certificate("new.example.com"); !strings.Contains(state.Problem, "the server is busy") || second.next(accepted) != "" {
			t.Errorf("the state is %+v, want a pause", state)
		}

		for len(changed) > 0 {
			<-changed
		}
		if err := client.CoreV1().Secrets(namespace).Delete(t.Context(), shardOf(good), metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if certificate, _ := second.Certificate(good); certificate != nil || len(changed) == 0 {
			t.Errorf("the deleted certificate remains: %t; %d changes", certificate != nil, len(changed))
		}
	})
}

// TestInvalidSecrets covers Secrets with garbage.
func TestInvalidSecrets(t *testing.T) {
	i := newIssuer(fake.NewClientset(), accepted, clock.RealClock{})
	const host = "a.example.com"
	other := newRecord(t, "b.example.com", time.Now(), time.Hour)
	foreign, err := json.Marshal(other)
	if err != nil {
		t.Fatal(err)
	}
	for _, raw := range []string{"", "{", `{"certificate":["AA=="],"key":"AA=="}`, `{"certificate":[""]}`, string(foreign), "null"} {
		i.apply(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: shardOf(host)}, Data: map[string][]byte{host: []byte(raw)}})
		if certificate, state := i.Certificate(host); certificate != nil || state.Ready {
			t.Errorf("%q is a certificate", raw)
		}
	}
	i.apply(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: accountSecret}, Data: map[string][]byte{challengesKey: []byte("{"), pauseKey: []byte("x")}})
	if i.Challenge(host) != nil {
		t.Error("garbage is a challenge")
	}
	for _, data := range []map[string][]byte{{keyKey: []byte("x")}, {keyKey: []byte("-----BEGIN PRIVATE KEY-----\nAA==\n-----END PRIVATE KEY-----\n")}} {
		if _, err := accountKey(&corev1.Secret{Data: data}); err == nil {
			t.Errorf("%q is a key", data)
		}
	}
	if _, err := externalBinding(&corev1.Secret{Data: map[string][]byte{bindingIDKey: []byte("id"), bindingHMACKey: []byte("?")}}); err == nil {
		t.Error("garbage is an external account binding")
	}
	if got, err := externalBinding(&corev1.Secret{Data: map[string][]byte{bindingIDKey: []byte("id\n"), bindingHMACKey: []byte("a2V5\n")}}); err != nil || got.KID != "id" || string(got.Key) != "key" {
		t.Errorf("the external account binding is %+v, %v", got, err)
	}
}

// TestRateLimit covers an ACME server that limits requests: the time of Retry-After passes before the next one, also after a restart.
func TestRateLimit(t *testing.T) {
	var requests atomic.Int64
	mux := http.NewServeMux()
	server := httptest.NewTLSServer(mux)
	defer server.Close()
	mux.HandleFunc("/dir", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, `{"newNonce":%q,"newAccount":%q,"newOrder":%q}`, server.URL+"/nonce", server.URL+"/account", server.URL+"/order")
	})
	mux.HandleFunc("/nonce", func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Replay-Nonce", "n") })
	mux.HandleFunc("/account", func(w http.ResponseWriter, _ *http.Request) {
		requests.Add(1)
		w.Header().Set("Retry-After", "7200")
		w.Header().Set("Content-Type", "application/problem+json")
		w.WriteHeader(http.StatusTooManyRequests)
		fmt.Fprint(w, `{"type":"urn:ietf:params:acme:error:rateLimited","detail":"too many accounts"}`)
	})
	config := Config{
		Directory: server.URL + "/dir", AcceptTerms: true,
		Bundle: string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})),
	}
	client := fake.NewClientset()
	i := newIssuer(client, config, clock.RealClock{})
	const host = "a.example.com"
	i.Require(host, "default")
	if got := i.next(config); got != host {
		t.Fatalf("began %q", got)
	}
	i.order(t.Context(), host, config)
	if got := requests.Load(); got != 1 {
		t.Errorf("%d requests, want no retry", got)
	}
	_, state := i.Certificate(host)
	if !state.Failed || !strings.Contains(state.Problem, "too many accounts") {
		t.Errorf("the state is %+v", state)
	}
	if wait := time.Until(i.pausedUntil); wait < time.Hour || wait > 2*time.Hour {
		t.Errorf("orders are paused for %s, want two hours", wait)
	}

	restarted := newIssuer(client, config, clock.RealClock{})
	for _, name := range SecretNames() {
		if s, err := client.CoreV1().Secrets(namespace).Get(t.Context(), name, metav1.GetOptions{}); err == nil {
			restarted.apply(s)
		}
	}
	restarted.Require(host, "default")
	restarted.Require("b.example.com", "default")
	if got := restarted.next(config); got != "" {
		t.Errorf("after a restart began %q", got)
	}
}

// TestChoose covers the choice of a challenge.
func TestChoose(t *testing.T) {
	offered := []*acme.Challenge{{Type: "dns-01"}, {Type: TLSALPN01}, {Type: HTTP01}}
	for _, test := range []struct {
		only     string
		failures int
		want     string
	}{{"", 0, HTTP01}, {"", 1, TLSALPN01}, {"", 2, HTTP01}, {TLSALPN01, 0, TLSALPN01}, {HTTP01, 1, HTTP01}} {
		if got := choose(offered, test.only, test.failures); got == nil || got.Type != test.want {
			t.Errorf("choose(%q, %d) = %+v, want %s", test.only, test.failures, got, test.want)
		}
	}
	if got := choose(offered[:1], "", 0); got != nil {
		t.Errorf("chose %+v", got)
	}
}
