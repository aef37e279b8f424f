package serving

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/gorilla/websocket"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// dial connects to the gateway for every address.
func (s *space) dial(ctx context.Context, network, _ string) (net.Conn, error) {
	return new(net.Dialer).DialContext(ctx, network, s.Gateway)
}

// TestH2C covers HTTP/2 without TLS, from the client to the container (serving 8-2).
func TestH2C(t *testing.T) {
	t.Parallel()
	s := newSpace(t, "h2c", nil)
	service := s.deploy(t, s.app("hello", h2c))
	transport := &http.Transport{Protocols: new(http.Protocols), DialContext: s.dial}
	transport.Protocols.SetUnencryptedHTTP2(true)
	defer transport.CloseIdleConnections()
	for what, client := range map[string]*http.Client{"HTTP/1.1": s.http, "h2c": {Transport: transport, Timeout: answerTimeout}} {
		body := mustGet(t, client, service.Status.URL+"/headers")
		if got := decoded[struct{ Proto string }](t, body).Proto; got != "HTTP/2.0" {
			t.Errorf("a request by %s reaches the container by %s", what, got)
		}
	}
}

// TestGRPC covers calls and streams with metadata, header and trailer (serving 8-2).
func TestGRPC(t *testing.T) {
	t.Parallel()
	s := newSpace(t, "grpc", nil)
	service := s.deploy(t, s.app("hello", h2c))
	conn, err := grpc.NewClient("passthrough:///gateway", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithAuthority(host(t, service.Status.URL)),
		grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) { return s.dial(ctx, "tcp", address) }))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ctx := metadata.AppendToOutgoingContext(t.Context(), "x-echo", "hello")

	var header, trailer metadata.MD
	got, err := grpc_health_v1.NewHealthClient(conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{}, grpc.Header(&header), grpc.Trailer(&trailer))
	if err != nil || got.Status != grpc_health_v1.HealthCheckResponse_SERVING {
		t.Fatalf("a call answered %v, %v", got, err)
	}
	if fmt.Sprint(header["x-echo"], trailer["x-echo-trailer"], trailer["x-messages"]) != "[hello] [hello] [1]" {
		t.Errorf("the call's header is %v, its trailer %v", header, trailer)
	}
	err = conn.Invoke(ctx, "/test.Test/Fail", &wrapperspb.StringValue{}, &wrapperspb.StringValue{})
	if got := status.Convert(err); got.Code() != codes.Internal || got.Message() != "failing, as asked for" {
		t.Errorf("a call that fails ended with %v", err)
	}

	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, "/test.Test/Echo")
	if err != nil {
		t.Fatal(err)
	}
	const messages = 20
	for i := range messages {
		// Each message is larger than the previous one, up to many frames.
		want := strings.Repeat("m", 1<<i)
		if err := stream.SendMsg(wrapperspb.String(want)); err != nil {
			t.Fatal(err)
		}
		got := &wrapperspb.StringValue{}
		if err := stream.RecvMsg(got); err != nil || got.Value != want {
			t.Fatalf("a message of %d bytes was returned with %d, %v", len(want), len(got.Value), err)
		}
	}
	if err := stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
	if err := stream.RecvMsg(&wrapperspb.StringValue{}); !errors.Is(err, io.EOF) {
		t.Errorf("after the last message the stream ended with %v", err)
	}
	if got := stream.Trailer()["x-messages"]; fmt.Sprint(got) != fmt.Sprintf("[%d]", messages) {
		t.Errorf("the trailer reports %v messages, want %d", got, messages)
	}
}

// TestHTTP1 covers HTTP/1.1: WebSocket, server-sent events without delay, large bodies, and the headers that the gateway adds
// (serving 8).
func TestHTTP1(t *testing.T) {
	t.Parallel()
	s := newSpace(t, "http1", nil)
	service := s.deploy(t, s.app("hello"))
	name := host(t, service.Status.URL)

	t.Run("WebSocket", func(t *testing.T) {
		dialer := websocket.Dialer{NetDialContext: s.dial, HandshakeTimeout: answerTimeout}
		conn, response, err := dialer.DialContext(t.Context(), "ws://"+name+"/ws", nil)
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		defer conn.Close()
		for _, kind := range []int{websocket.TextMessage, websocket.BinaryMessage} {
			want := strings.Repeat("message ", 10_000)
			if err := conn.WriteMessage(kind, []byte(want)); err != nil {
				t.Fatal(err)
			}
			if gotKind, got, err := conn.ReadMessage(); gotKind != kind || string(got) != want || err != nil {
				t.Errorf("a message of kind %d was returned as kind %d with %d bytes, %v", kind, gotKind, len(got), err)
			}
		}
	})
	t.Run("server-sent events", func(t *testing.T) {
		// The application sends the next event an hour later.
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, service.Status.URL+"/sse?n=2&every=1h", nil)
		if err != nil {
			t.Fatal(err)
		}
		response, err := s.http.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		if line, err := bufio.NewReader(response.Body).ReadString('\n'); err != nil || line != "data: event 0\n" {
			t.Errorf("the first event is %q, %v", line, err)
		}
		if got := s.get(t, service.Status.URL+"/sse?n=3&every=5ms"); got != "data: event 0\n\ndata: event 1\n\ndata: event 2\n\n" {
			t.Errorf("three events are %q", got)
		}
	})
	t.Run("large upload", func(t *testing.T) {
		const size = 64 << 20
		hash := sha256.New()
		source := rand.NewChaCha8([32]byte{})
		a, err := ask(t.Context(), s.http, http.MethodPost, service.Status.URL+"/upload", nil, io.TeeReader(io.LimitReader(source, size), hash))
		if err != nil || a.code != http.StatusOK {
			t.Fatalf("%+v, %v", a, err)
		}
		got := decoded[struct {
			Bytes  int64
			SHA256 string
		}](t, a.body)
		if got.Bytes != size || got.SHA256 != hex.EncodeToString(hash.Sum(nil)) {
			t.Errorf("the application got %+v", got)
		}
	})
	t.Run("header", func(t *testing.T) {
		body := s.get(t, service.Status.URL+"/headers")
		got := decoded[struct {
			Host   string
			Header http.Header
		}](t, body)
		if got.Host != name || got.Header.Get("X-Forwarded-Host") != name || got.Header.Get("X-Forwarded-Proto") != "http" || got.Header.Get("X-Forwarded-For") == "" || got.Header.Get("Traceparent") == "" {
			t.Errorf("a request reaches the container as %+v", got)
		}
	})
}
