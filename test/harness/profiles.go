package harness

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"time"
)

// ProfilesVariable is the environment variable with the directory for CPU profiles of all servers that StartStandalone starts. Each file,
// <process>-<number>.pprof, has ten seconds; the last seconds before a server stops are missing.
const ProfilesVariable = "CPU_PROFILES"

// record writes CPU profiles of the server to a directory until it stops.
func (s *Standalone) record(dir string) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		<-s.Exited()
		cancel()
	}()
	clients, err := ClientsOf(s.Kubeconfig)
	for i := 0; err == nil; i++ {
		err = clients.WriteProfile(ctx, "profile?seconds=10", filepath.Join(dir, fmt.Sprintf("%d-%03d.pprof", s.PID(), i)))
	}
	select {
	case <-s.Exited():
	case <-time.After(Patience):
		// It runs, so it did not end the recording.
		fmt.Fprintln(os.Stderr, "No more CPU profiles of the server are recorded:", err)
	}
}

// WriteProfile writes a profile of the server to a file, such as "heap" or "profile?seconds=10".
func (c *Clients) WriteProfile(ctx context.Context, profile, file string) error {
	response, err := c.Send(ctx, Request{Method: http.MethodGet, Path: "/debug/pprof/" + profile, Accept: "*/*"})
	if err != nil {
		return err
	}
	if response.Code != http.StatusOK {
		return fmt.Errorf("code %d: %.500s", response.Code, response.Body)
	}
	return os.WriteFile(file, response.Body, 0o644)
}
