package http1

import (
	"bufio"
	"errors"
	"net"
	"strings"
	"testing"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/serving"
)

const (
	getA   = "GET / HTTP/1.1\r\nHost: a\r\n\r\n"
	dateIs = "Date: " + someDate + "\r\n"
)

// TestAnswers covers the bytes that the client gets, and the result of the exchange, when a backend sends a response and closes its
// connection (RFC 9112 4, 6 and 7).
func TestAnswers(t *testing.T) {
	invalid := refused("502 Bad Gateway", serving.BadResponse.Body, false)
	broken := refused("502 Bad Gateway", serving.BrokenOff.Body, false)
	for _, tc := range []struct {
		name, method, answer, want string
		// failed is the error of the exchange, ended is true if the client's connection is closed.
		failed error
		ended  bool
	}{
		{name: "by length", answer: "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nab",
			want: "HTTP/1.1 200 OK\r\n" + dateIs + "Content-Length: 2\r\n\r\nab"},
		{name: "no body", answer: "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
			want: "HTTP/1.1 200 OK\r\n" + dateIs + "Content-Length: 0\r\n\r\n"},
		{name: "equal lengths", answer: "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\nab",
			want: "HTTP/1.1 200 OK\r\n" + dateIs + "Content-Length: 2\r\n\r\nab"},
		{name: "no reason", answer: "HTTP/1.1 299\r\nContent-Length: 0\r\n\r\n",
			want: "HTTP/1.1 299 \r\n" + dateIs + "Content-Length: 0\r\n\r\n"},
		{name: "fields pass as they are", answer: "HTTP/1.1 404 gone fishing\r\nETag:\"a\"\r\nx-b: \r\nX-b: 2\r\nDate: " + someDate + "\r\nContent-Length: 0\r\n\r\n",
			want: "HTTP/1.1 404 gone fishing\r\nETag: \"a\"\r\nx-b: \r\nX-b: 2\r\n" + dateIs + "Content-Length: 0\r\n\r\n"},
		{name: "fields of the hop", answer: "HTTP/1.1 200 OK\r\nConnection: x-hop, close\r\nX-Hop: 1\r\nKeep-Alive: 1\r\nProxy-Connection: a\r\n" +
			"Proxy-Authenticate: a\r\nTrailer: X\r\nUpgrade: h2c\r\nContent-Length: 0\r\n\r\n",
			want: "HTTP/1.1 200 OK\r\n" + dateIs + "Content-Length: 0\r\n\r\n"},
		{name: "surplus", answer: "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nabHTTP/1.1 500 No\r\n\r\n",
			want: "HTTP/1.1 200 OK\r\n" + dateIs + "Content-Length: 2\r\n\r\nab"},
		{name: "HEAD", method: "HEAD", answer: "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n",
			want: "HTTP/1.1 200 OK\r\n" + dateIs + "Content-Length: 2\r\n\r\n"},
		{name: "HEAD answered with a body", method: "HEAD", answer: "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nab",
			want: "HTTP/1.1 200 OK\r\n" + dateIs + "Content-Length: 2\r\n\r\n"},
		{name: "204", answer: "HTTP/1.1 204 No Content\r\nContent-Length: 2\r\n\r\n", want: "HTTP/1.1 204 No Content\r\n" + dateIs + "\r\n"},
		{name: "304", answer: "HTTP/1.1 304 Not Modified\r\nContent-Length: 2\r\n\r\n",
			want: "HTTP/1.1 304 Not Modified\r\n" + dateIs + "Content-Length: 2\r\n\r\n"},
		{name: "chunks with trailers", answer: "HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\nTrailer: X-T\r\n\r\n2;a=b\r\nab\r\n0A\r\n0123456789\r\n0\r\nX-T: 1\r\n\r\n",
			want: "HTTP/1.1 200 OK\r\nTrailer: X-T\r\n" + dateIs + "Transfer-Encoding: chunked\r\n\r\n2;a=b\r\nab\r\n0A\r\n0123456789\r\n0\r\nX-T: 1\r\n\r\n"},
		{name: "by close", answer: "HTTP/1.1 200 OK\r\n\r\nab", want: "HTTP/1.1 200 OK\r\n" + dateIs + "Transfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n"},
		{name: "by close, nothing", answer: "HTTP/1.1 200 OK\r\n\r\n", want: "HTTP/1.1 200 OK\r\n" + dateIs + "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n"},
		{name: "HTTP/1.0", answer: "HTTP/1.0 200 OK\r\n\r\nab", want: "HTTP/1.1 200 OK\r\n" + dateIs + "Transfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n"},
		{name: "100 is dropped, 103 passes", answer: "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: a\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n",
			want: "HTTP/1.1 103 Early Hints\r\nLink: a\r\n\r\nHTTP/1.1 204 No Content\r\n" + dateIs + "\r\n"},

		{name: "101", answer: "HTTP/1.1 101 Switching Protocols\r\nUpgrade: a\r\n\r\n", want: invalid, failed: errInterim},
		{name: "endless 1xx", answer: strings.Repeat("HTTP/1.1 100 Continue\r\n\r\n", maxInterim+1), want: invalid, failed: errInterim},
		{name: "nothing", answer: "", want: broken, failed: errEOF},
		{name: "part of a head", answer: "HTTP/1.1 200 OK\r\nContent-Le", want: broken, failed: errEOF},
		{name: "not HTTP", answer: "SSH-2.0-a\r\n\r\n", want: invalid, failed: errStatusLine},
		{name: "HTTP/2", answer: "HTTP/2.0 200 OK\r\n\r\n", want: invalid, failed: errStatusLine},
		{name: "status of two digits", answer: "HTTP/1.1 20 OK\r\n\r\n", want: invalid, failed: errStatusLine},
		{name: "status of four digits", answer: "HTTP/1.1 2000 OK\r\n\r\n", want: invalid, failed: errStatusLine},
		{name: "status below 100", answer: "HTTP/1.1 099 OK\r\n\r\n", want: invalid, failed: errStatusLine},
		{name: "control in reason", answer: "HTTP/1.1 200 O\x00K\r\n\r\n", want: invalid, failed: errStatusLine},
		{name: "LF only", answer: "HTTP/1.1 200 OK\nContent-Length: 0\n\n", want: invalid, failed: errStatusLine},
		{name: "LF within", answer: "HTTP/1.1 200 OK\r\nA: b\nContent-Length: 0\r\n\r\n", want: invalid, failed: errField},
		{name: "folding", answer: "HTTP/1.1 200 OK\r\nA: b\r\n c\r\n\r\n", want: invalid, failed: errField},
		{name: "space before colon", answer: "HTTP/1.1 200 OK\r\nA : b\r\n\r\n", want: invalid, failed: errField},
		{name: "control in value", answer: "HTTP/1.1 200 OK\r\nA: \x00\r\n\r\n", want: invalid, failed: errField},
		{name: "lengths that differ", answer: "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nab", want: invalid, failed: errFraming},
		{name: "length with sign", answer: "HTTP/1.1 200 OK\r\nContent-Length: +2\r\n\r\nab", want: invalid, failed: errFraming},
		{name: "length and chunks", answer: "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", want: invalid, failed: errFraming},
		{name: "other coding", answer: "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", want: invalid, failed: errFraming},
		{name: "chunks in HTTP/1.0", answer: "HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", want: invalid, failed: errFraming},
		{name: "malformed chunk at once", answer: "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n", want: invalid, failed: errChunk},
		{name: "head too large", answer: "HTTP/1.1 200 OK\r\nA: " + strings.Repeat("a", maxResponseHead) + "\r\n\r\n", want: invalid, failed: errHeadSize},

		{name: "less than its length", answer: "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nab",
			want: "HTTP/1.1 200 OK\r\n" + dateIs + "Content-Length: 3\r\n\r\nab", failed: errEOF, ended: true},
		{name: "chunks that end early", answer: "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nab",
			want: "HTTP/1.1 200 OK\r\n" + dateIs + "Transfer-Encoding: chunked\r\n\r\n3\r\nab", failed: errEOF, ended: true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			app := rawApp(t, func(_ int, conn net.Conn, r *bufio.Reader) {
				if _, err := readHead(r); err == nil {
					trySend(conn, tc.answer)
				}
			})
			router := newFakeRouter(app)
			conn := dial(t, serve(t, &Server{Handler: router}))
			method := tc.method
			if method == "" {
				method = "GET"
			}
			write(t, conn, method+getA[3:])
			expect(t, conn, tc.want)
			if r := router.result(t); !errors.Is(r.Err, tc.failed) || (tc.failed == nil) != (r.Err == nil) {
				t.Errorf("result %+v, want the error %v", r, tc.failed)
			}
			if tc.ended {
				expectEnd(t, conn, "")
				return
			}
			// The client's connection is still usable.
			write(t, conn, strings.Replace(getA, "\r\n\r\n", "\r\nConnection: close\r\n\r\n", 1))
			if second := drain(t, conn); !strings.Contains(second, "Connection: close\r\n") {
				t.Errorf("a second response: %q", second)
			}
		})
	}
}

// TestChunks parses chunked bodies at once and byte by byte.
func TestChunks(t *testing.T) {
	for _, tc := range []struct {
		name, in string
		// size is the size of the body with its framing, or 0 if it has no end, data the size without framing.
		size int
		data int64
		err  error
	}{
		{name: "empty", in: "0\r\n\r\nGET", size: 5},
		{name: "zeros", in: "000\r\n\r\n", size: 7},
		{name: "one", in: "1\r\na\r\n0\r\n\r\n", size: 11, data: 1},
		{name: "extension", in: "1;a=\"b\"\r\na\r\n0;c\r\n\r\n", size: 19, data: 1},
		{name: "trailers", in: "0\r\nA: b\r\nc:\r\n\r\n", size: 15},
		{name: "unfinished", in: "1\r\na\r\n"},
		{name: "no size", in: "\r\n", err: errChunk},
		{name: "sign", in: "+1\r\na\r\n", err: errChunk},
		{name: "prefix", in: "0x1\r\na\r\n", err: errChunk},
		{name: "space", in: "1 \r\na\r\n", err: errChunk},
		{name: "LF after the size", in: "1\na\r\n", err: errChunk},
		{name: "LF after the data", in: "1\r\na\n", err: errChunk},
		{name: "LF in an extension", in: "1;a\nb\r\na\r\n", err: errChunk},
		{name: "more data than its size", in: "1\r\nab\r\n", err: errChunk},
		{name: "overflow", in: "10000000000000000\r\n", err: errChunk},
		{name: "endless zeros", in: strings.Repeat("0", 17), err: errChunk},
		{name: "endless extension", in: "1;" + strings.Repeat("a", maxChunkLine), err: errChunk},
		{name: "LF at the end", in: "0\r\n\n", err: errChunk},
		{name: "LF after a trailer", in: "0\r\na: b\n\r\n", err: errChunk},
		{name: "trailer without name", in: "0\r\n: b\r\n\r\n", err: errChunk},
		{name: "folded trailer", in: "0\r\na: b\r\n c\r\n\r\n", err: errChunk},
		{name: "framing as a trailer", in: "0\r\nTransfer-Encoding: chunked\r\n\r\n", err: errChunk},
		{name: "length as a trailer", in: "0\r\ncontent-length: 1\r\n\r\n", err: errChunk},
		{name: "endless trailers", in: "0\r\n" + strings.Repeat("a: b\r\n", maxTrailers/6+1), err: errChunk},
	} {
		t.Run(tc.name, func(t *testing.T) {
			for _, step := range []int{len(tc.in), 1} {
				var c chunks
				size, done := 0, false
				var err error
				for in := []byte(tc.in); len(in) > 0 && !done && err == nil; {
					var n int
					n, done, err = c.feed(in[:min(step, len(in))])
					size, in = size+n, in[min(step, len(in)):]
				}
				if !errors.Is(err, tc.err) || done != (tc.size > 0) {
					t.Errorf("steps of %d: done %v, error %v", step, done, err)
				}
				if done && (size != tc.size || c.data != tc.data) {
					t.Errorf("steps of %d: size %d, data %d", step, size, c.data)
				}
			}
		})
	}
}
