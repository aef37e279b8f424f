package serving

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"regexp"
	"syscall"
	"testing"
	"time"

	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

var gatewayOf = regexp.MustCompile(`knative-apiserver is ready at (\S+), kubeconfig (\S+) \(gateway ([^,)\s]+)`)

// startWithFiles runs a server with a limit of open files.
func startWithFiles(t *testing.T, files int) *server {
	t.Helper()
	binary, err := harness.Binary()
	if err != nil {
		t.Fatal(err)
	}
	process, err := harness.StartProcess(nil, "/bin/sh", "-c", `ulimit -n "$1" && shift && exec "$@"`, "sh", fmt.Sprint(files),
		binary, "standalone", "--data-dir", filepath.Join(t.TempDir(), "data"), "--secure-port", "0", "--gateway-port", "0")
	if err != nil {
		t.Fatal(err)
	}
	process.StopAfter(t)
	match, err := process.WaitForOutput(gatewayOf)
	if err != nil {
		t.Fatal(err)
	}
	s, err := newServer(&harness.Standalone{Process: process, URL: match[1], Kubeconfig: match[2], Gateway: match[3]})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestConnectionsRunOut opens more connections, which send nothing or incomplete headers, than a server with few files accepts.
// Requests of other clients are answered.
func TestConnectionsRunOut(t *testing.T) {
	t.Parallel()
	const files, idlers, requests = 1024, 400, 20
	s := startWithFiles(t, files).newSite(t, "scarce", instances("1"))
	for i := range idlers {
		w := s.mustDial(t)
		if i%2 == 0 {
			if _, err := io.WriteString(w, "GET / HTTP/1.1\r\nHost: "); err != nil {
				t.Fatal(err)
			}
		}
	}
	send := func() error {
		w, err := s.dial(t.Context())
		if err != nil {
			return err
		}
		defer w.Close()
		a, err := w.exchange(http.MethodGet, get(s.host, "/"))
		if err == nil && a.code != http.StatusOK {
			err = fmt.Errorf("%d %s", a.code, a.body)
		}
		return err
	}
	const maxRetries = 2
	retries := 0
	for range requests {
		began := time.Now()
		err := send()
		if closed := errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE); closed && retries < maxRetries {
			// The gateway closes a connection that has sent no request for 2 s, as one does while this process is stalled.
			retries++
			err = send()
		}
		if err != nil {
			t.Fatalf("after %s among %d idle connections a request failed: %v", time.Since(began), idlers, err)
		}
	}
	if _, err := s.Send(t.Context(), harness.Request{Method: http.MethodGet, Path: "/readyz"}); err != nil {
		t.Errorf("the API server is not reached: %v", err)
	}
}
