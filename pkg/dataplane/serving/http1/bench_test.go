package http1

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/serving"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/serving/linger"
)

// openRouter forwards all requests to one upstream without allocating.
type openRouter struct{ openExchange }

func (r *openRouter) ServeHTTP1(x *Exchange) bool {
	x.Begin(&r.openExchange)
	return x.Forward(r.upstream).Outcome == serving.Responded
}

type openExchange struct{ upstream *Upstream }

func (e *openExchange) Timeouts() serving.Timeouts {
	return serving.Timeouts{Start: 5 * time.Minute, Stall: 10 * time.Minute}
}
func (e *openExchange) Passes([]byte) bool     { return true }
func (e *openExchange) ResponseStarted()       {}
func (e *openExchange) Streaming(bool)         {}
func (e *openExchange) Hold(int) bool          { return true }
func (e *openExchange) Abandon() *linger.Place { return nil }

func (e *openExchange) AppendHost(dst, client []byte) []byte { return append(dst, client...) }

func (e *openExchange) AltSvc() string { return "" }

func (e *openExchange) AppendFields(dst []byte) []byte {
	return append(dst, "X-Forwarded-Proto: http\r\n"...)
}

// BenchmarkForward forwards requests one after the other within one process, for allocations and profiles. They include the
// application's and the client's parts.
func BenchmarkForward(b *testing.B) {
	app := rawApp(b, func(_ int, conn net.Conn, r *bufio.Reader) {
		_ = conn.SetDeadline(time.Time{})
		buf, answer := make([]byte, 4096), []byte(hi)
		for {
			if _, err := conn.Read(buf); err != nil {
				return
			}
			if _, err := conn.Write(answer); err != nil {
				return
			}
		}
	})
	conn := dial(b, serve(b, &Server{Handler: &openRouter{openExchange{NewUpstream(app)}}}))
	_ = conn.SetDeadline(time.Time{})
	request, buf := []byte("GET / HTTP/1.1\r\nHost: a.example\r\nUser-Agent: a\r\nAccept: */*\r\n\r\n"), make([]byte, 4096)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := conn.Write(request); err != nil {
			b.Fatal(err)
		}
		if _, err := conn.Read(buf); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkThroughput measures 64 clients of a net/http application, directly and through proxies. Each part runs in its own
// process, all on the same processors.
func BenchmarkThroughput(b *testing.B) {
	app := startRole(b, "app", "")
	for _, target := range []struct{ name, address string }{
		{"direct", app}, {"http1", startRole(b, "http1", app)}, {"ReverseProxy", startRole(b, "reverse", app)},
	} {
		b.Run(target.name, func(b *testing.B) {
			var wg sync.WaitGroup
			requests := make(chan struct{}, b.N)
			for range b.N {
				requests <- struct{}{}
			}
			close(requests)
			for range 64 {
				conn := dial(b, target.address)
				wg.Go(func() {
					request, buf := []byte("GET / HTTP/1.1\r\nHost: a\r\n\r\n"), make([]byte, 4096)
					for range requests {
						_, err := conn.Write(request)
						if err == nil {
							_, err = conn.Read(buf)
						}
						if err != nil || !strings.HasPrefix(string(buf), "HTTP/1.1 200") {
							b.Errorf("%.20q, %v", buf, err)
							return
						}
					}
				})
			}
			wg.Wait()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "requests/s")
		})
	}
}

// startRole runs the test program in another role until the test ends, and returns its address.
func startRole(b *testing.B, role, upstream string) string {
	b.Helper()
	cmd := exec.CommandContext(b.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), "HTTP1_ROLE="+role, "HTTP1_UPSTREAM="+upstream)
	out, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	address, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		b.Fatal(err)
	}
	return strings.TrimSpace(address)
}

// TestMain runs the application or the proxy of BenchmarkThroughput if the environment names a role.
func TestMain(m *testing.M) {
	role := os.Getenv("HTTP1_ROLE")
	if role == "" {
		os.Exit(m.Run())
	}
	if err := serveRole(role, os.Getenv("HTTP1_UPSTREAM")); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func serveRole(role, upstream string) error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Println(l.Addr())
	switch role {
	case "app":
		return http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { trySend(w, "Hello World!\n") }))
	case "reverse":
		proxy := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: upstream})
		proxy.Transport = &http.Transport{MaxIdleConnsPerHost: maxIdle}
		return http.Serve(l, proxy)
	case "http1":
		s := &Server{Handler: &openRouter{openExchange{NewUpstream(upstream)}}, Standard: func(c net.Conn) { c.Close() }}
		for {
			conn, err := l.Accept()
			if err != nil {
				return err
			}
			go s.ServeConn(context.Background(), conn)
		}
	}
	return fmt.Errorf("no role %q", role)
}
