//go:build linux

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
)

func TestPrivateRegistryNeedsThePassword(t *testing.T) {
	handler := requirePassword(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }))
	for name, test := range map[string]struct {
		user, password string
		want           int
	}{
		"right":          {registryUser, registryPassword, http.StatusNoContent},
		"wrong password": {registryUser, "guess", http.StatusUnauthorized},
		"wrong user":     {"someone", registryPassword, http.StatusUnauthorized},
		"none":           {"", "", http.StatusUnauthorized},
	} {
		t.Run(name, func(t *testing.T) {
			request := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/v2/", nil)
			if test.user != "" {
				request.SetBasicAuth(test.user, test.password)
			}
			recorder := httptest.NewRecorder()
			handler.ServeHTTP(recorder, request)
			if recorder.Code != test.want {
				t.Errorf("status %d, want %d", recorder.Code, test.want)
			}
			// Without a challenge, clients do not send their credentials.
			if challenge := recorder.Header().Get("WWW-Authenticate"); (challenge != "") != (test.want == http.StatusUnauthorized) {
				t.Errorf("challenge %q", challenge)
			}
		})
	}
}

func TestClaimWanted(t *testing.T) {
	for name, test := range map[string]struct {
		claim string
		want  bool
	}{
		"has a node": {`{"metadata":{"annotations":{"volume.kubernetes.io/selected-node":"node"}},"spec":{"storageClassName":"standard"}}`, true},
		"has no pod": {`{"spec":{"storageClassName":"standard"}}`, false},
		"is bound": {`{"metadata":{"annotations":{"volume.kubernetes.io/selected-node":"node"}},
			"spec":{"storageClassName":"standard","volumeName":"pv"}}`, false},
		"of another class": {`{"metadata":{"annotations":{"volume.kubernetes.io/selected-node":"node"}},"spec":{"storageClassName":"fast"}}`, false},
		"a raw device": {`{"metadata":{"annotations":{"volume.kubernetes.io/selected-node":"node"}},
			"spec":{"storageClassName":"standard","volumeMode":"Block"}}`, false},
	} {
		t.Run(name, func(t *testing.T) {
			var c claim
			if err := json.Unmarshal([]byte(test.claim), &c); err != nil {
				t.Fatal(err)
			}
			if got := c.wanted(); got != test.want {
				t.Errorf("got %t", got)
			}
		})
	}
}

// volumeServer is a kube-apiserver with one claim that waits from the start, and one volume that is released later.
func volumeServer(t *testing.T, calls chan<- string) *httptest.Server {
	t.Helper()
	mux := http.NewServeMux()
	mux.HandleFunc("GET /api/v1/persistentvolumeclaims", func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("watch") != "" {
			<-r.Context().Done()
			return
		}
		fmt.Fprint(w, `{"metadata":{"resourceVersion":"7"},"items":[{"metadata":{"namespace":"ns","name":"data","uid":"1",
			"annotations":{"volume.kubernetes.io/selected-node":"node"}},
			"spec":{"storageClassName":"standard","accessModes":["ReadWriteOnce"],"resources":{"requests":{"storage":"1Gi"}}}}]}`)
	})
	mux.HandleFunc("GET /api/v1/persistentvolumes", func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("watch") == "" {
			fmt.Fprint(w, `{"metadata":{"resourceVersion":"8"},"items":[
				{"metadata":{"name":"of-someone-else"},"status":{"phase":"Released"}}]}`)
			return
		}
		if version := r.URL.Query().Get("resourceVersion"); version != "8" {
			t.Errorf("watches from version %q", version)
		}
		fmt.Fprintf(w, `{"type":"MODIFIED","object":{"metadata":{"name":"pvc-0","annotations":{%q:%q}},"status":{"phase":"Released"}}}`,
			provisionedBy, provisionerName)
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	})
	mux.HandleFunc("POST /api/v1/persistentvolumes", func(w http.ResponseWriter, r *http.Request) {
		var v struct {
			Metadata metadata
			Spec     struct {
				ClaimRef struct{ Namespace, Name, UID string }
				Local    struct{ Path string }
				Capacity map[string]string
			}
		}
		if err := json.NewDecoder(r.Body).Decode(&v); err != nil {
			t.Error(err)
		}
		calls <- fmt.Sprintf("create %s for %s/%s/%s with %s", v.Metadata.Name,
			v.Spec.ClaimRef.Namespace, v.Spec.ClaimRef.Name, v.Spec.ClaimRef.UID, v.Spec.Capacity["storage"])
		w.WriteHeader(http.StatusCreated)
	})
	mux.HandleFunc("DELETE /api/v1/persistentvolumes/{name}", func(_ http.ResponseWriter, r *http.Request) {
		calls <- "delete " + r.PathValue("name")
	})
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	return server
}

func TestProvisioner(t *testing.T) {
	calls := make(chan string, 10)
	server := volumeServer(t, calls)
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "pvc-0", "of a pod"), 0o700); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		(&provisioner{client: &client{*server.Client()}, server: server.URL, dir: dir}).run(ctx)
	}()
	got := map[string]bool{<-calls: true, <-calls: true}
	cancel()
	<-ended
	for _, want := range []string{"create pvc-1 for ns/data/1 with 1Gi", "delete pvc-0"} {
		if !got[want] {
			t.Errorf("calls %v miss %q", got, want)
		}
	}
	stat, err := os.Stat(filepath.Join(dir, "pvc-1"))
	if err != nil {
		t.Fatal(err)
	}
	if stat.Mode().Perm() != 0o777 {
		t.Errorf("the volume has mode %v, in which a pod's user cannot write", stat.Mode())
	}
	if _, err := os.Stat(filepath.Join(dir, "pvc-0")); !os.IsNotExist(err) {
		t.Errorf("the data of the released volume is still there: %v", err)
	}
}
