package gateway

import (
	"errors"
	"io"
	"net/http"
	"net/netip"
	"testing"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/serving/http1"
)

// lateBody ends when its request has been answered.
type lateBody struct{ answered func() }

func (b lateBody) Read([]byte) (int, error) {
	b.answered()
	return 0, io.EOF
}

func (b lateBody) Close() error { return nil }

// TestBodyOutlivesExchange covers that the transport may read the end of a body, with its trailers, after the request
// has been answered and its exchange serves another one.
func TestBodyOutlivesExchange(t *testing.T) {
	g := New(Options{})
	g.SetRevision(revision(0))
	p := poolOf(g)
	if refusal := p.tenant.admit(); refusal != nil {
		t.Fatal(refusal)
	}
	x := g.begin(p, netip.AddrPort{}, "")
	in := &http.Request{Trailer: http.Header{"X-T": nil}}
	x.request = in
	f := &forward{exchange: x}
	out := &http.Request{Trailer: http.Header{"X-T": nil}, Body: lateBody{func() {
		in.Trailer.Set("X-T", "end")
		x.Done(http1.Result{})
	}}}
	body := newMeteredRequest(f, in, out)
	if _, err := body.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("the body ends with %v", err)
	}
	if got := out.Trailer.Get("X-T"); got != "end" {
		t.Errorf("trailer %q, want that of the client", got)
	}
}
