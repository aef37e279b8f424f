package apiserver

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
)

func TestServeCurrentOpenAPI(t *testing.T) {
	// Like kube-openapi.
	library := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if hash := r.URL.Query().Get("hash"); hash != "" && hash != "current" {
			http.Redirect(w, r, r.URL.Path+"?hash=current", http.StatusMovedPermanently)
			return
		}
		w.Header().Set("Etag", `"current"`)
		if r.Header.Get("If-None-Match") == `"current"` {
			w.WriteHeader(http.StatusNotModified)
			return
		}
		fmt.Fprint(w, "document")
	})
	tests := []struct {
		name, url, etag string
		wantCode        int
		wantBody        string
	}{
		{"the current hash", "/openapi/v3/apis/g/v1?hash=current", "", http.StatusOK, "document"},
		{"an earlier hash", "/openapi/v3/apis/g/v1?hash=earlier&x=y", "", http.StatusOK, "document"},
		{"no hash", "/openapi/v3/apis/g/v1", "", http.StatusOK, "document"},
		{"not modified", "/openapi/v3/apis/g/v1?hash=current", `"current"`, http.StatusNotModified, ""},
		{"another path", "/other?hash=earlier", "", http.StatusMovedPermanently, "<a href=\"/other?hash=current\">Moved Permanently</a>.\n\n"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			r := httptest.NewRequest(http.MethodGet, test.url, nil)
			if test.etag != "" {
				r.Header.Set("If-None-Match", test.etag)
			}
			w := httptest.NewRecorder()
			serveCurrentOpenAPI(library).ServeHTTP(w, r)
			if w.Code != test.wantCode || w.Body.String() != test.wantBody {
				t.Errorf("answer %d %q, want %d %q", w.Code, w.Body, test.wantCode, test.wantBody)
			}
			if location := w.Header().Get("Location"); (location != "") != (test.wantCode == http.StatusMovedPermanently) {
				t.Errorf("Location = %q with code %d", location, w.Code)
			}
		})
	}
}
