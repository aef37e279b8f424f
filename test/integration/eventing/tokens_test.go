package eventing

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// collector is a server that records the spans that it receives, without decoding them.
type collector struct {
	address string

	mu       sync.Mutex
	received bytes.Buffer // guarded by mu
}

// rawCodec passes messages as bytes.
type rawCodec struct{}

func (rawCodec) Marshal(v any) ([]byte, error)      { return *v.(*[]byte), nil }
func (rawCodec) Unmarshal(data []byte, v any) error { *v.(*[]byte) = slices.Clone(data); return nil }
func (rawCodec) Name() string                       { return "raw" }

func newCollector(t *testing.T) *collector {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := &collector{address: listener.Addr().String()}
	s := grpc.NewServer(grpc.ForceServerCodec(rawCodec{}), grpc.UnknownServiceHandler(func(_ any, stream grpc.ServerStream) error {
		var message, empty []byte
		if err := stream.RecvMsg(&message); err != nil {
			return err
		}
		c.mu.Lock()
		c.received.Write(message)
		c.mu.Unlock()
		return stream.SendMsg(&empty)
	}))
	go s.Serve(listener) //nolint:errcheck // ends by Stop
	t.Cleanup(s.Stop)
	return c
}

func (c *collector) spans() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.received.String()
}

// forms returns a text unchanged, and in its encodings within base64.
func forms(text string) []string {
	all := []string{text}
	for offset := range 3 {
		encoded := base64.StdEncoding.EncodeToString([]byte(strings.Repeat("-", offset) + text))
		// The characters at both ends depend on the surrounding text.
		all = append(all, encoded[4:len(encoded)-4])
	}
	return all
}

// contains reports whether content has a text in one of its forms.
func contains(content, text string) bool {
	return slices.ContainsFunc(forms(text), func(form string) bool { return strings.Contains(content, form) })
}

// TestTokensAreNeverRecorded sends valid and invalid tokens to all ports, and searches them in all output of the server: its log at the
// highest level, metrics, spans, access log, event log and storage, deliveries and dead letters.
func TestTokensAreNeverRecorded(t *testing.T) {
	t.Parallel()
	// All tokens contain the secret. The marker is recorded everywhere, as a check of the search.
	const secret, marker = "Sentinel-Of-A-Bearer-Token", "Marker-Of-An-Event"
	const valid, invalid = "valid." + secret, "invalid." + secret
	spans, dir := newCollector(t), t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	data, config := path("data"), path("config")
	write := func(path, content string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	features := func(authentication string) {
		t.Helper()
		write(filepath.Join(config, "features.yaml"), "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: config-features\ndata:\n  authentication-oidc: "+authentication+
			"\n  default-authorization-mode: allow-all\n")
	}
	if err := os.Mkdir(config, 0o755); err != nil {
		t.Fatal(err)
	}
	features("enabled")
	write(path("tokens.csv"), valid+`,jane,1,"knative:invokers"`+"\n")
	write(path("tracing.yaml"), "apiVersion: apiserver.config.k8s.io/v1\nkind: TracingConfiguration\nendpoint: "+spans.address+"\nsamplingRatePerMillion: 1000000\n")
	s := start(t, data, "--v=10", "--config-dir", config, "--token-auth-file", path("tokens.csv"), "--tracing-config-file", path("tracing.yaml"),
		"--access-log", path("access.log"))

	// Requests to a restricted and an open Service, by both paths of the gateway. The open one gets the token.
	const ns = "shop"
	for name, invocation := range map[string]string{"restricted": servingv1.InvocationRBAC, "open": servingv1.InvocationOpen} {
		host := s.invocable(t, ns, name, invocation)
		for _, token := range []string{valid, invalid} {
			for _, http2 := range []bool{false, true} {
				var code int
				var body string
				harness.Eventually(t, "the caller is verified", func() error {
					// The gateway returns 503 if it cannot verify the caller within 5 s.
					if code, body = s.call(t, host, "/headers?"+marker, token, http2); code == http.StatusServiceUnavailable {
						return fmt.Errorf("%d %s", code, body)
					}
					return nil
				})
				if want := map[bool]int{true: http.StatusOK, false: http.StatusUnauthorized}[name == "open" || token == valid]; code != want {
					t.Errorf("%s Service, token %q: %d %s, want %d", name, token, code, body, want)
				}
				if got := strings.Contains(body, secret); got != (name == "open") {
					t.Errorf("%s Service, token %q: the response %q has the token: %v", name, token, body, got)
				}
			}
		}
	}

	// Events to a Broker and a Channel whose subscribers fail, with a dead letter sink, with and without verification.
	sink := harness.NewSink(t)
	subscriber, dead := sink.At("/"), sink.At("/dead")
	subscriber.Answer(func(d *harness.Delivery) harness.Answer {
		return harness.Answer{Code: http.StatusServiceUnavailable, Body: "rejected: " + fmt.Sprint(d.Header)}
	})
	broker, channel := s.broker(t, ns, "orders"), s.channel(t, ns, "orders")
	deadLetters := func() *duckv1.DeliverySpec { return deadTo(uri(dead.URL), retries(2, "PT0.01S")) }
	s.trigger(t, ns, "orders", "all", subscriber.URL, delivered(deadLetters()))
	// The events stay in the event log.
	s.trigger(t, ns, "orders", "waiting", subscriber.URL, delivered(retries(5, "PT1H")))
	s.subscribe(t, newSubscription(ns, "orders", "orders", to(uri(subscriber.URL)), with(deadLetters())))
	var accepted []string
	post := func(prefix string, wantInvalid int) {
		t.Helper()
		for name, address := range map[string]string{"broker": broker, "channel": channel} {
			for token, want := range map[string]int{valid: http.StatusAccepted, invalid: wantInvalid} {
				for _, structured := range []bool{false, true} {
					id := fmt.Sprintf("%s-%s-%d-%v", prefix, name, want, structured)
					m := binary(id, `{"note":"`+marker+`"}`, map[string]string{"Content-Type": "application/json", "Ce-Marker": marker})
					if structured {
						m = encoded("application/cloudevents+json", fmt.Sprintf(`{"specversion":"1.0","id":%q,"type":"order","source":"/test","marker":%q}`, id, marker))
					}
					m.header["Authorization"] = "Bearer " + token
					if a := m.sendVerified(t, address); a.code != want {
						t.Errorf("event %s with token %q: %d %s, want %d", id, token, a.code, a.body, want)
					} else if want == http.StatusAccepted && !slices.Contains(accepted, id) {
						accepted = append(accepted, id)
					}
				}
			}
		}
	}
	post("verified", http.StatusUnauthorized)
	features("disabled")
	harness.Eventually(t, "senders are not verified", func() error {
		for _, address := range []string{broker, channel} {
			if a := binary("open", "{}", map[string]string{"Content-Type": "application/json"}).send(t, address); a.code != http.StatusAccepted {
				return fmt.Errorf("%d %s", a.code, a.body)
			}
		}
		return nil
	})
	post("open", http.StatusAccepted)
	if err := dead.AwaitAll(bounded(t), accepted); err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, "spans arrive", func() error {
		if !contains(spans.spans(), accepted[len(accepted)-1]) {
			return fmt.Errorf("%d bytes", len(spans.spans()))
		}
		return nil
	})
	metrics := s.Do(t, harness.Request{Method: http.MethodGet, Path: "/metrics", Accept: "text/plain"})
	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}

	// recorded maps the name of each record to its content, and markers to a text that it must contain.
	recorded := map[string]string{"log": s.Log(), "metrics": string(metrics.Body), "spans": spans.spans()}
	markers := map[string]string{"log": "restricted", "metrics": "knative_callers_reviews_total", "spans": accepted[0]}
	for name, root := range map[string]string{"access log": path("access.log"), "data": data} {
		recorded[name], markers[name] = contentOf(t, root), marker
	}
	for name, subscriber := range map[string]*harness.Subscriber{"deliveries": subscriber, "dead letters": dead} {
		markers[name] = marker
		for _, d := range subscriber.Deliveries() {
			recorded[name] += fmt.Sprintln(d.Header, string(d.Body))
		}
	}
	for name, content := range recorded {
		if !contains(content, markers[name]) {
			t.Errorf("the %s of %d bytes does not contain %q", name, len(content), markers[name])
		}
		for _, form := range forms(secret) {
			if i := strings.Index(content, form); i >= 0 {
				t.Errorf("the %s contains a token: %q", name, content[max(0, i-300):min(len(content), i+len(form)+50)])
			}
		}
	}
}

// invocable deploys the sample application and returns the host name of its Service.
func (s *server) invocable(t *testing.T, namespace, name, invocation string) string {
	t.Helper()
	services := s.Knative.ServingV1().Services(namespace)
	create(t, services, &servingv1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Annotations: map[string]string{servingv1.InvocationAnnotationKey: invocation}},
		Spec: servingv1.ServiceSpec{ConfigurationSpec: servingv1.ConfigurationSpec{Template: servingv1.RevisionTemplateSpec{
			Spec: servingv1.RevisionSpec{PodSpec: corev1.PodSpec{Containers: []corev1.Container{{Image: "ko.local/app", Command: []string{harness.AppBinary(t)}}}}},
		}}},
	})
	ready := eventually(t, services, name, "is ready", func(service *servingv1.Service) error {
		return condition(service, &service.Status.Status, duckv1.ConditionReady, corev1.ConditionTrue, "")
	})
	address, err := url.Parse(ready.Status.URL)
	if err != nil {
		t.Fatal(err)
	}
	return address.Host
}

// call sends a request with a token to a host of the gateway.
func (s *server) call(t *testing.T, host, path, token string, http2 bool) (code int, body string) {
	t.Helper()
	gateway, err := url.Parse(s.Gateway)
	if err != nil {
		t.Fatal(err)
	}
	protocols := new(http.Protocols)
	protocols.SetHTTP1(!http2)
	protocols.SetUnencryptedHTTP2(http2)
	transport := &http.Transport{Protocols: protocols, DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, net.JoinHostPort("127.0.0.1", gateway.Port()))
	}}
	defer transport.CloseIdleConnections()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+host+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Authorization", "Bearer "+token)
	response, err := (&http.Client{Transport: transport, Timeout: harness.Patience}).Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	content, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(content)
}

// contentOf returns the content of a file, or of all files of a directory.
func contentOf(t *testing.T, root string) string {
	t.Helper()
	var all strings.Builder
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		content, err := os.ReadFile(path)
		all.Write(content)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all.String()
}
