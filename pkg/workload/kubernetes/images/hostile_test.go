package images

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/flow"
	"github.com/knative-apiserver/knative-apiserver/pkg/egress"
	"github.com/knative-apiserver/knative-apiserver/pkg/settings"
)

const manifestType = "application/vnd.oci.image.manifest.v1+json"

// hostile is a registry with arbitrary responses, as a tenant may name one.
func hostile(t *testing.T, handle http.HandlerFunc) (image string) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v2/" {
			return
		}
		handle(w, r)
	}))
	t.Cleanup(server.Close)
	return server.Listener.Addr().String() + "/shop/cart:v1"
}

// endless writes until the client disconnects, and counts the bytes.
func endless(w http.ResponseWriter, sent *atomic.Int64, piece string) {
	for {
		n, err := w.Write([]byte(strings.Repeat(piece, 4096)))
		sent.Add(int64(n))
		if err != nil {
			return
		}
	}
}

// TestLimits repeats finding 5 of the security review: a registry that a tenant names cannot make the server read or
// allocate more than the size limits of an image's manifest and configuration.
func TestLimits(t *testing.T) {
	var sent atomic.Int64
	config := func(size int64) string {
		return fmt.Sprintf(`{"schemaVersion":2,"mediaType":%q,"config":{"mediaType":"application/vnd.oci.image.config.v1+json","size":%d,"digest":"sha256:%x"},"layers":[]}`,
			manifestType, size, sha256.Sum256(nil))
	}
	manifest := func(w http.ResponseWriter, content string) {
		w.Header().Set("Content-Type", manifestType)
		fmt.Fprint(w, content)
	}
	for name, tt := range map[string]struct {
		handle http.HandlerFunc
		// digest is true if the digest is known although the user is not.
		digest bool
	}{
		"endless manifest": {handle: func(w http.ResponseWriter, _ *http.Request) { endless(w, &sent, " ") }},
		"endless error": {handle: func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusBadGateway)
			endless(w, &sent, " ")
		}},
		"announced manifest": {handle: func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Content-Length", "4000000000") }},
		"manifest of millions of layers": {handle: func(w http.ResponseWriter, _ *http.Request) {
			manifest(w, strings.TrimSuffix(config(0), "]}")+strings.Repeat("{},", 1<<20)+"{}]}")
		}},
		"stated size of the configuration": {digest: true, handle: func(w http.ResponseWriter, r *http.Request) {
			if strings.Contains(r.URL.Path, "/blobs/") {
				endless(w, &sent, "\x00")
				return
			}
			manifest(w, config(4_000_000_000))
		}},
		"endless configuration": {digest: true, handle: func(w http.ResponseWriter, r *http.Request) {
			if strings.Contains(r.URL.Path, "/blobs/") {
				endless(w, &sent, "\x00")
				return
			}
			manifest(w, config(1000))
		}},
		"huge header": {handle: func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("X", strings.Repeat("x", 1<<20)) }},
	} {
		t.Run(name, func(t *testing.T) {
			sent.Store(0)
			r, _ := newResolver(nil)
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			got, err := r.Resolve(t.Context(), Pull{Namespace: "shop"}, hostile(t, tt.handle))
			runtime.ReadMemStats(&after)
			if err != nil {
				t.Fatal(err)
			}
			if (got.Warning == "") != tt.digest || got.Known {
				t.Errorf("%+v", got)
			}
			// The allocations of the test's server and of the sockets are included.
			if allocated := after.TotalAlloc - before.TotalAlloc; allocated > 128<<20 {
				t.Errorf("%d MiB were allocated", allocated>>20)
			}
		})
	}
}

// TestMemoryOfResponses checks that the responses of registries count against the memory of the namespace while an image is read, and that
// a namespace without memory gets a warning.
func TestMemoryOfResponses(t *testing.T) {
	const size = 2 << 20
	for name, tt := range map[string]struct {
		limit int64
		want  string
	}{
		"memory for it":    {64 << 20, ""},
		"too little of it": {8 << 20, ": the namespace holds too much memory"},
	} {
		t.Run(name, func(t *testing.T) {
			reached, proceed := make(chan bool), make(chan bool)
			image := hostile(t, func(w http.ResponseWriter, r *http.Request) {
				if strings.Contains(r.URL.Path, "/blobs/") {
					reached <- true
					<-proceed
					return
				}
				w.Header().Set("Content-Type", manifestType)
				fmt.Fprintf(w, `{"schemaVersion":2,"mediaType":%q,"config":{"mediaType":"application/vnd.oci.image.config.v1+json","size":1000,"digest":"sha256:%x"},"layers":[],"annotations":{"a":%q}}`,
					manifestType, sha256.Sum256(nil), strings.Repeat("x", size))
			})
			r, _ := newResolver(nil)
			budget := flow.NewBudget(tt.limit, 0)
			r.options.Budget = budget
			type result struct {
				image Image
				err   error
			}
			done := make(chan result, 1)
			go func() {
				image, err := r.Resolve(t.Context(), Pull{Namespace: "shop"}, image)
				done <- result{image, err}
			}()
			if tt.want == "" {
				<-reached
				if held := budget.Held("shop"); held < size {
					t.Errorf("%d bytes are held while the configuration is read, want the size of the manifest", held)
				}
				close(proceed)
			}
			got := <-done
			if got.err != nil || !strings.HasSuffix(got.image.Warning, tt.want) || (tt.want == "") != (got.image.Warning == "") {
				t.Errorf("%+v, %v, want a warning %q", got.image, got.err, tt.want)
			}
			if budget.Used() != 0 {
				t.Errorf("%d bytes are held after the image was read", budget.Used())
			}
		})
	}
}

// TestNothingOfTheResponse repeats finding 7 of the security review: messages for tenants are short and contain no part of
// the response of the server that an image's name refers to.
func TestNothingOfTheResponse(t *testing.T) {
	const secret = "internal-data-not-for-tenants"
	var followed atomic.Int32
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		followed.Add(1)
		if r.Header.Get("Authorization") != "" {
			t.Errorf("credentials went to another host: %s", r.URL)
		}
		http.Error(w, secret, http.StatusTeapot)
	}))
	defer other.Close()
	for name, tt := range map[string]struct {
		handle http.HandlerFunc
		want   string
	}{
		"body of an error": {func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, strings.Repeat(secret, 1000), http.StatusForbidden)
		},
			"the registry responds with 403 Forbidden"},
		"body of a missing image": {func(w http.ResponseWriter, _ *http.Request) { http.Error(w, secret, http.StatusNotFound) },
			"the registry responds with 404 Not Found"},
		"error of the protocol": {func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusNotFound)
			fmt.Fprintf(w, `{"errors":[{"code":%q,"message":%q},{"code":"MANIFEST_UNKNOWN","message":%q}]}`, secret, secret, secret)
		}, "the registry responds with 404 Not Found MANIFEST_UNKNOWN"},
		"not HTTP": {func(w http.ResponseWriter, _ *http.Request) {
			conn, _, err := w.(http.Hijacker).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			defer conn.Close()
			fmt.Fprintf(conn, "SSH-2.0-%s\r\n", secret)
		}, "the response is not a response of a registry"},
		"redirect": {func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, other.URL+"/v2/x", http.StatusFound) },
			"the registry responds with 418 I'm a teapot"},
		"redirects": {func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, r.URL.Path+"x", http.StatusFound) },
			"the registry redirects more than 5 times"},
		"redirect to the metadata service": {func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://metadata.localhost.invalid:1/", http.StatusFound)
		}, "the name of the registry cannot be resolved"},
		"redirect to a refused address": {func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://0.0.0.0:1/", http.StatusFound)
		},
			"the response is not a response of a registry"},
		"realm at a refused address": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("WWW-Authenticate", `Bearer realm="http://0.0.0.0:1/token"`)
			w.WriteHeader(http.StatusUnauthorized)
		}, "the registry responds with 401 Unauthorized"},
	} {
		t.Run(name, func(t *testing.T) {
			r, _ := newResolver(nil)
			image := hostile(t, tt.handle)
			got, err := r.Resolve(t.Context(), Pull{Namespace: "shop"}, image)
			text := got.Warning
			if missing := (*MissingError)(nil); errors.As(err, &missing) {
				text = missing.Error()
			} else if err != nil {
				t.Fatal(err)
			}
			if !strings.HasSuffix(text, ": "+tt.want) || strings.Contains(text, secret) || len(text) > maxReason+200 {
				t.Errorf("%q, want %q", text, tt.want)
			}
		})
	}
	transport := newTransport(egress.New(egress.Options{}))
	transport.proxy = func(r *http.Request) bool { return r.URL.Port() == "2" }
	for _, address := range []string{other.URL, "http://169.254.169.254:1/", "http://169.254.169.254:2/"} {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, address, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		if res, err := transport.RoundTrip(request); !errors.Is(err, egress.ErrRefused) {
			t.Errorf("%s: %v, %v", address, res, err)
			res.Body.Close()
		}
	}
	if followed.Load() == 0 {
		t.Error("the redirect was not followed")
	}
}

// TestRefusedRegistry checks that a registry at a refused address is treated like one that does not respond.
func TestRefusedRegistry(t *testing.T) {
	h := newHost(t)
	tag, _ := h.push(t, "")
	current := settings.Default("example.com")
	r := New(Options{Client: fake.NewClientset(), Settings: func() *settings.Settings { return &current }, Logger: klog.Background(), Guard: egress.New(egress.Options{})})
	before := h.manifests.Load()
	got, err := r.Resolve(t.Context(), Pull{Namespace: "shop"}, tag)
	if err != nil || got.Reference != tag || !strings.HasSuffix(got.Warning, egress.ErrRefused.Error()) || h.manifests.Load() != before {
		t.Errorf("%+v, %v", got, err)
	}
}

// TestQueue repeats finding 14 of the security review: a namespace whose registries do not respond does not use up the
// concurrency of others, and waiting requests can be canceled.
func TestQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		queue := newQueue()
		var flood sync.WaitGroup
		ctx, giveUp := context.WithCancel(t.Context())
		begun := atomic.Int32{}
		for range 200 {
			flood.Go(func() {
				if queue.Acquire(ctx, "flood", 1) == nil {
					begun.Add(1)
				}
			})
		}
		synctest.Wait()
		if begun.Load() != concurrencyPerNamespace {
			t.Errorf("%d of the flood are in progress", begun.Load())
		}
		for i := range concurrency - concurrencyPerNamespace {
			if err := queue.Acquire(t.Context(), fmt.Sprint("calm", i), 1); err != nil {
				t.Fatal(err)
			}
		}
		// All places are occupied: the next free one is for a namespace other than the flood.
		late := make(chan struct{})
		go func() {
			defer close(late)
			if err := queue.Acquire(t.Context(), "late", 1); err != nil {
				t.Error(err)
			}
		}()
		synctest.Wait()
		queue.Release("flood")
		queue.Release("calm0")
		<-late
		giveUp()
		flood.Wait()
		for range begun.Load() - 1 {
			queue.Release("flood")
		}
		for i := range concurrency - concurrencyPerNamespace - 1 {
			queue.Release(fmt.Sprint("calm", i+1))
		}
		queue.Release("late")
		// All places are free.
		for i := range concurrency {
			if err := queue.Acquire(t.Context(), fmt.Sprint("next", i), 1); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// TestSlowRegistry checks that a slow registry delays its own namespace only, and that a request to it is canceled when no
// caller waits.
func TestSlowRegistry(t *testing.T) {
	h := newHost(t)
	tag, digest := h.push(t, "")
	current := settings.Default("example.com")
	current.Deployment.DigestTimeout = time.Hour
	r := New(Options{Client: fake.NewClientset(), Settings: func() *settings.Settings { return &current }, Clock: clock.RealClock{}, Logger: klog.Background(),
		Guard: egress.New(egress.Options{AllowLoopback: true})})
	slow := hostile(t, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	ctx, giveUp := context.WithCancel(t.Context())
	var flood sync.WaitGroup
	for i := range 3 * concurrency {
		flood.Go(func() {
			if _, err := r.Resolve(ctx, Pull{Namespace: "flood"}, fmt.Sprint(slow, i)); !errors.Is(err, context.Canceled) {
				t.Errorf("a slow registry: %v", err)
			}
		})
	}
	got, err := r.Resolve(t.Context(), Pull{Namespace: "shop"}, tag)
	if err != nil || got.Reference != digest {
		t.Errorf("%+v, %v", got, err)
	}
	giveUp()
	flood.Wait()
	// The places are free.
	for i := range concurrencyPerNamespace {
		if err := r.queue.Acquire(t.Context(), "flood", 1); err != nil {
			t.Fatal(i, err)
		}
	}
}
