package sender

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/event"
	"github.com/knative-apiserver/knative-apiserver/pkg/egress"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
)

// TestDisclosure covers the hosts whose responses a namespace may see.
func TestDisclosure(t *testing.T) {
	// An alias is a Service of type ExternalName.
	aliases := map[string]string{
		"hello.shop.svc.cluster.local.": "gateway-internal.knative-system.svc.cluster.local.",
		"alias.shop.svc.cluster.local.": "admin.bank.svc.cluster.local.",
		"own.shop.svc.cluster.local.":   "web.shop.svc.cluster.local.",
	}
	lookup := func(_ context.Context, host string) (string, error) {
		if strings.HasPrefix(host, "missing.") {
			return "", errors.New("no such host")
		}
		if alias := aliases[host]; alias != "" {
			return alias, nil
		}
		return host, nil
	}
	cluster := ClusterHosts("cluster.local", lookup, "gateway-internal.knative-system.svc.cluster.local")
	for _, tt := range []struct {
		host           string
		cluster, local bool
	}{
		{host: "web.shop.svc.cluster.local", cluster: true},
		{host: "web.shop.svc", cluster: true},
		{host: "WEB.shop.svc.Cluster.Local.", cluster: true},
		{host: "hello.shop.svc.cluster.local", cluster: true},
		{host: "hello.shop.localhost", local: true},
		{host: "alias.shop.svc.cluster.local"},
		{host: "alias.shop.svc"},
		{host: "own.shop.svc.cluster.local"},
		{host: "missing.shop.svc.cluster.local"},
		{host: "web.bank.svc.cluster.local"},
		{host: "shop.bank.svc"},
		{host: "web.shop.svc.evil.example"},
		{host: "web.shop"},
		{host: "web.shop.pod"},
		{host: "shop.localhost"},
		{host: "a.web.shop.localhost"},
		{host: "localhost"},
		{host: "10.0.0.1"},
		{host: "::1"},
		{host: ""},
	} {
		if got := cluster(t.Context(), tt.host, "shop"); got != tt.cluster {
			t.Errorf("%s in a cluster: %t", tt.host, got)
		}
		if got := LocalHosts(t.Context(), tt.host, "shop"); got != tt.local {
			t.Errorf("%s on this machine: %t", tt.host, got)
		}
	}
}

// TestUndisclosed repeats finding 6 of the security review: the answers of an internal server are not disclosed to a tenant that names it
// as a destination, nor is the address of a refused one.
func TestUndisclosed(t *testing.T) {
	const secret = `{"secret":"internal-data-not-for-tenants"}`
	internal := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/ok" {
			w.Header().Set("Content-Type", "application/cloudevents+json")
			fmt.Fprint(w, `{"specversion":"1.0","id":"1","source":"/a","type":"t","time":"internal-data"}`)
			return
		}
		http.Error(w, secret, http.StatusForbidden)
	})
	key := eventing.Key{Kind: eventing.Trigger, Namespace: "shop", Name: "t"}
	send := func(o Options, to eventing.Endpoint, reply bool) Result {
		s := New(o)
		defer s.Close()
		return s.Send(t.Context(), order(), to, Attempt{Consumer: key, ExpectReply: reply})
	}
	port := internal.URL[strings.LastIndexByte(internal.URL, ':'):]
	for name, tt := range map[string]struct {
		path      string
		reply     bool
		discloses Disclosure
		want      bool
	}{
		"an error":                   {path: "/admin"},
		"a body that is not a reply": {path: "/ok", reply: true},
		"an error, local":            {path: "/admin", discloses: LocalHosts, want: true},
		"of its own namespace":       {path: "/admin", discloses: func(_ context.Context, host, ns string) bool { return host == "x.shop.localhost" && ns == "shop" }, want: true},
		"of another one's":           {path: "/admin", discloses: func(_ context.Context, _, ns string) bool { return ns == "bank" }},
		"of a reply that is own":     {path: "/ok", reply: true, discloses: LocalHosts, want: true},
	} {
		t.Run(name, func(t *testing.T) {
			result := send(Options{Discloses: tt.discloses}, eventing.Endpoint{URL: "http://x.shop.localhost" + port + tt.path}, tt.reply)
			if disclosed := strings.Contains(fmt.Sprint(string(result.Body), result.ReplyErr), "internal-data"); disclosed != tt.want {
				t.Errorf("code %d, body %q, %v, disclosed must be %t", result.Code, result.Body, result.ReplyErr, tt.want)
			}
			if tt.reply && result.ReplyErr == nil {
				t.Error("it is a reply")
			}
			if result.Err != nil && strings.Contains(result.Err.Error(), "internal-data") {
				t.Errorf("the error quotes the body: %v", result.Err)
			}
		})
	}

	refused := egress.New(egress.Options{}).Dialer(egress.ForEvents, DialTimeout)
	texts := map[string]bool{}
	for _, host := range []string{"127.0.0.1" + port, "localhost" + port, "x.shop.localhost" + port, "127.0.0.1:1", "169.254.169.254", "[::ffff:127.0.0.1]" + port, "0.0.0.0" + port} {
		for _, scheme := range []string{"http", "https"} {
			result := send(Options{Dial: refused, Discloses: LocalHosts}, eventing.Endpoint{URL: scheme + "://" + host + "/"}, false)
			if !errors.Is(result.Err, egress.ErrRefused) || result.Code != 0 || !result.Retryable {
				t.Errorf("%s://%s: %+v", scheme, host, result)
				continue
			}
			texts[strings.Replace(result.Err.Error(), scheme+"://"+host, "", 1)] = true
		}
	}
	if len(texts) != 1 {
		t.Errorf("refused addresses can be distinguished: %v", texts)
	}
}

// TestWithoutQuotes checks that errors, which tenants see in conditions and dead letters, do not contain data from the recipient.
func TestWithoutQuotes(t *testing.T) {
	for name, answer := range map[string]string{
		"banner":       "SSH-2.0-secret\r\n",
		"status":       "HTTP/1.1 secret\r\n\r\n",
		"header":       "HTTP/1.1 200 OK\r\nsecret\r\n\r\n",
		"length":       "HTTP/1.1 200 OK\r\nContent-Length: secret\r\n\r\n",
		"coding":       "HTTP/1.1 200 OK\r\nTransfer-Encoding: secret\r\n\r\n",
		"chunk":        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nsecret\r\n",
		"trailer":      "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nsecret\r\n\r\n",
		"after 1xx":    "HTTP/1.1 102 Processing\r\n\r\nsecret\r\n\r\n",
		"body of a 20": "HTTP/1.1 20 secret\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			result := newSender(t, Options{}).Send(t.Context(), order(), raw(t, answer), Attempt{ExpectReply: true})
			if result.Err == nil || strings.Contains(result.Err.Error(), "secret") {
				t.Errorf("%+v", result)
			}
		})
	}
}

// TestToken checks that only the recipient gets a token, not the target of a redirect, and that a body that quotes it is not part of the
// result, even if the namespace may see the recipient's answers.
func TestToken(t *testing.T) {
	const token = "eyJhbGciOiJSUzI1NiIsImtpZCI6ImtleSJ9.eyJzdWIiOiJvcmRlcnMifQ.c2lnbmF0dXJl"
	var authorization []string
	body := ""
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		authorization = append(authorization, r.URL.Path+" "+r.Header.Get("Authorization"))
		if r.URL.Path == "/redirect" {
			http.Redirect(w, r, "/elsewhere", http.StatusTemporaryRedirect)
			return
		}
		w.WriteHeader(http.StatusBadRequest)
		fmt.Fprint(w, body)
	}))
	defer server.Close()
	s := New(Options{Discloses: func(context.Context, string, string) bool { return true }})
	defer s.Close()
	send := func(path, token string) Result {
		t.Helper()
		to := strings.Replace(server.URL, "http://", "http://user:password@", 1) + path
		return s.Send(t.Context(), &event.Event{Attributes: []event.Attribute{{Name: event.ID, Value: "1"}}}, eventing.Endpoint{URL: to}, Attempt{Token: token})
	}
	send("/", token)
	send("/", "")
	send("/redirect", token)
	want := []string{"/ Bearer " + token, "/ Basic dXNlcjpwYXNzd29yZA==", "/redirect Bearer " + token}
	if !slices.Equal(authorization, want) {
		t.Errorf("requests with %q, want %q", authorization, want)
	}
	for _, quoted := range []struct {
		body string
		kept bool
	}{
		{"bad event", true}, {"Authorization: Bearer " + token, false}, {"token " + token[:len(token)/2], false}, {"signature c2lnbmF0dXJl", false},
	} {
		body = quoted.body
		if got := send("/", token); (string(got.Body) == quoted.body) != quoted.kept || strings.Contains(got.Err.Error(), token[:10]) {
			t.Errorf("body %q: result %q, %v", quoted.body, got.Body, got.Err)
		}
		if got := send("/", ""); string(got.Body) != quoted.body {
			t.Errorf("body %q without a token: result %q", quoted.body, got.Body)
		}
	}
}
