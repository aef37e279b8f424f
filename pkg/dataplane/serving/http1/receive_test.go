package http1

import (
	"crypto/sha256"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"
)

// TestEvents expects server-sent events to arrive one by one, with and without pauses between them.
func TestEvents(t *testing.T) {
	next := make(chan time.Duration)
	app := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		w.WriteHeader(200)
		for pause := range next {
			http.NewResponseController(w).Flush()
			<-time.After(pause)
			trySend(w, "data: a\n\n")
			http.NewResponseController(w).Flush()
		}
	}))
	defer app.Close()
	router := newFakeRouter(app.Listener.Addr().String())
	next0 := func() { next <- 0 }
	go next0()
	resp, err := http.Get("http://" + serve(t, &Server{Handler: router}))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	expect(t, resp.Body, "data: a\n\n")
	for _, pause := range []time.Duration{0, 0, 2 * watchAfter, 0, 4 * watchAfter, 0} {
		next <- pause
		expect(t, resp.Body, "data: a\n\n")
	}
	close(next)
	expectEnd(t, resp.Body, "")
}

// TestLargeAnswers expects long bodies in each framing to arrive unchanged at many concurrent clients.
func TestLargeAnswers(t *testing.T) {
	data := make([]byte, 5<<20)
	random := rand.NewChaCha8([32]byte{})
	_, _ = random.Read(data)
	want := sha256.Sum256(data)
	app := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/length":
			http.ServeContent(w, r, "", time.Time{}, strings.NewReader(string(data)))
		case "/chunks":
			_, _ = io.Copy(w, struct{ io.Reader }{strings.NewReader(string(data))})
		case "/close":
			conn, _, _ := http.NewResponseController(w).Hijack()
			trySend(conn, "HTTP/1.1 200 OK\r\n\r\n")
			trySend(conn, string(data))
			conn.Close()
		}
	}))
	defer app.Close()
	addr := serve(t, &Server{Handler: newFakeRouter(app.Listener.Addr().String())})
	var wg sync.WaitGroup
	for _, path := range []string{"/length", "/chunks", "/close", "/length", "/chunks"} {
		wg.Go(func() {
			for range 2 {
				resp, err := http.Get("http://" + addr + path)
				if err != nil {
					t.Error(err)
					return
				}
				got := sha256.New()
				n, err := io.Copy(got, resp.Body)
				resp.Body.Close()
				if err != nil || [32]byte(got.Sum(nil)) != want {
					t.Errorf("%s: %d bytes, error %v", path, n, err)
				}
			}
		})
	}
	wg.Wait()
}

// TestManyClients expects each of several concurrent clients to get its own responses over a shared backend.
func TestManyClients(t *testing.T) {
	app := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		trySend(w, r.URL.RawQuery+string(body))
	}))
	defer app.Close()
	addr := serve(t, &Server{Handler: newFakeRouter(app.Listener.Addr().String())})
	var wg sync.WaitGroup
	for client := range 20 {
		wg.Go(func() {
			transport := &http.Transport{}
			defer transport.CloseIdleConnections()
			for i := range 100 {
				want := string(rune('a'+client)) + strings.Repeat("x", i*37%3000)
				req, _ := http.NewRequestWithContext(t.Context(), "PUT", "http://"+addr+"/?"+want[:1], strings.NewReader(want[1:]))
				resp, err := transport.RoundTrip(req)
				if err != nil {
					t.Error(err)
					return
				}
				got, err := io.ReadAll(resp.Body)
				resp.Body.Close()
				if string(got) != want || err != nil {
					t.Errorf("client %d got %d bytes, want %d: %v", client, len(got), len(want), err)
				}
			}
		})
	}
	wg.Wait()
}
