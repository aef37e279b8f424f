package acmecerts

import (
	"encoding/pem"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
)

// TestTransport covers the authorities that the operator trusts for the ACME server, and the bound of its responses.
func TestTransport(t *testing.T) {
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write(make([]byte, 2*maxResponse)) // fails when the client closes the connection
	}))
	t.Cleanup(server.Close)
	get := func(bundle string) (int, error) {
		t.Helper()
		transport, err := transport(Config{Bundle: bundle})
		if err != nil {
			t.Fatal(err)
		}
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		response, err := transport.RoundTrip(request)
		if err != nil {
			return 0, err
		}
		defer response.Body.Close()
		body, err := io.ReadAll(response.Body)
		return len(body), err
	}
	bundle := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	if n, err := get(string(bundle)); n != maxResponse || err != nil {
		t.Errorf("a response has %d bytes, %v, want %d", n, err, maxResponse)
	}
	if _, err := get(""); err == nil {
		t.Error("a server is trusted without acme-ca-bundle")
	}
	if _, err := transport(Config{Bundle: "garbage"}); err == nil {
		t.Error("a bundle without certificates is accepted")
	}
}
