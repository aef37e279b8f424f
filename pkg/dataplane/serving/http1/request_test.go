package http1

import (
	"bufio"
	"net"
	"strings"
	"testing"
)

// TestRefusedRequests expects malformed or ambiguous requests to be rejected before the handler, and their connections to be closed
// (RFC 9112 3, 5 and 6).
func TestRefusedRequests(t *testing.T) {
	const host = "Host: a.example\r\n"
	get := "GET / HTTP/1.1\r\n" + host
	for _, tc := range []struct {
		name, request, status string
	}{
		{"two empty lines first", "\r\n\r\nGET / HTTP/1.1\r\n" + host + "\r\n", "400"},
		{"CR first", "\rGET / HTTP/1.1\r\n" + host + "\r\n", "400"},
		{"no target", "GET HTTP/1.1\r\n" + host + "\r\n", "400"},
		{"empty target", "GET  HTTP/1.1\r\n" + host + "\r\n", "400"},
		{"space in target", "GET /a b HTTP/1.1\r\n" + host + "\r\n", "400"},
		{"tab in target", "GET /a\tb HTTP/1.1\r\n" + host + "\r\n", "400"},
		{"control in target", "GET /\x01 HTTP/1.1\r\n" + host + "\r\n", "400"},
		{"NUL in target", "GET /\x00 HTTP/1.1\r\n" + host + "\r\n", "400"},
		{"DEL in target", "GET /\x7f HTTP/1.1\r\n" + host + "\r\n", "400"},
		{"CR in target", "GET /\ra HTTP/1.1\r\n" + host + "\r\n", "400"},
		{"fragment", "GET /#a HTTP/1.1\r\n" + host + "\r\n", "400"},
		{"bad escape", "GET /%zz HTTP/1.1\r\n" + host + "\r\n", "400"},
		{"short escape", "GET /%4 HTTP/1.1\r\n" + host + "\r\n", "400"},
		{"relative target", "GET a HTTP/1.1\r\n" + host + "\r\n", "400"},
		{"asterisk with GET", "GET * HTTP/1.1\r\n" + host + "\r\n", "400"},
		{"two spaces before the version", "GET /  HTTP/1.1\r\n" + host + "\r\n", "400"},
		{"space after the version", "GET / HTTP/1.1 \r\n" + host + "\r\n", "400"},
		{"method not a token", "GE(T / HTTP/1.1\r\n" + host + "\r\n", "400"},
		{"no method", " / HTTP/1.1\r\n" + host + "\r\n", "400"},
		{"TLS", "\x16\x03\x01\x02", "400"},
		{"HTTP/0.9", "GET /\r\n\r\n", "400"},
		{"version in lower case", "GET / http/1.1\r\n" + host + "\r\n", "400"},
		{"version of three parts", "GET / HTTP/1.1.1\r\n" + host + "\r\n", "400"},
		{"version 1.2", "GET / HTTP/1.2\r\n" + host + "\r\n", "505"},
		{"version 2.0", "GET / HTTP/2.0\r\n" + host + "\r\n", "505"},
		{"version 3.0", "GET / HTTP/3.0\r\n" + host + "\r\n", "505"},
		{"LF after the request line", "GET / HTTP/1.1\n" + host + "\r\n", "400"},
		{"LF after a field", "GET / HTTP/1.1\r\nHost: a\n\r\n", "400"},
		{"LF at the end", get + "\n", "400"},
		{"LF only", "GET / HTTP/1.1\nHost: a\n\n", "400"},
		{"CR after a field", "GET / HTTP/1.1\r\nHost: a\rX: b\r\n\r\n", "400"},
		{"CR CR LF", "GET / HTTP/1.1\r\nHost: a\r\r\n\r\n", "400"},
		{"no Host", "GET / HTTP/1.1\r\n\r\n", "400"},
		{"empty Host", "GET / HTTP/1.1\r\nHost:\r\n\r\n", "400"},
		{"two Hosts", get + "Host: b.example\r\n\r\n", "400"},
		{"same Host twice", get + host + "\r\n", "400"},
		{"Host with path", "GET / HTTP/1.1\r\nHost: a/b\r\n\r\n", "400"},
		{"Host with user", "GET / HTTP/1.1\r\nHost: a@b\r\n\r\n", "400"},
		{"Host with space", "GET / HTTP/1.1\r\nHost: a b\r\n\r\n", "400"},
		{"Host list", "GET / HTTP/1.1\r\nHost: a\x00\r\n\r\n", "400"},
		{"Host with bad port", "GET / HTTP/1.1\r\nHost: a:b\r\n\r\n", "400"},
		{"Host with two ports", "GET / HTTP/1.1\r\nHost: a:1:2\r\n\r\n", "400"},
		{"Host of port only", "GET / HTTP/1.1\r\nHost: :80\r\n\r\n", "400"},
		{"open bracket", "GET / HTTP/1.1\r\nHost: [::1\r\n\r\n", "400"},
		{"empty brackets", "GET / HTTP/1.1\r\nHost: []\r\n\r\n", "400"},
		{"space before colon", get + "X : a\r\n\r\n", "400"},
		{"tab before colon", get + "X\t: a\r\n\r\n", "400"},
		{"no name", get + ": a\r\n\r\n", "400"},
		{"no colon", get + "X\r\n\r\n", "400"},
		{"name not a token", get + "X(: a\r\n\r\n", "400"},
		{"name not ASCII", get + "\xc3\xa9: a\r\n\r\n", "400"},
		{"NUL in name", get + "X\x00: a\r\n\r\n", "400"},
		{"NUL in value", get + "X: a\x00\r\n\r\n", "400"},
		{"control in value", get + "X: \x01\r\n\r\n", "400"},
		{"line folding", get + "X: a\r\n b\r\n\r\n", "400"},
		{"line folding with tab", get + "X: a\r\n\tTransfer-Encoding: chunked\r\n\r\n", "400"},
		{"folding of the first field", "GET / HTTP/1.1\r\n Host: a\r\n\r\n", "400"},
		{"Content-Length twice", get + "Content-Length: 1\r\nContent-Length: 1\r\n\r\na", "400"},
		{"Content-Lengths that differ", get + "Content-Length: 1\r\nContent-Length: 2\r\n\r\nab", "400"},
		{"Content-Length list", get + "Content-Length: 1, 1\r\n\r\na", "400"},
		{"Content-Length with sign", get + "Content-Length: +1\r\n\r\na", "400"},
		{"negative Content-Length", get + "Content-Length: -1\r\n\r\na", "400"},
		{"hexadecimal Content-Length", get + "Content-Length: 0x1\r\n\r\na", "400"},
		{"empty Content-Length", get + "Content-Length:\r\n\r\n", "400"},
		{"Content-Length with space", get + "Content-Length: 1 1\r\n\r\na", "400"},
		{"Content-Length overflow", get + "Content-Length: 18446744073709551616\r\n\r\n", "400"},
		{"Content-Length and Transfer-Encoding", get + "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "400"},
		{"Transfer-Encoding and Content-Length", get + "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n", "400"},
		{"Transfer-Encoding twice", get + "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "400"},
		{"Transfer-Encoding list", get + "Transfer-Encoding: gzip, chunked\r\n\r\n", "400"},
		{"Transfer-Encoding identity", get + "Transfer-Encoding: identity\r\n\r\n", "400"},
		{"Transfer-Encoding with control", get + "Transfer-Encoding: \x0bchunked\r\n\r\n", "400"},
		{"Transfer-Encoding quoted", get + "Transfer-Encoding: \"chunked\"\r\n\r\n", "400"},
		{"Transfer-Encoding with space", get + "Transfer-Encoding : chunked\r\n\r\n", "400"},
		{"empty Transfer-Encoding", get + "Transfer-Encoding:\r\n\r\n", "400"},
		{"Transfer-Encoding that looks like chunked", get + "Transfer-Encoding: xchunked\r\n\r\n", "400"},
		{"Transfer-Encoding in HTTP/1.0", "POST / HTTP/1.0\r\n" + host + "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "400"},
		{"Transfer-Encoding and Content-Length in absolute form",
			"POST http://a.example/ HTTP/1.1\r\n" + host + "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "400"},
		{"line folding in HTTP/1.0", "GET / HTTP/1.0\r\n" + host + "X: a\r\n b\r\n\r\n", "400"},
		{"absolute form without host", "GET http:///a HTTP/1.1\r\n" + host + "\r\n", "400"},
		{"absolute form with user", "GET http://a@b/ HTTP/1.1\r\n" + host + "\r\n", "400"},
		{"malformed Connection", get + "Connection: a b\r\n\r\n", "400"},
		{"too many Connection options", get + "Connection: " + strings.Repeat("a,", maxOptions+1) + "\r\n\r\n", "400"},
		{"too many fields", get + strings.Repeat("a:\r\n", maxFields+1) + "\r\n", "431"},
		{"large head", get + "X: " + strings.Repeat("a", 64<<10) + "\r\n\r\n", "431"},
		{"endless head", get + strings.Repeat("X: "+strings.Repeat("a", 1000)+"\r\n", 70), "431"},
		{"endless request line", "GET /" + strings.Repeat("a", 70<<10), "431"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			router := newFakeRouter("")
			s := &Server{Handler: router, Standard: func(conn net.Conn) {
				t.Error("the standard path got the connection")
				conn.Close()
			}}
			conn := dial(t, serve(t, s))
			write(t, conn, tc.request)
			expect(t, conn, "HTTP/1.1 "+tc.status+" ")
			rest := drain(t, conn)
			if !strings.Contains(rest, "\r\nConnection: close\r\n") {
				t.Errorf("no Connection: close in %q", rest)
			}
			if begun := router.begun(); len(begun) != 0 {
				t.Errorf("reached the router: %q", begun)
			}
		})
	}
}

// TestForwardedRequests covers the bytes that a backend gets.
func TestForwardedRequests(t *testing.T) {
	for _, tc := range []struct {
		name, request, want string
	}{
		{"plain", "GET /a?b=%zz HTTP/1.1\r\nHost: a.example:80\r\n\r\n", "GET /a?b=%zz HTTP/1.1\r\nHost: a.example:80\r\n\r\n"},
		{"names in canonical case, values trimmed, order kept",
			"GET / HTTP/1.1\r\nuser-AGENT:a  b\r\nHOST: a\r\nx-A: \t1 \t\r\nX-a:\r\n\r\n",
			"GET / HTTP/1.1\r\nHost: a\r\nUser-Agent: a  b\r\nX-A: 1\r\nX-A: \r\n\r\n"},
		{"fields of the hop",
			"GET / HTTP/1.1\r\nHost: a\r\nConnection: keep-alive, X-Hop\r\nX-Hop: 1\r\nKeep-Alive: 1\r\nProxy-Connection: a\r\n" +
				"Proxy-Authorization: a\r\nProxy-Authenticate: a\r\nTE: trailers\r\nTrailer: X\r\nX-Stays: 1\r\n\r\n",
			"GET / HTTP/1.1\r\nHost: a\r\nX-Stays: 1\r\n\r\n"},
		{"options that name protected fields",
			"GET / HTTP/1.1\r\nHost: a\r\nConnection: host, content-length, x-added\r\nContent-Length: 0\r\n\r\n",
			"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n"},
		{"fields that the router drops", "GET / HTTP/1.1\r\nHost: a\r\nX-Dropped: 1\r\n\r\n", "GET / HTTP/1.1\r\nHost: a\r\n\r\n"},
		{"OPTIONS *", "OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n", "OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n"},
		{"slashes", "GET //b/../c HTTP/1.1\r\nHost: a\r\n\r\n", "GET //b/../c HTTP/1.1\r\nHost: a\r\n\r\n"},
		{"bytes beyond ASCII", "GET /\xc3\xa9 HTTP/1.1\r\nHost: a\r\nX: \xc3\xa9\r\n\r\n", "GET /\xc3\xa9 HTTP/1.1\r\nHost: a\r\nX: \xc3\xa9\r\n\r\n"},
		{"IPv6", "GET / HTTP/1.1\r\nHost: [::1]:80\r\n\r\n", "GET / HTTP/1.1\r\nHost: [::1]:80\r\n\r\n"},
		{"method in lower case", "get / HTTP/1.1\r\nHost: a\r\n\r\n", "get / HTTP/1.1\r\nHost: a\r\n\r\n"},
		{"body", "POST / HTTP/1.1\r\nContent-Length: 05\r\nHost: a\r\n\r\nGET /", "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nGET /"},
		{"large head", "GET / HTTP/1.1\r\nHost: a\r\nX: " + strings.Repeat("a", 50<<10) + "\r\n\r\n",
			"GET / HTTP/1.1\r\nHost: a\r\nX: " + strings.Repeat("a", 50<<10) + "\r\n\r\n"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			app := rawApp(t, func(_ int, conn net.Conn, r *bufio.Reader) {
				expect(t, r, withField(tc.want, "X-Added: 1\r\n"))
				trySend(conn, "HTTP/1.1 204 No Content\r\nDate: "+someDate+"\r\n\r\n")
			})
			router := newFakeRouter(app)
			router.drop, router.add = "x-dropped", "X-Added: 1\r\n"
			conn := dial(t, serve(t, &Server{Handler: router}))
			write(t, conn, tc.request)
			expect(t, conn, "HTTP/1.1 204 No Content\r\nDate: "+someDate+"\r\n\r\n")
			if r := router.result(t); r.Status != 204 || r.Err != nil {
				t.Errorf("result %+v", r)
			}
		})
	}
}

// withField adds a header line at the place of the gateway's fields: after the client's fields, before the Content-Length.
func withField(request, line string) string {
	if i := strings.Index(request, "Content-Length"); i >= 0 {
		return request[:i] + line + request[i:]
	}
	return strings.TrimSuffix(request, "\r\n") + line + "\r\n"
}
