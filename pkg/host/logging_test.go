package host

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/go-logr/logr/funcr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
)

// TestWithoutBodies checks that a client logs requests, but no content of a Secret, at the highest level.
func TestWithoutBodies(t *testing.T) {
	const key = "cHJpdmF0ZS1rZXk="
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if _, err := w.Write([]byte(`{"kind":"Secret","apiVersion":"v1","metadata":{"name":"tls"},"data":{"tls.key":"` + key + `"}}`)); err != nil {
			t.Error(err)
		}
	}))
	defer server.Close()
	client, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	var log strings.Builder
	ctx := klog.NewContext(t.Context(), funcr.New(func(prefix, args string) { log.WriteString(prefix + args + "\n") }, funcr.Options{Verbosity: 10}))
	quiet := WithoutBodies(ctx)
	if _, err := client.CoreV1().Secrets("default").Get(quiet, "tls", metav1.GetOptions{}); err != nil {
		t.Fatal(err)
	}
	klog.FromContext(quiet).WithName("certificates").WithValues("name", "tls").V(8).Info("has " + key)
	klog.FromContext(quiet).WithName("certificates").V(7).Info("Read Secret")
	if text := log.String(); strings.Contains(text, key) || !strings.Contains(text, "Read Secret") {
		t.Errorf("the log is %s", text)
	}
	if _, err := client.CoreV1().Secrets("default").Get(ctx, "tls", metav1.GetOptions{}); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(log.String(), key) {
		t.Error("the client does not log bodies: this test proves nothing")
	}
}
