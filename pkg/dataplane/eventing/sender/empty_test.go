package sender

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
)

// accepted is the usual answer of a Go program.
const accepted = "HTTP/1.1 202 Accepted\r\nDate: Mon, 02 Nov 2026 10:00:00 GMT\r\nContent-Length: 0\r\n\r\n"

func TestEmptyAnswer(t *testing.T) {
	for name, test := range map[string]struct {
		answer string
		code   int
	}{
		"accepted":                 {accepted, 202},
		"no content":               {"HTTP/1.1 204 No Content\r\nServer: x\r\n\r\n", 204},
		"no reason":                {"HTTP/1.1 200\r\ncontent-length:0 \r\n\r\n", 200},
		"kept alive":               {"HTTP/1.1 200 OK\r\nConnection: Keep-Alive\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: 0\r\n\r\n", 200},
		"unfinished":               {accepted[:len(accepted)-1], 0},
		"nothing":                  {"", 0},
		"another version":          {"HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n", 0},
		"interim":                  {"HTTP/1.1 100 Continue\r\n\r\n", 0},
		"error":                    {"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\n\r\n", 0},
		"four digits":              {"HTTP/1.1 2022 OK\r\nContent-Length: 0\r\n\r\n", 0},
		"body":                     {"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx", 0},
		"body until the end":       {"HTTP/1.1 200 OK\r\n\r\n", 0},
		"body in chunks":           {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 0\r\n\r\n", 0},
		"two lengths":              {"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nContent-Length: 5\r\n\r\n", 0},
		"connection that is ended": {"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n", 0},
		"event without data":       {"HTTP/1.1 200 OK\r\nce-specversion: 1.0\r\nContent-Length: 0\r\n\r\n", 0},
		"folded field":             {"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n folded\r\n\r\n", 0},
		"space before the colon":   {"HTTP/1.1 200 OK\r\nServer : x\r\nContent-Length: 0\r\n\r\n", 0},
		"field without a name":     {"HTTP/1.1 200 OK\r\n: x\r\nContent-Length: 0\r\n\r\n", 0},
		"bare line feeds":          {"HTTP/1.1 200 OK\nContent-Length: 0\n\n", 0},
	} {
		t.Run(name, func(t *testing.T) {
			checkEmptyAnswer(t, []byte(test.answer), test.code)
			if test.code != 0 {
				checkEmptyAnswer(t, []byte(test.answer+"HTTP/1.1 500 Internal Server Error\r\n\r\n"), test.code)
			}
		})
	}
}

func checkEmptyAnswer(t *testing.T, answer []byte, code int) {
	t.Helper()
	got, size := emptyAnswer(answer)
	if got != code || (got == 0) != (size == 0) {
		t.Errorf("%q: got %d with %d bytes, want %d", answer, got, size, code)
	}
}

// FuzzEmptyAnswer expects that http.ReadResponse reads an answer that is recognized as the same one.
func FuzzEmptyAnswer(f *testing.F) {
	f.Add([]byte(accepted))
	f.Add([]byte("HTTP/1.1 204\r\nConnection: keep-alive\r\nA:\tb\r\n\r\nrest"))
	f.Fuzz(func(t *testing.T, answer []byte) {
		code, size := emptyAnswer(answer)
		if code == 0 {
			return
		}
		from := bytes.NewReader(answer)
		reader := bufio.NewReaderSize(from, len(answer)+16)
		res, err := http.ReadResponse(reader, &http.Request{Method: http.MethodPost})
		if err != nil {
			t.Fatalf("%q: %v", answer, err)
		}
		defer res.Body.Close()
		body, err := io.ReadAll(res.Body)
		if err != nil || len(body) > 0 || res.StatusCode != code || res.Close || res.Header.Get("Ce-Specversion") != "" {
			t.Errorf("%q: got %d %v, body %q, %v, want %d without a body", answer, res.StatusCode, res.Header, body, err, code)
		}
		if read := len(answer) - from.Len() - reader.Buffered(); read != size {
			t.Errorf("%q: the head has %d bytes, want %d", answer, size, read)
		}
	})
}

func BenchmarkEmptyAnswer(b *testing.B) {
	reader := bufio.NewReader(nil)
	b.Run("emptyAnswer", func(b *testing.B) {
		answer := []byte(accepted)
		b.ReportAllocs()
		for b.Loop() {
			if code, _ := emptyAnswer(answer); code != http.StatusAccepted {
				b.Fatal(code)
			}
		}
	})
	b.Run("http.ReadResponse", func(b *testing.B) {
		r := &http.Request{Method: http.MethodPost}
		b.ReportAllocs()
		for b.Loop() {
			reader.Reset(strings.NewReader(accepted))
			res, err := http.ReadResponse(reader, r)
			if err != nil {
				b.Fatal(err)
			}
			fmt.Fprint(io.Discard, res.Body.Close())
		}
	})
}
