package main

import (
	"io"
	"net/http"
	"os"
)

// file responds to GET with the content of the file in the query parameter path, and replaces it by the body of PUT.
func file(w http.ResponseWriter, r *http.Request) {
	path := r.URL.Query().Get("path")
	if r.Method == http.MethodPut {
		content, err := io.ReadAll(r.Body)
		if err == nil {
			err = os.WriteFile(path, content, 0o644)
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.WriteHeader(http.StatusNoContent)
		return
	}
	content, err := os.ReadFile(path)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	_, _ = w.Write(content) // fails if the client disconnected
}
