package http1

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/serving"
)

// conns is a net.Listener of connections that are sent to a channel.
type conns chan net.Conn

func (c conns) Accept() (net.Conn, error) {
	if conn, ok := <-c; ok {
		return conn, nil
	}
	return nil, net.ErrClosed
}

func (c conns) Close() error {
	close(c)
	return nil
}

func (c conns) Addr() net.Addr { return &net.TCPAddr{} }

// standard starts a net/http server until the test ends, and returns a function for Server.Standard.
func standard(t *testing.T, handle http.HandlerFunc) func(net.Conn) {
	t.Helper()
	listener := make(conns)
	server := &http.Server{Handler: handle, ConnState: ConnState, ReadHeaderTimeout: patience}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	t.Cleanup(func() {
		server.Close()
		if err := <-served; !errors.Is(err, http.ErrServerClosed) {
			t.Errorf("Serve: %v", err)
		}
	})
	return func(conn net.Conn) { listener <- conn }
}

// echoing responds with the request's body and trailer.
func echoing(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		http.Error(w, "bad body", http.StatusBadRequest)
		return
	}
	answer := "standard " + string(body) + r.Trailer.Get("T")
	w.Header()["Date"] = nil
	w.Header().Set("Content-Length", strconv.Itoa(len(answer)))
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	trySend(w, answer)
}

func echoed(body string) string {
	body = "standard " + body
	return "HTTP/1.1 200 OK\r\nContent-Length: " + strconv.Itoa(len(body)) + "\r\nContent-Type: text/plain; charset=utf-8\r\n\r\n" + body
}

// TestComesBack expects this package to serve a connection again after a request on the standard path, regardless of the sizes of
// the arriving pieces, without a byte that is lost or parsed as part of another request.
func TestComesBack(t *testing.T) {
	const post = "POST / HTTP/1.1\r\nhost: a\r\n"
	for _, tc := range []struct{ name, request, answer string }{
		{"chunks", post + "transfer-encoding: chunked\r\n\r\n3\r\nabc\r\n2;x=y\r\nde\r\n0\r\n\r\n", echoed("abcde")},
		{"no chunk", post + "transfer-encoding: chunked\r\n\r\n0\r\n\r\n", echoed("")},
		{"trailer", post + "trailer: T\r\ntransfer-encoding: chunked\r\n\r\n1\r\na\r\n0\r\nT: end\r\n\r\n", echoed("aend")},
		{"request in a body", post + "transfer-encoding: chunked\r\n\r\n1b\r\n" + getA + "\r\n0\r\n\r\n", echoed(getA)},
		{"absolute form with a body", "POST http://a/ HTTP/1.1\r\nhost: a\r\ncontent-length: 3\r\n\r\nabc", echoed("abc")},
		{"HTTP/1.0", "GET / HTTP/1.0\r\nconnection: keep-alive\r\n\r\n",
			strings.NewReplacer("1.1", "1.0", "utf-8", "utf-8\r\nConnection: keep-alive").Replace(echoed(""))},
		{"long body", post + "content-length: 100000\r\n\r\n" + strings.Repeat("b", 100000), echoed(strings.Repeat("b", 100000))},
	} {
		for _, size := range []int{1, 7, 1 << 20} {
			if size == 1 && len(tc.request) > 1000 {
				continue
			}
			t.Run(tc.name+" in pieces of "+strconv.Itoa(size), func(t *testing.T) {
				router := newFakeRouter(answering(t, hi, nil))
				conn := dial(t, serve(t, &Server{Handler: router, Standard: standard(t, echoing)}))
				all := strings.Repeat(getA+tc.request, 2) + getA
				go func() {
					for len(all) > 0 {
						n := min(size, len(all))
						trySend(conn, all[:n])
						all = all[n:]
					}
				}()
				expect(t, conn, strings.Repeat(hi+tc.answer, 2)+hi)
				if n := len(router.begun()); n < 3 {
					t.Errorf("%d requests on the fast path", n)
				}
			})
		}
	}
}

// TestStrictAfterStandardPath expects requests that this package rejects to be rejected after a request on the standard path too.
func TestStrictAfterStandardPath(t *testing.T) {
	for name, tc := range map[string]struct{ field, status, body string }{
		"two lengths": {"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", "400 Bad Request", badLength.Body},
		"fold":        {"A: b\r\n c\r\n", "400 Bad Request", badField.Body},
		"Expect":      {"Expect: more\r\n", "417 Expectation Failed", badExpect.Body},
	} {
		t.Run(name, func(t *testing.T) {
			var refusals []string
			rejected := make(chan struct{})
			s := &Server{Handler: newFakeRouter(""), Standard: standard(t, echoing), Rejected: func(_ netip.AddrPort, r *serving.Rejection, h *Head) {
				refusals = append(refusals, strconv.Itoa(r.Status)+" "+string(h.Target))
				close(rejected)
			}}
			conn := dial(t, serve(t, s))
			write(t, conn, "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n")
			expect(t, conn, echoed("a"))
			write(t, conn, "POST /two HTTP/1.1\r\nHost: a\r\n"+tc.field+"\r\n0\r\n\r\n")
			expectEnd(t, conn, refused(tc.status, tc.body, true))
			<-rejected
			if diff := cmp.Diff([]string{tc.status[:3] + " /two"}, refusals); diff != "" {
				t.Errorf("refusals (-want +got):\n%s", diff)
			}
		})
	}
}

// TestMalformedChunks expects a malformed chunked body to be rejected, and no further input to be served.
func TestMalformedChunks(t *testing.T) {
	for name, body := range map[string]string{
		"size":               "z\r\n",
		"line end":           "1\na\r\n0\r\n\r\n",
		"data end":           "1\r\nab\r\n0\r\n\r\n",
		"trailer":            "0\r\nA : b\r\n\r\n",
		"trailer that lies":  "0\r\nContent-Length: 5\r\n\r\n",
		"late, in a piece":   "1\r\na\r\n1\r\nbc\r\n",
		"size with a prefix": "0x1\r\na\r\n0\r\n\r\n",
		"extension":          "5;a\nx\r\n",
		"late extension":     "1\r\na\r\n5;a\x00x\r\n",
	} {
		for _, pause := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				router := newFakeRouter("")
				begun := make(chan struct{}, 1)
				conn := dial(t, serve(t, &Server{Handler: router, Standard: standard(t, func(w http.ResponseWriter, r *http.Request) {
					begun <- struct{}{}
					echoing(w, r)
				})}))
				write(t, conn, "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n")
				if pause {
					<-begun
				}
				write(t, conn, body+getA)
				got := drain(t, conn)
				if !strings.HasPrefix(got, "HTTP/1.1 400 ") || strings.Count(got, "HTTP/1.1") != 1 || len(router.begun()) > 0 {
					t.Errorf("answered %q, router got %q", got, router.begun())
				}
			})
		}
	}
}

// pieces is a connection whose input arrives in pieces.
type pieces struct {
	net.Conn
	left string
	size int
}

func (p *pieces) Read(b []byte) (int, error) {
	n := copy(b, p.left[:min(p.size, len(p.left))])
	p.left = p.left[n:]
	if n == 0 {
		return 0, io.EOF
	}
	return n, nil
}

// TestMalformedAnywhere replaces each byte of a chunked body by several others. If the body is malformed then, net/http must read
// the data before that byte and an error, and nothing else.
func TestMalformedAnywhere(t *testing.T) {
	const head, body = "POST / HTTP/1.1\r\nhost: a\r\ntrailer: T\r\ntransfer-encoding: chunked\r\n\r\n", "3;a=b\r\nabc\r\n1\r\nd\r\n0;e\r\nT: f\r\n\r\n"
	for i := range body {
		for _, bad := range "\x00\n\r x;5\xff" {
			sent := body[:i] + string([]byte{byte(bad)}) + body[i+1:]
			var c chunks
			valid, _, err := c.feed([]byte(sent))
			if err == nil {
				continue
			}
			want := ""
			for data, j := (chunks{}), 0; j < valid; j++ {
				before := data.data
				if _, _, err := data.feed([]byte(sent[j : j+1])); err != nil {
					t.Fatal(err)
				}
				want += sent[j : j+int(data.data-before)]
			}
			for _, size := range []int{1, 5, len(sent) + len(head)} {
				for _, read := range []int{0, len(head), len(head) + i/2} {
					all := head + sent
					l := &lentConn{Conn: &pieces{left: all[read:], size: size}, read: []byte(all[:read]), remaining: int64(len(head)), chunked: true}
					r, err := http.ReadRequest(bufio.NewReader(l))
					if err != nil {
						t.Fatal(err)
					}
					got, err := io.ReadAll(r.Body)
					if err == nil || string(got) != want {
						t.Errorf("%q in pieces of %d is read as %q, %v; want %q and an error", sent, size, got, err, want)
					}
				}
			}
		}
	}
}

// TestExpectContinue expects a client to get a 100 (Continue) and its connection to return.
func TestExpectContinue(t *testing.T) {
	router := newFakeRouter(answering(t, hi, nil))
	conn := dial(t, serve(t, &Server{Handler: router, Standard: standard(t, echoing)}))
	write(t, conn, "POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n")
	expect(t, conn, "HTTP/1.1 100 Continue\r\n\r\n")
	write(t, conn, "body"+getA)
	expect(t, conn, echoed("body")+hi)
}

// TestUnreadBody expects a body that the handler does not read not to be parsed as a request.
func TestUnreadBody(t *testing.T) {
	router := newFakeRouter(answering(t, hi, nil))
	begun := make(chan struct{})
	conn := dial(t, serve(t, &Server{Handler: router, Standard: standard(t, func(w http.ResponseWriter, r *http.Request) {
		close(begun)
		r.Body = http.NoBody
		echoing(w, r)
	})}))
	write(t, conn, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: "+strconv.Itoa(len(getA))+"\r\n\r\n")
	<-begun
	write(t, conn, getA+getA)
	expect(t, conn, echoed("")+hi)
	if n := len(router.begun()); n != 1 {
		t.Errorf("%d requests on the fast path", n)
	}
}

// TestFarAhead sends more requests than are read ahead while one is served.
func TestFarAhead(t *testing.T) {
	const n = 1000
	router := newFakeRouter(answering(t, hi, nil))
	finish := make(chan struct{})
	conn := dial(t, serve(t, &Server{Handler: router, Standard: standard(t, func(w http.ResponseWriter, r *http.Request) {
		<-finish
		echoing(w, r)
	})}))
	write(t, conn, "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"+strings.Repeat(getA, n))
	close(finish)
	expect(t, conn, echoed("")+strings.Repeat(hi, n))
}

// TestClientGoneOnStandardPath expects the request's context to be canceled when the client closes its connection, during the body
// and after it.
func TestClientGoneOnStandardPath(t *testing.T) {
	for name, request := range map[string]string{
		"in the body":    "Transfer-Encoding: chunked\r\n\r\n5\r\na",
		"after the body": "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
		"sending ahead":  "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /",
	} {
		t.Run(name, func(t *testing.T) {
			begun, ended := make(chan struct{}), make(chan error, 1)
			conn := dial(t, serve(t, &Server{Handler: newFakeRouter(""), Standard: standard(t, func(_ http.ResponseWriter, r *http.Request) {
				close(begun)
				untilClosed(r.Body)
				<-r.Context().Done()
				ended <- r.Context().Err()
			})}))
			write(t, conn, "POST / HTTP/1.1\r\nHost: a\r\n"+request)
			<-begun
			conn.Close()
			select {
			case err := <-ended:
				if !errors.Is(err, context.Canceled) {
					t.Error(err)
				}
			case <-time.After(patience):
				t.Error("the handler did not end")
			}
		})
	}
}

// TestHijacked expects a hijacked connection to stay on the standard path, with the input that the client sent ahead.
func TestHijacked(t *testing.T) {
	conn := dial(t, serve(t, &Server{Handler: newFakeRouter(""), Standard: standard(t, func(w http.ResponseWriter, _ *http.Request) {
		tunnel, buf, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer tunnel.Close()
		line, err := bufio.NewReader(buf).ReadString('\n')
		trySend(tunnel, "got "+line)
		if err != nil {
			t.Error(err)
		}
	})}))
	write(t, conn, "GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\nahead ")
	write(t, conn, "and more\n")
	expectEnd(t, conn, "got ahead and more\n")
}

// TestPanicOnStandardPath expects a panic to close only its connection.
func TestPanicOnStandardPath(t *testing.T) {
	addr := serve(t, &Server{Handler: newFakeRouter(answering(t, hi, nil)), Standard: standard(t, func(http.ResponseWriter, *http.Request) {
		panic(http.ErrAbortHandler)
	})})
	conn := dial(t, addr)
	write(t, conn, "GET / HTTP/1.0\r\n\r\n")
	expectEnd(t, conn, "")
	conn = dial(t, addr)
	write(t, conn, getA)
	expect(t, conn, hi)
}
