package serving

import (
	"context"
	"net"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	"golang.org/x/sync/errgroup"

	"github.com/knative-apiserver/knative-apiserver/test/bench/figures"
)

// runWebSockets sends messages over 64 WebSockets to an address, for a host, each when the echo of the last has arrived.
func runWebSockets(b *testing.B, address, host string) load {
	b.Helper()
	const connections = 64
	u, err := url.Parse(address)
	if err != nil {
		b.Fatal(err)
	}
	dialer := websocket.Dialer{NetDialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, u.Host)
	}}
	var messages atomic.Int64
	var running errgroup.Group
	message := []byte(strings.Repeat("x", 100))
	end := time.Now().Add(wrkTime)
	for range connections {
		running.Go(func() error {
			conn, response, err := dialer.DialContext(b.Context(), "ws://"+host+"/ws", nil)
			if err != nil {
				return err
			}
			defer response.Body.Close()
			defer conn.Close()
			for time.Now().Before(end) {
				if err := conn.WriteMessage(websocket.BinaryMessage, message); err != nil {
					return err
				}
				if _, _, err := conn.ReadMessage(); err != nil {
					return err
				}
				messages.Add(1)
			}
			return nil
		})
	}
	if err := running.Wait(); err != nil {
		b.Fatalf("WebSockets of %s: %v", address, err)
	}
	return load{rate: float64(messages.Load()) / wrkTime.Seconds()}
}

// BenchmarkWebSocket measures echoed messages per second over 64 WebSockets.
func BenchmarkWebSocket(b *testing.B) {
	figures.Once(b, func() {
		host := deploy(b, service(b, "websocket", 1))
		direct, stop := startApp(b)
		defer stop()
		c := newContenders(b, direct, false)
		c.measure(func(address string) load { return runWebSockets(b, address, host) })
		c.reportRates(b, "messages/s")
	})
}
