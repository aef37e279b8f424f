package serving

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// grpcClient returns a gRPC client of a site.
func (s *site) grpcClient(t testing.TB) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+s.gateway,
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithAuthority(s.host),
		grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", address)
		}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// TestGRPC covers calls and their metadata, header and trailer (serving 8-2).
func TestGRPC(t *testing.T) {
	t.Parallel()
	s := shared.newSite(t, "grpc", h2c, instances("1"))
	conn := s.grpcClient(t)
	ctx := metadata.AppendToOutgoingContext(t.Context(), "x-echo", "hello")

	t.Run("unary", func(t *testing.T) {
		var header, trailer metadata.MD
		got, err := healthv1.NewHealthClient(conn).Check(ctx, &healthv1.HealthCheckRequest{}, grpc.Header(&header), grpc.Trailer(&trailer))
		if err != nil || got.Status != healthv1.HealthCheckResponse_SERVING {
			t.Fatalf("the call answered %v, %v", got, err)
		}
		if fmt.Sprint(header["x-echo"]) != "[hello]" || fmt.Sprint(trailer["x-echo-trailer"]) != "[hello]" || fmt.Sprint(trailer["x-messages"]) != "[1]" {
			t.Errorf("the call's header is %v, its trailer %v", header, trailer)
		}
	})
	t.Run("status", func(t *testing.T) {
		err := conn.Invoke(ctx, "/test.Test/Fail", &wrapperspb.StringValue{}, &wrapperspb.StringValue{})
		if got := status.Convert(err); got.Code() != codes.Internal || got.Message() != "failing, as asked for" {
			t.Errorf("a call that fails ended with %v", err)
		}
	})
	t.Run("streams", func(t *testing.T) {
		stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, "/test.Test/Echo")
		if err != nil {
			t.Fatal(err)
		}
		const messages = 20
		for i := range messages {
			// Each message is larger than the previous one, up to many frames.
			want := strings.Repeat("m", 1<<i%(256<<10))
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
	})
}

// TestGRPCCancelled checks that the application is notified of a call that its client cancels.
func TestGRPCCancelled(t *testing.T) {
	t.Parallel()
	s := shared.newSite(t, "grpc-cancelled", h2c, instances("1"))
	cancel := s.beginCall(t)
	untilCurrent(t, s, 2)
	cancel()
	untilCurrent(t, s, 1)
}

// beginCall starts a call that lasts until cancel is called.
func (s *site) beginCall(t testing.TB) (cancel context.CancelFunc) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	stream, err := s.grpcClient(t).NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, "/test.Test/Echo")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Header(); err != nil {
		t.Fatal(err)
	}
	return cancel
}

// TestGRPCColdStart covers a call that waits for a backend.
func TestGRPCColdStart(t *testing.T) {
	t.Parallel()
	s := shared.newSite(t, "grpc-cold", h2c, scaling("initial-scale", "0"))
	got, err := healthv1.NewHealthClient(s.grpcClient(t)).Check(t.Context(), &healthv1.HealthCheckRequest{})
	if err != nil || got.Status != healthv1.HealthCheckResponse_SERVING {
		t.Errorf("the call answered %v, %v", got, err)
	}
}

// TestTrailers checks that trailers are forwarded, also from HTTP/2 to an HTTP/1.1 client.
func TestTrailers(t *testing.T) {
	t.Parallel()
	s := shared.newSite(t, "trailers", h2c, instances("1"))
	for protocol, client := range s.clients(t) {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.url+"/test.Test/Echo", strings.NewReader("\x00\x00\x00\x00\x01m"))
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Content-Type", "application/grpc")
		request.Header.Set("Te", "trailers")
		request.Header.Set("X-Echo", "hello")
		response, err := client.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(response.Body)
		response.Body.Close()
		if err != nil || string(body) != "\x00\x00\x00\x00\x01m" {
			t.Errorf("by %s the body was returned as %q, %v", protocol, body, err)
		}
		for name, want := range map[string]string{"Grpc-Status": "0", "X-Echo-Trailer": "hello", "X-Messages": "1"} {
			if got := response.Trailer.Get(name); got != want {
				t.Errorf("by %s the trailer %s is %q, want %q", protocol, name, got, want)
			}
		}
	}
}
