// Command app is the application of Revisions in integration tests: an HTTP server that can be slow, crash, stream and count
// its requests. Environment variables control its start, path and query of a request its response.
//
//	PORT          the port to serve on; 0 picks a free one, which a line of JSON on standard output names
//	LISTEN        the address to serve on instead, such as 127.0.0.1:9000
//	PROTOCOL      h2c: also HTTP/2 without TLS, and gRPC
//	TARGET        the name that / greets, World by default
//	START_DELAY   how long to wait before the port opens, such as 500ms
//	START_FAIL    code:message: print the message on standard error and exit with the code
//	REPLY_TYPE    answer CloudEvents with one of this type
//	REPLY_SOURCE  the source of such replies, /test-app by default
//
// A CloudEvent is accepted at any path, and reported as a line of JSON on standard output, except at /relay, which forwards
// requests to a URL.
//
// After SIGTERM it serves until no request is in flight, then exits with 0.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run() error {
	if text := os.Getenv("START_DELAY"); text != "" {
		delay, err := time.ParseDuration(text)
		if err != nil {
			return fmt.Errorf("START_DELAY: %w", err)
		}
		<-time.After(delay)
	}
	if text := os.Getenv("START_FAIL"); text != "" {
		code, message, _ := strings.Cut(text, ":")
		number, err := strconv.Atoi(code)
		if err != nil {
			return fmt.Errorf("START_FAIL: %w", err)
		}
		fmt.Fprintln(os.Stderr, message)
		os.Exit(number)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	listener, err := net.Listen("tcp", cmp.Or(os.Getenv("LISTEN"), ":"+os.Getenv("PORT")))
	if err != nil {
		return err
	}
	if os.Getenv("PORT") == "0" {
		fmt.Printf(`{"listening": "http://localhost:%d/"}`+"\n", listener.Addr().(*net.TCPAddr).Port)
	}
	a := newApp()
	a.ending = ctx.Done()
	return serve(ctx, listener, a)
}

// serve serves requests until ctx is canceled and no request is in flight.
func serve(ctx context.Context, listener net.Listener, a *app) error {
	server := &http.Server{Handler: a, Protocols: new(http.Protocols)}
	server.Protocols.SetHTTP1(true)
	server.Protocols.SetUnencryptedHTTP2(os.Getenv("PROTOCOL") == "h2c")
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	select {
	case err := <-served:
		return err
	case <-ctx.Done():
	}
	// Shutdown rejects connections and ignores WebSockets, so it is called when no request is in flight.
	ticker := time.NewTicker(5 * time.Millisecond)
	defer ticker.Stop()
	for a.current.Load() > 0 {
		<-ticker.C
	}
	return errors.Join(server.Shutdown(context.WithoutCancel(ctx)), ignoreClosed(<-served))
}

func ignoreClosed(err error) error {
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}
