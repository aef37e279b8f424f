package aggregated

import (
	stdcontext "context"
	"fmt"
	"net"
	"net/http"
	"reflect"
	"strconv"
	"syscall"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// shutdownDelay is the time that the server of the tests serves after SIGTERM.
const shutdownDelay = 3 * time.Second

// TestShutdown sends SIGTERM to the server under load: it reports not ready first, serves for the delay, finishes requests in
// flight, closes watches, and keeps its registration (P3).
func TestShutdown(t *testing.T) {
	ns := host.Namespace(t, "shutdown", nil)
	anonymous := clientsOf(t, direct(t))
	arrived, finish := make(chan struct{}), make(chan struct{})
	registerValidating(t, ns, rule("messaging.knative.dev", "channels", admissionregistrationv1.Create),
		func(_ stdcontext.Context, r *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
			if r.DryRun != nil && *r.DryRun {
				return deny("registered")
			}
			close(arrived)
			<-finish
			return allow()
		})
	channel := harness.KindOf("Channel").Object(ns, "late")
	within(t, rediscovery, "the webhook is registered", func() error {
		if response := post(t, host.Admin, channel, "dryRun=All"); response.Code != http.StatusForbidden {
			return fmt.Errorf("code %d", response.Code)
		}
		return nil
	})
	before := registrations(t)
	watch, err := host.Admin.Dynamic.Resource(harness.KindOf("Broker").GVR()).Namespace(ns).Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer watch.Stop()
	inFlight := make(chan *harness.Response, 1)
	go func() {
		response, err := host.Admin.Send(t.Context(), harness.Request{Method: http.MethodPost, Path: kindOf(channel).Collection(ns), Body: channel})
		if err != nil {
			response = &harness.Response{Body: []byte(err.Error())}
		}
		inFlight <- response
	}()
	<-arrived
	l := startLoad(t, ns)
	l.more(t, 20)

	if err := syscall.Kill(host.Server.PID(), syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	terminated := time.Now()
	harness.Eventually(t, "/readyz fails", func() error {
		if response := anonymous.Do(t, harness.Request{Method: http.MethodGet, Path: "/readyz"}); response.Code != http.StatusInternalServerError {
			return fmt.Errorf("code %d", response.Code)
		}
		return nil
	})
	wantCode(t, anonymous.Do(t, harness.Request{Method: http.MethodGet, Path: "/livez"}), http.StatusOK)
	for time.Since(terminated) < shutdownDelay-time.Second {
		l.more(t, 20)
	}
	l.stop()
	l.done.Wait()
	if err := l.failed(); err != nil {
		t.Errorf("calls failed during the delay: %v", err)
	}
	address := net.JoinHostPort(host.Address, strconv.Itoa(host.Port))
	harness.Eventually(t, "the server accepts no more connections", func() error {
		connection, err := net.Dial("tcp", address)
		if err == nil {
			connection.Close()
			return fmt.Errorf("it does")
		}
		return nil
	})
	close(finish)
	wantCode(t, <-inFlight, http.StatusCreated)
	for range watch.ResultChan() { // until the server closes it
	}
	if code, err := host.Server.ExitCode(); err != nil || code != 0 {
		t.Errorf("exit code %d, %v", code, err)
	}
	if after := registrations(t); !reflect.DeepEqual(after, before) {
		t.Errorf("the registrations changed from %v to %v", before, after)
	}
	if err := host.Start(); err != nil {
		t.Fatal(err)
	}
	wantCode(t, get(t, host.Admin, channel), http.StatusOK)
}

// registrations returns UID and spec of the APIServices.
func registrations(t *testing.T) map[string]any {
	t.Helper()
	result := map[string]any{}
	all, err := host.Admin.Registrations(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, service := range all {
		result[service.GetName()] = []any{service.GetUID(), service.Object["spec"], service.GetDeletionTimestamp()}
	}
	return result
}
