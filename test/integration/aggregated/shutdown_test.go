package aggregated

import (
	stdcontext "context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"reflect"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// shutdownDelay is the time that the server of the tests serves after SIGTERM: longer than a busy machine may stop a process.
const shutdownDelay = 8 * time.Second

// TestShutdown sends SIGTERM to the server under load: it reports not ready first, serves for the delay, finishes requests in
// flight, closes watches, and keeps its registration (P3).
func TestShutdown(t *testing.T) {
	host.StartAfter(t)
	ns := host.Namespace(t, "shutdown", nil)
	anonymous := clientsOf(t, direct(t))
	arrived, finished := make(chan struct{}), make(chan struct{})
	finish := sync.OnceFunc(func() { close(finished) })
	registerValidating(t, ns, rule("messaging.knative.dev", "channels", admissionregistrationv1.Create),
		func(_ stdcontext.Context, r *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
			if r.DryRun != nil && *r.DryRun {
				return deny("registered")
			}
			close(arrived)
			<-finished
			return allow()
		})
	t.Cleanup(finish) // before the webhook is closed, which waits for its requests
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
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		for range watch.ResultChan() {
		}
	}()
	l := startLoad(t, ns)
	l.more(t, 20)
	// The webhook may take webhookTimeout.
	inFlight := make(chan *harness.Response, 1)
	go func() {
		response, err := host.Admin.Send(t.Context(), harness.Request{Method: http.MethodPost, Path: kindOf(channel).Collection(ns), Body: channel})
		if err != nil {
			response = &harness.Response{Body: []byte(err.Error())}
		}
		inFlight <- response
	}()
	select {
	case <-arrived:
	case response := <-inFlight:
		t.Fatalf("the request ended without the webhook: code %d: %s", response.Code, response.Body)
	}

	served, stops := l.served.Load(), time.Now().Add(shutdownDelay)
	if err := syscall.Kill(host.Server.PID(), syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	// On a slow machine an answer may come after the delay, when nothing is promised any more.
	answers := func(path string, code int) error {
		response, err := anonymous.Send(t.Context(), harness.Request{Method: http.MethodGet, Path: path})
		if (err != nil || response.Code != code) && time.Now().Before(stops) {
			return fmt.Errorf("%s: %+v, %w", path, response, err)
		}
		return nil
	}
	harness.Eventually(t, "it is not ready", func() error { return answers("/readyz", http.StatusInternalServerError) })
	if err := answers("/livez", http.StatusOK); err != nil {
		t.Error(err)
	}
	<-time.After(time.Until(stops))
	l.stop()
	l.done.Wait()
	if err := l.failed(stops); err != nil {
		t.Errorf("calls failed during the delay: %v", err)
	}
	if l.served.Load() == served {
		t.Error("no call was served during the delay")
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
	finish()
	wantCode(t, <-inFlight, http.StatusCreated)
	harness.Eventually(t, "the server closes the watch", func() error {
		select {
		case <-closed:
			return nil
		default:
			return errors.New("it is open")
		}
	})
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
