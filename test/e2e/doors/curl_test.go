package doors

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// untrusted is the exit code of curl for a certificate that it cannot verify.
const untrusted = 60

// curl runs curl with the address of a Service of the server, gateway or broker-ingress, for the host name of a URL. It returns the status
// code, the HTTP version and the redirect URL of the response, separated by spaces, and the body. A failure of curl is an *exec.ExitError.
func curl(ctx context.Context, service, address, input string, args ...string) (result, body string, err error) {
	to, err := url.Parse(address)
	if err != nil {
		return "", "", err
	}
	found, err := node.Host.CoreV1().Services(harness.SystemNamespace).Get(ctx, service, metav1.GetOptions{})
	if err != nil {
		return "", "", err
	}
	// Without --disable as the first option, curl reads the configuration of the user.
	all := []string{"--disable", "--noproxy", "*", "--silent", "--show-error", "--max-time", "60", "--write-out", "%{stderr}%{http_code} %{http_version} %{redirect_url}"}
	for _, port := range []string{"80", "443"} {
		all = append(all, "--resolve", to.Hostname()+":"+port+":"+found.Spec.ClusterIP)
	}
	command := exec.CommandContext(ctx, "curl", append(append(all, args...), address)...)
	command.Stdin = strings.NewReader(input)
	var stdout, stderr bytes.Buffer
	command.Stdout, command.Stderr = &stdout, &stderr
	if err := command.Run(); err != nil {
		return "", "", fmt.Errorf("curl %s: %w: %s", address, err, stderr.String())
	}
	return strings.TrimSpace(stderr.String()), stdout.String(), nil
}

// mustDistrust checks that a call of curl without an authority fails, because of the certificate of the server. Replicas get it one after the other.
func mustDistrust(t *testing.T, call func(ctx context.Context) error) {
	t.Helper()
	eventually(t, "curl rejects the certificate", func(ctx context.Context) error {
		err := call(ctx)
		if err == nil {
			t.Error("curl trusts the authority by default")
		}
		if exit := (*exec.ExitError)(nil); errors.As(err, &exit) && exit.ExitCode() == untrusted {
			return nil
		}
		return err
	})
}

// file writes a file for curl, and returns its path.
func file(t *testing.T, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// postByCurl is like post with curl as the sender.
func postByCurl(ctx context.Context, to *duckv1.Addressable, id, token string) (code int, body string, err error) {
	options := []string{
		"--header", "Ce-Specversion: 1.0", "--header", "Ce-Id: " + id, "--header", "Ce-Source: /e2e", "--header", "Ce-Type: order",
		"--header", "Content-Type: text/plain", "--data-binary", "@-",
	}
	if token != "" {
		options = append(options, "--header", "Authorization: Bearer "+token)
	}
	if to.CACerts != nil {
		trusted, err := os.CreateTemp("", "trusted-")
		if err != nil {
			return 0, "", err
		}
		defer os.Remove(trusted.Name())
		_, err = trusted.WriteString(*to.CACerts)
		if err := errors.Join(err, trusted.Close()); err != nil {
			return 0, "", err
		}
		options = append(options, "--cacert", trusted.Name())
	}
	result, body, err := curl(ctx, "broker-ingress", to.URL, "event", options...)
	if err != nil {
		return 0, "", err
	}
	status, _, _ := strings.Cut(result, " ")
	code, err = strconv.Atoi(status)
	return code, body, err
}

// TestCurl covers curl as the client of a Service with HTTPS: both versions of HTTP and of TLS, a certificate that it does not trust, and a
// redirect that keeps method and body.
func TestCurl(t *testing.T) {
	t.Parallel()
	_, address := newSpace(t, "curl", `networking.knative.dev/http-protocol: Redirected`)
	trust := []string{"--cacert", file(t, hostCertificates(t))}
	for name, test := range map[string]struct {
		options []string
		version string
	}{
		"HTTP/1.1":          {[]string{"--http1.1"}, "1.1"},
		"HTTP/2":            {[]string{"--http2"}, "2"},
		"HTTP/2 by TLS 1.2": {[]string{"--http2", "--tlsv1.2", "--tls-max", "1.2"}, "2"},
	} {
		eventually(t, "curl gets a response over "+name, func(ctx context.Context) error {
			result, body, err := curl(ctx, "gateway", address+"/headers", "", append(test.options, trust...)...)
			if err == nil && (result != "200 "+test.version || !strings.Contains(body, `"X-Forwarded-Proto":["https"]`)) {
				err = fmt.Errorf("got %s: %s", result, body)
			}
			return err
		})
	}
	mustDistrust(t, func(ctx context.Context) error {
		_, _, err := curl(ctx, "gateway", address, "")
		return err
	})

	plain := "http" + strings.TrimPrefix(address, "https") + "/upload?query=1"
	eventually(t, "plain requests are redirected", func(ctx context.Context) error {
		result, _, err := curl(ctx, "gateway", plain, "data", append(trust, "--data-binary", "@-")...)
		if want := "308 1.1 " + address + "/upload?query=1"; err == nil && result != want {
			err = fmt.Errorf("got %s, want %s", result, want)
		}
		return err
	})
	input := strings.Repeat("data ", 4_000)
	want := fmt.Sprintf(`"bytes":%d,"sha256":"%x"`, len(input), sha256.Sum256([]byte(input)))
	eventually(t, "the application gets the body after a redirect", func(ctx context.Context) error {
		result, body, err := curl(ctx, "gateway", plain, input, append(trust, "--location", "--data-binary", "@-")...)
		if err == nil && (!strings.HasPrefix(result, "200 2") || !strings.Contains(body, want)) {
			err = fmt.Errorf("got %s: %s", result, body)
		}
		return err
	})
}
