package main

import (
	"net/http"
	"net/url"
	"path/filepath"
	"strings"
	"testing"
)

func TestFile(t *testing.T) {
	address, _, _ := start(t, "http1")
	target := "http://" + address + "/file?path=" + url.QueryEscape(filepath.Join(t.TempDir(), "note"))
	if got := get(t, http.DefaultClient, target); !strings.Contains(got, "no such file") {
		t.Errorf("a file that is missing reads %q", got)
	}
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPut, target, strings.NewReader("kept"))
	if err != nil {
		t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	response.Body.Close()
	if response.StatusCode != http.StatusNoContent {
		t.Errorf("writing it is answered with %s", response.Status)
	}
	if got := get(t, http.DefaultClient, target); got != "kept" {
		t.Errorf("it reads %q", got)
	}
}
