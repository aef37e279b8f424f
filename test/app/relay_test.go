package main

import (
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestRelay checks that requests to /relay, including events, are forwarded with method, headers and body, and that the
// response is returned.
func TestRelay(t *testing.T) {
	var got []string
	target := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		got = []string{r.Method, r.Host, r.URL.RequestURI(), r.Header.Get("Ce-Id"), string(body)}
		w.Header().Set("Seen", "yes")
		w.WriteHeader(http.StatusTeapot)
		_, _ = io.WriteString(w, "short and stout")
	}))
	defer target.Close()
	address, _, _ := start(t, "")
	relayURL := "http://" + address + relayPath + "?host=broker.example.com&to=" + url.QueryEscape(target.URL+"/shop/orders?a=b")
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, relayURL, strings.NewReader("tea"))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Ce-Specversion", "1.0")
	request.Header.Set("Ce-Id", "1")
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"POST", "broker.example.com", "/shop/orders?a=b", "1", "tea"}, got); diff != "" {
		t.Errorf("what arrived (-want +got):\n%s", diff)
	}
	answer := []string{response.Status, response.Header.Get("Seen"), string(body)}
	if diff := cmp.Diff([]string{"418 I'm a teapot", "yes", "short and stout"}, answer); diff != "" {
		t.Errorf("the answer (-want +got):\n%s", diff)
	}
	target.Close()
	if code := statusOf(t, relayURL); code != http.StatusBadGateway {
		t.Errorf("code %d without a listener, want 502", code)
	}
}

func statusOf(t *testing.T, url string) int {
	t.Helper()
	response, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	return response.StatusCode
}
