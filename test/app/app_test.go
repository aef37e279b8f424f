package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/gorilla/websocket"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// start serves an application until the test ends, and returns its host:port and a function that stops it like SIGTERM.
func start(t *testing.T, protocol string) (address string, terminate func(), ended <-chan error) {
	t.Helper()
	t.Setenv("PROTOCOL", protocol)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- serve(ctx, listener, newApp()) }()
	t.Cleanup(cancel)
	return listener.Addr().String(), cancel, done
}

func get(t *testing.T, client *http.Client, url string) string {
	t.Helper()
	response, err := client.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

func newClient(protocol string) *http.Client {
	transport := &http.Transport{Protocols: new(http.Protocols)}
	transport.Protocols.SetHTTP1(protocol != "h2c")
	transport.Protocols.SetUnencryptedHTTP2(protocol == "h2c")
	return &http.Client{Transport: transport}
}

func TestAnswers(t *testing.T) {
	for _, protocol := range []string{"http1", "h2c"} {
		t.Run(protocol, func(t *testing.T) {
			t.Setenv("TARGET", "test")
			address, _, _ := start(t, protocol)
			client := newClient(protocol)
			defer client.CloseIdleConnections()
			for path, want := range map[string]string{
				"/":                           "Hello test!\n",
				"/?sleep=1ms":                 "Hello test!\n",
				"/stream?n=3":                 "chunk 0\nchunk 1\nchunk 2\n",
				"/sse?n=2":                    "data: event 0\n\ndata: event 1\n\n",
				"/concurrency":                `{"current":1,"max":1,"target":"test"}` + "\n",
				"/?sleep=long":                "time: invalid duration \"long\"\n",
				"/status?code=503&sleep=1ms":  "",
				"/stream?n=1&every=-1s":       "chunk 0\n",
				"/sse?n=1&every=1ms&sleep=0s": "data: event 0\n\n",
			} {
				if got := get(t, client, "http://"+address+path); got != want {
					t.Errorf("%s: %q, want %q", path, got, want)
				}
			}
			var report headersReport
			if err := json.Unmarshal([]byte(get(t, client, "http://"+address+"/headers?a=b")), &report); err != nil {
				t.Fatal(err)
			}
			wantProto := map[string]string{"http1": "HTTP/1.1", "h2c": "HTTP/2.0"}[protocol]
			if report.URI != "/headers?a=b" || report.Host != address || report.Proto != wantProto || report.Header.Get("User-Agent") == "" {
				t.Errorf("headers: %+v", report)
			}
		})
	}
}

func TestAbortIsCounted(t *testing.T) {
	address, _, _ := start(t, "http1")
	response, err := http.Post("http://"+address+"/abort", "", strings.NewReader("x"))
	if !errors.Is(err, io.EOF) {
		t.Fatalf("error is %v, want EOF", err)
	}
	if response != nil {
		response.Body.Close()
		t.Errorf("there is an answer: %s", response.Status)
	}
	if got, want := get(t, http.DefaultClient, "http://"+address+"/count"), `{"total":2,"aborted":1}`+"\n"; got != want {
		t.Errorf("count is %s, want %s", got, want)
	}
}

func TestUpload(t *testing.T) {
	address, _, _ := start(t, "http1")
	response, err := http.Post("http://"+address+"/upload", "", bytes.NewReader(make([]byte, 1<<20)))
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	var got uploadReport
	if err := json.NewDecoder(response.Body).Decode(&got); err != nil {
		t.Fatal(err)
	}
	want := uploadReport{Bytes: 1 << 20, SHA256: "30e14955ebf1352266dc2ff8067e68104607e750abb9d3b36582b8af909fcb58"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// Each part of the body is echoed before the next one is sent.
func TestEchoIsFullDuplex(t *testing.T) {
	for _, protocol := range []string{"http1", "h2c"} {
		t.Run(protocol, func(t *testing.T) {
			address, _, _ := start(t, protocol)
			client := newClient(protocol)
			defer client.CloseIdleConnections()
			body, parts := io.Pipe()
			request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+address+"/echo", body)
			if err != nil {
				t.Fatal(err)
			}
			response, err := client.Do(request)
			if err != nil {
				t.Fatal(err)
			}
			defer response.Body.Close()
			for i := range 3 {
				part := fmt.Sprintf("part %d", i)
				if _, err := io.WriteString(parts, part); err != nil {
					t.Fatal(err)
				}
				got := make([]byte, len(part))
				if _, err := io.ReadFull(response.Body, got); err != nil || string(got) != part {
					t.Fatalf("got %q, %v, want %q", got, err, part)
				}
			}
			parts.Close()
			if rest, err := io.ReadAll(response.Body); err != nil || len(rest) > 0 {
				t.Errorf("at the end: %q, %v", rest, err)
			}
		})
	}
}

func TestWebSocket(t *testing.T) {
	address, _, _ := start(t, "http1")
	conn, response, err := websocket.DefaultDialer.DialContext(t.Context(), "ws://"+address+"/ws", nil)
	if err != nil {
		t.Fatal(err)
	}
	response.Body.Close()
	defer conn.Close()
	if err := conn.WriteMessage(websocket.TextMessage, []byte("hello")); err != nil {
		t.Fatal(err)
	}
	if kind, got, err := conn.ReadMessage(); kind != websocket.TextMessage || string(got) != "hello" || err != nil {
		t.Errorf("got %d %q, %v", kind, got, err)
	}
}

func dial(t *testing.T) *grpc.ClientConn {
	t.Helper()
	address, _, _ := start(t, "h2c")
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

func TestGRPCUnary(t *testing.T) {
	conn := dial(t)
	ctx := metadata.AppendToOutgoingContext(t.Context(), "x-echo", "e")
	var header, trailer metadata.MD
	got := &wrapperspb.StringValue{}
	if err := conn.Invoke(ctx, "/app.Echo/Unary", wrapperspb.String("hello"), got, grpc.Header(&header), grpc.Trailer(&trailer)); err != nil {
		t.Fatal(err)
	}
	if got.Value != "hello" || fmt.Sprint(header["x-echo"]) != "[e]" {
		t.Errorf("got %q, header %v", got.Value, header)
	}
	if fmt.Sprint(trailer["x-echo-trailer"], trailer["x-messages"]) != "[e] [1]" {
		t.Errorf("trailer is %v", trailer)
	}
	err := conn.Invoke(ctx, "/app.Echo/Fail", wrapperspb.String("hello"), got)
	if s := status.Convert(err); s.Code() != codes.Internal || s.Message() != "failing, as asked for" {
		t.Errorf("the failure is %v", err)
	}
	health, err := grpc_health_v1.NewHealthClient(conn).Check(t.Context(), &grpc_health_v1.HealthCheckRequest{Service: "app"})
	if err != nil || health.Status != grpc_health_v1.HealthCheckResponse_SERVING {
		t.Errorf("health is %v, %v", health, err)
	}
}

func TestGRPCStreamsBothWays(t *testing.T) {
	conn := dial(t)
	stream, err := conn.NewStream(t.Context(), &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, "/app.Echo/Stream")
	if err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		want := fmt.Sprint(i)
		got := &wrapperspb.StringValue{}
		if err := stream.SendMsg(wrapperspb.String(want)); err != nil {
			t.Fatal(err)
		}
		if err := stream.RecvMsg(got); err != nil || got.Value != want {
			t.Fatalf("got %q, %v, want %q", got.Value, err, want)
		}
	}
	if err := stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
	if err := stream.RecvMsg(&wrapperspb.StringValue{}); !errors.Is(err, io.EOF) {
		t.Errorf("at the end: %v", err)
	}
	if got := stream.Trailer()["x-messages"]; fmt.Sprint(got) != "[3]" {
		t.Errorf("trailer x-messages is %v", got)
	}
}

func TestTerminationFinishesRequests(t *testing.T) {
	address, terminate, ended := start(t, "http1")
	body, parts := io.Pipe()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+address+"/echo", body)
	if err != nil {
		t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	terminate()
	if got := get(t, newClient("http1"), "http://"+address+"/stream?n=1"); got != "chunk 0\n" {
		t.Errorf("a request after the signal gets %q", got)
	}
	if _, err := io.WriteString(parts, "late"); err != nil {
		t.Fatal(err)
	}
	parts.Close()
	if got, err := io.ReadAll(response.Body); err != nil || string(got) != "late" {
		t.Errorf("got %q, %v", got, err)
	}
	if err := <-ended; err != nil {
		t.Errorf("it ended with %v", err)
	}
}

func TestConcurrencyCountsTheMost(t *testing.T) {
	a := newApp()
	server := httptest.NewServer(a)
	defer server.Close()
	const clients = 5
	var streams []*io.PipeWriter
	for range clients {
		body, parts := io.Pipe()
		streams = append(streams, parts)
		response, err := http.Post(server.URL+"/echo", "", body)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
	}
	if got, want := get(t, http.DefaultClient, server.URL+"/concurrency"), `{"current":6,"max":6}`+"\n"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	for _, parts := range streams {
		parts.Close()
	}
}
