package hostcerts

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/serving/certificates"
	"github.com/knative-apiserver/knative-apiserver/pkg/replica/membership"
	"github.com/knative-apiserver/knative-apiserver/pkg/replica/peer"
)

// heap returns the bytes of live objects.
func heap() int64 {
	// The second collection frees objects of finalizers and pools.
	runtime.GC()
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return int64(stats.HeapAlloc)
}

// counter counts the bytes that are read.
type counter struct {
	io.Reader
	n *atomic.Int64
}

func (c counter) Read(b []byte) (int, error) {
	n, err := c.Reader.Read(b)
	c.n.Add(int64(n))
	return n, err
}

// TestManyCertificates covers the memory of 10,000 certificates in a replica that issues them and in a gateway, and checks that a change
// sends only the changed certificate to the gateway.
func TestManyCertificates(t *testing.T) {
	const many = 10000
	// Bounds for each certificate, in bytes: three to four times the measured ones.
	const maxIssued, maxHeld, maxSent = 16 << 10, 16 << 10, 3 << 10
	i := newIssuer(t)
	requests := make([]Request, many)
	for n := range requests {
		requests[n] = Request{Host: fmt.Sprintf("host-%d.example.com", n)}
	}
	c := newControl(t, i, "")
	empty := heap()
	c.Set(t.Context(), owner("Route", "all"), requests)
	issued := heap()

	store, client := &certificates.Store{}, peer.NewClient(i.peerTLS(t, "knative-gateways"))
	var sent atomic.Int64
	r := NewReceiver(ReceiverOptions{
		Connect: func(ctx context.Context, read func(io.Reader) error) error {
			call := peer.Call{Method: http.MethodGet, Path: "/" + Element, Read: func(stream io.Reader) error { return read(counter{stream, &sent}) }}
			return call.Do(ctx, client, membership.Member{Name: "control", Address: c.address})
		},
		Store: store, Clock: clock.RealClock{}, Logger: klog.Background(),
	})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); r.Run(ctx) }()
	defer func() { cancel(); <-done; client.CloseIdleConnections() }()
	<-r.Synced()
	held := heap()
	for _, request := range requests {
		if !store.Has(request.Host) {
			t.Fatalf("the gateway has no certificate of %s", request.Host)
		}
	}
	all := sent.Load()
	t.Logf("bytes for each certificate: %d of the issuer, %d of the gateway, %d sent", (issued-empty)/many, (held-issued)/many, all/many)
	if issued-empty > maxIssued*many || held-issued > maxHeld*many || all > maxSent*many {
		t.Errorf("want at most %d, %d and %d", maxIssued, maxHeld, maxSent)
	}

	c.Set(t.Context(), owner("Route", "one"), []Request{{Host: "one.example.com"}})
	limit := time.After(time.Minute)
	for !store.Has("one.example.com") {
		select {
		case <-limit:
			t.Fatal("the gateway did not get the change")
		case <-time.After(time.Millisecond):
		}
	}
	if change := sent.Load() - all; change > 10*maxSent {
		t.Errorf("a change of one certificate sent %d bytes", change)
	}
	hello := &tls.ClientHelloInfo{ServerName: "host-9999.example.com"}
	// Allocations of other goroutines count too.
	if n := testing.AllocsPerRun(10000, func() { store.GetCertificate(hello) }); n != 0 { //nolint:errcheck // returns none
		t.Errorf("a lookup allocates %v times", n)
	}
}
