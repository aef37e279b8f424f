package main

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"
)

// stream responds in n chunks at an interval: /stream?n=10&every=100ms.
func stream(w http.ResponseWriter, r *http.Request) {
	chunks(w, r, "chunk %d\n")
}

// sse responds with n server-sent events at an interval: /sse?n=10&every=100ms.
func sse(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-cache")
	chunks(w, r, "data: event %d\n\n")
}

// goodbye responds with a server-sent event, and another one at SIGTERM.
func (a *app) goodbye(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/event-stream")
	fmt.Fprint(w, "data: hello\n\n")
	if http.NewResponseController(w).Flush() != nil {
		return
	}
	select {
	case <-a.ending:
		fmt.Fprint(w, "data: SIGTERM\n\n")
	case <-r.Context().Done():
	}
}

func chunks(w http.ResponseWriter, r *http.Request, format string) {
	every, err := time.ParseDuration(r.URL.Query().Get("every"))
	if err != nil || every <= 0 {
		every = time.Millisecond
	}
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	out := http.NewResponseController(w)
	for i := range number(r, "n", 10) {
		if _, err := fmt.Fprintf(w, format, i); err != nil || out.Flush() != nil {
			return
		}
		select {
		case <-ticker.C:
		case <-r.Context().Done():
			return
		}
	}
}

// echo returns the body while it arrives.
func echo(w http.ResponseWriter, r *http.Request) {
	out := http.NewResponseController(w)
	if err := out.EnableFullDuplex(); err != nil && r.ProtoMajor == 1 {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	if contentType := r.Header.Get("Content-Type"); contentType != "" {
		w.Header().Set("Content-Type", contentType)
	}
	// The response starts before the first byte of the body arrives.
	w.WriteHeader(http.StatusOK)
	if out.Flush() != nil {
		return
	}
	buffer := make([]byte, 32<<10)
	for {
		n, readErr := r.Body.Read(buffer)
		if n > 0 {
			if _, err := w.Write(buffer[:n]); err != nil || out.Flush() != nil {
				return
			}
		}
		if errors.Is(readErr, io.EOF) {
			return
		}
		if readErr != nil {
			// A regular end would look like the end of the body.
			panic(http.ErrAbortHandler)
		}
	}
}

// uploadReport is the response of /upload: size and SHA-256 of the body.
type uploadReport struct {
	Bytes  int64  `json:"bytes"`
	SHA256 string `json:"sha256"`
}

func upload(w http.ResponseWriter, r *http.Request) {
	hash := sha256.New()
	n, err := io.Copy(hash, r.Body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	answer(w, uploadReport{Bytes: n, SHA256: hex.EncodeToString(hash.Sum(nil))})
}
