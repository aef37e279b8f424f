package http2

import (
	"bytes"
	"io"
	"net"
	"net/http"
	"os/exec"
	"testing"
)

// TestConformance runs the tests of h2spec: framing, flow control, states of streams, header compression, and malformed requests (RFC 9113, RFC 7541;
// serving 8-2).
func TestConformance(t *testing.T) {
	address, _ := listen(t, options(func(w http.ResponseWriter, r *http.Request) {
		// Some tests need a request that is open until its body ends, and a body of several bytes.
		io.Copy(io.Discard, r.Body)      //nolint:errcheck // the client may reset the request
		io.WriteString(w, "hello world") //nolint:errcheck // the client may be gone
	}))
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	// The timeout, in seconds, is the time to wait for a frame that does not come.
	out, err := exec.CommandContext(t.Context(), "go", "-C", "../../../../hack/tools", "tool", "h2spec", "--strict", "-h", host, "-p", port, "-o", "5").CombinedOutput()
	if err != nil || !bytes.Contains(out, []byte(" 0 failed")) {
		t.Errorf("h2spec: %v\n%s", err, out)
	}
}
