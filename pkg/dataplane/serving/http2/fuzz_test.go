package http2

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/flow"
)

// frames returns the frames that write writes.
func frames(write func(f *http2.Framer) error) []byte {
	var b bytes.Buffer
	if err := write(http2.NewFramer(&b, nil)); err != nil {
		panic(err)
	}
	return b.Bytes()
}

// FuzzServer sends any bytes after the preface. The server must not panic, and must release all memory and end all requests when the connection ends.
func FuzzServer(f *testing.F) {
	head := block(":method", "POST", ":scheme", "http", ":authority", "a", ":path", "/", "te", "trailers", "content-length", "3")
	get := block(":method", "GET", ":scheme", "http", ":authority", "a", ":path", "/large")
	trailer := block("a", "b")
	for _, seed := range [][]byte{
		nil,
		frames(func(f *http2.Framer) error {
			return errors.Join(
				f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: head, EndHeaders: true}),
				f.WriteData(1, false, []byte("ab")),
				f.WriteDataPadded(1, true, []byte("c"), make([]byte, 9)),
			)
		}),
		frames(func(f *http2.Framer) error {
			return errors.Join(
				f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: get[:4]}),
				f.WriteContinuation(1, true, get[4:]),
				f.WriteHeaders(http2.HeadersFrameParam{StreamID: 3, BlockFragment: get, EndHeaders: true, EndStream: true}),
				f.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0}),
				f.WriteWindowUpdate(3, 1<<20),
				f.WriteRSTStream(1, http2.ErrCodeCancel),
				f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: trailer, EndHeaders: true, EndStream: true}),
			)
		}),
		frames(func(f *http2.Framer) error {
			return errors.Join(
				f.WritePing(false, [8]byte{1}),
				f.WritePriority(5, http2.PriorityParam{StreamDep: 7}),
				f.WriteGoAway(0, http2.ErrCodeNo, []byte("bye")),
				f.WritePing(true, drainPing),
				f.WritePushPromise(http2.PushPromiseParam{StreamID: 1, PromiseID: 2, EndHeaders: true}),
				f.WriteRawFrame(77, 3, 9, []byte("unknown")),
			)
		}),
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, input []byte) {
		var running atomic.Int64
		o := options(func(w http.ResponseWriter, r *http.Request) {
			running.Add(1)
			defer running.Add(-1)
			io.Copy(io.Discard, r.Body) //nolint:errcheck // the client may reset the request
			w.Header().Set("Trailer", "X-End")
			if r.URL.Path == "/large" {
				w.Write(make([]byte, 100_000)) //nolint:errcheck // as above
			}
			w.Header().Set("X-End", r.Method)
		})
		o.Budget = flow.NewBudget(1<<20, 0)
		s := NewServer(o)
		near, far := net.Pipe()
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			s.ServeConn(context.Background(), near)
		}()
		go io.Copy(io.Discard, far) //nolint:errcheck // ends with the connection
		if err := far.SetWriteDeadline(time.Now().Add(patience)); err != nil {
			t.Fatal(err)
		}
		begin := frames(func(f *http2.Framer) error { return f.WriteSettings() })
		far.Write(slices.Concat([]byte(http2.ClientPreface), begin, input)) //nolint:errcheck // the server may close the connection
		far.Close()
		select {
		case <-ended:
		case <-time.After(patience):
			t.Fatal("the connection is still served")
		}
		for end := time.Now().Add(patience); running.Load() > 0 || o.Budget.Held(bodies) > 0; {
			if time.Now().After(end) {
				t.Fatalf("%d requests, and %d bytes", running.Load(), o.Budget.Held(bodies))
			}
			<-time.After(time.Millisecond)
		}
		s.Stop()
	})
}
