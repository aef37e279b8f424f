package main

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// app responds to requests and counts them.
type app struct {
	instance string
	mux      *http.ServeMux
	// events receives a report of every event.
	events io.Writer
	// current is the number of requests in flight, most its maximum, total the number of all requests.
	current, most, total atomic.Int64
	// ending is closed by SIGTERM. Nil blocks forever.
	ending <-chan struct{}
	// aborted counts the requests to /abort.
	aborted atomic.Int64
}

func newApp() *app {
	a := &app{
		instance: strconv.Itoa(os.Getpid()) + "-" + strconv.FormatInt(time.Now().UnixNano(), 36),
		mux:      http.NewServeMux(),
		events:   os.Stdout,
	}
	for path, handler := range map[string]http.HandlerFunc{
		"/{$}":         greet,
		"/crash":       crash,
		"/hang":        hang,
		"/abort":       a.abort,
		"/count":       a.count,
		"/concurrency": a.concurrency,
		"/info":        a.info,
		"/headers":     headers,
		"/file":        file,
		"/listen":      a.listen,
		"/status":      statusCode,
		"/stream":      stream,
		"/sse":         sse,
		"/echo":        echo,
		"/upload":      upload,
		"/ws":          a.webSocket,
		"/goodbye":     a.goodbye,
		relayPath:      relay,
	} {
		a.mux.HandleFunc(path, handler)
	}
	return a
}

// ServeHTTP responds to a request, after the delay in the query parameter sleep.
func (a *app) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	// Probes do not count as load.
	if strings.HasPrefix(r.UserAgent(), "kube-probe/") {
		a.mux.ServeHTTP(w, r)
		return
	}
	a.enter()
	defer a.current.Add(-1)

	if text := r.URL.Query().Get("sleep"); text != "" {
		duration, err := time.ParseDuration(text)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		select {
		case <-time.After(duration):
		case <-r.Context().Done():
			return
		}
	}
	if isGRPC(r) {
		serveGRPC(w, r)
		return
	}
	if isEvent(r) && r.URL.Path != relayPath {
		a.receive(w, r)
		return
	}
	a.mux.ServeHTTP(w, r)
}

// enter counts a request that starts.
func (a *app) enter() {
	a.total.Add(1)
	current := a.current.Add(1)
	for {
		most := a.most.Load()
		if current <= most || a.most.CompareAndSwap(most, current) {
			return
		}
	}
}

func greet(w http.ResponseWriter, _ *http.Request) {
	target := os.Getenv("TARGET")
	if target == "" {
		target = "World"
	}
	fmt.Fprintf(w, "Hello %s!\n", target)
}

// crash exits with the code in the query parameter code, 1 by default, after printing the parameter message on standard error.
func crash(_ http.ResponseWriter, r *http.Request) {
	code := number(r, "code", 1)
	message := r.URL.Query().Get("message")
	if message == "" {
		message = "crashing, as asked for"
	}
	fmt.Fprintln(os.Stderr, message)
	os.Exit(code)
}

// listen also serves on the port in the query parameter port, like applications with a port for probes.
func (a *app) listen(w http.ResponseWriter, r *http.Request) {
	listener, err := net.Listen("tcp", ":"+r.URL.Query().Get("port"))
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	go http.Serve(listener, a) //nolint:errcheck // it ends with the process
	w.WriteHeader(http.StatusNoContent)
}

// hang blocks until the client disconnects.
func hang(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }

// abort closes the connection (the stream, in HTTP/2) without a response.
func (a *app) abort(http.ResponseWriter, *http.Request) {
	a.aborted.Add(1)
	panic(http.ErrAbortHandler)
}

// statusCode responds with the status code in the query parameter code, and the text of body.
func statusCode(w http.ResponseWriter, r *http.Request) { respond(w, r, http.StatusOK) }

// respond responds with the status code in the query parameter code, or fallback, and the text of body.
func respond(w http.ResponseWriter, r *http.Request, fallback int) {
	w.WriteHeader(number(r, "code", fallback))
	io.WriteString(w, r.URL.Query().Get("body")) //nolint:errcheck // the client may be gone
}

// number returns a query parameter, or fallback if it is missing or no number.
func number(r *http.Request, name string, fallback int) int {
	if n, err := strconv.Atoi(r.URL.Query().Get(name)); err == nil {
		return n
	}
	return fallback
}
