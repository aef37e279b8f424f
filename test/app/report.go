package main

import (
	"encoding/json"
	"net/http"
	"os"
	"strings"
)

// countReport is the response of /count.
type countReport struct {
	// Total is the number of requests so far, including this one, Aborted the number of aborted ones.
	Total   int64 `json:"total"`
	Aborted int64 `json:"aborted"`
}

// concurrencyReport is the response of /concurrency, which includes the request itself. Target is the variable TARGET.
type concurrencyReport struct {
	Current int64  `json:"current"`
	Max     int64  `json:"max"`
	Target  string `json:"target,omitempty"`
}

// infoReport is the response of /info.
type infoReport struct {
	PID      int               `json:"pid"`
	Instance string            `json:"instance"`
	Revision string            `json:"revision"`
	Env      map[string]string `json:"env"`
	Args     []string          `json:"args"`
	Dir      string            `json:"dir"`
}

// headersReport is the response of /headers: the request as received.
type headersReport struct {
	Method     string      `json:"method"`
	URI        string      `json:"uri"`
	Proto      string      `json:"proto"`
	Host       string      `json:"host"`
	RemoteAddr string      `json:"remoteAddr"`
	Header     http.Header `json:"header"`
}

func (a *app) count(w http.ResponseWriter, _ *http.Request) {
	answer(w, countReport{Total: a.total.Load(), Aborted: a.aborted.Load()})
}

func (a *app) concurrency(w http.ResponseWriter, _ *http.Request) {
	answer(w, concurrencyReport{Current: a.current.Load(), Max: a.most.Load(), Target: os.Getenv("TARGET")})
}

func (a *app) info(w http.ResponseWriter, _ *http.Request) {
	dir, err := os.Getwd()
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	env := map[string]string{}
	for _, entry := range os.Environ() {
		name, value, _ := strings.Cut(entry, "=")
		env[name] = value
	}
	answer(w, infoReport{PID: os.Getpid(), Instance: a.instance, Revision: env["K_REVISION"], Env: env, Args: os.Args, Dir: dir})
}

func headers(w http.ResponseWriter, r *http.Request) {
	answer(w, headersReport{Method: r.Method, URI: r.RequestURI, Proto: r.Proto, Host: r.Host, RemoteAddr: r.RemoteAddr, Header: r.Header})
}

func answer(w http.ResponseWriter, report any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(report) // fails if the client disconnected
}
