package backup

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/go-logr/logr"
)

const (
	// endpointFile is the file in the directory of an embedded log that contains the path of its socket.
	endpointFile = "endpoint"

	// segmentsPath is "/frames" in all versions: the command that connects may be of another one.
	segmentsPath = "/frames"
)

// ErrNotRunning is returned by Connect if no process has an embedded log open in the directory.
var ErrNotRunning = errors.New("no server with an embedded event log runs on the data directory")

// Service is a log that other processes can save and restore.
type Service interface {
	Backup(ctx context.Context, w io.Writer) error
	Restore(ctx context.Context, r io.Reader) error
}

// Listener serves a Service to other processes of the same user.
type Listener struct {
	server            *http.Server
	endpoint, tempDir string
}

// Listen serves the log in dir on a socket in a private temporary directory, because the paths of sockets must be short.
func Listen(ctx context.Context, dir string, service Service, logger logr.Logger) (_ *Listener, err error) {
	l := &Listener{endpoint: filepath.Join(dir, endpointFile)}
	if l.tempDir, err = os.MkdirTemp("", "knative-eventlog-"); err != nil {
		return nil, fmt.Errorf("event log: create directory of the socket: %w", err)
	}
	socket := filepath.Join(l.tempDir, "socket")
	listener, err := new(net.ListenConfig).Listen(ctx, "unix", socket)
	if err == nil {
		if err = os.WriteFile(l.endpoint, []byte(socket), 0o600); err != nil {
			listener.Close()
		}
	}
	if err != nil {
		os.RemoveAll(l.tempDir)
		return nil, fmt.Errorf("event log: listen for other processes: %w", err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+segmentsPath, func(w http.ResponseWriter, r *http.Request) {
		if err := service.Backup(r.Context(), w); err != nil {
			logger.Error(err, "Failed to back up event log")
			// The client must not mistake a part of the backup for all of it.
			panic(http.ErrAbortHandler)
		}
	})
	mux.HandleFunc("POST "+segmentsPath, func(w http.ResponseWriter, r *http.Request) {
		if err := service.Restore(r.Context(), r.Body); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.WriteHeader(http.StatusNoContent)
	})
	l.server = &http.Server{Handler: mux, ReadHeaderTimeout: time.Minute}
	go func() { _ = l.server.Serve(listener) }()
	return l, nil
}

// Close aborts requests in progress and removes the socket.
func (l *Listener) Close() {
	l.server.Close()
	os.Remove(l.endpoint)
	os.RemoveAll(l.tempDir)
}

// Remote is the embedded log of another process of the same user. It implements Service.
type Remote struct{ client *http.Client }

// Connect returns the log that another process has open in dir. It fails with ErrNotRunning if none does.
func Connect(ctx context.Context, dir string) (*Remote, error) {
	socket, err := os.ReadFile(filepath.Join(dir, endpointFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: %s", ErrNotRunning, dir)
	}
	if err != nil {
		return nil, fmt.Errorf("find the event log: %w", err)
	}
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", string(socket))
	}
	// A killed server does not remove the file.
	connection, err := dial(ctx, "", "")
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrNotRunning, dir, err)
	}
	connection.Close()
	return &Remote{&http.Client{Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true}}}, nil
}

// Backup saves the log of the other process.
func (r *Remote) Backup(ctx context.Context, w io.Writer) error {
	return r.do(ctx, http.MethodGet, http.NoBody, w)
}

// Restore restores the log of the other process. Its errors have the text of ErrIncomplete and ErrSkipped, but do not wrap
// them.
func (r *Remote) Restore(ctx context.Context, from io.Reader) error {
	return r.do(ctx, http.MethodPost, from, io.Discard)
}

func (r *Remote) do(ctx context.Context, method string, in io.Reader, out io.Writer) error {
	request, err := http.NewRequestWithContext(ctx, method, "http://localhost"+segmentsPath, in)
	if err != nil {
		return err
	}
	response, err := r.client.Do(request)
	if err != nil {
		return fmt.Errorf("request to the event log: %w", err)
	}
	defer response.Body.Close()
	if response.StatusCode/100 != 2 {
		message, _ := io.ReadAll(io.LimitReader(response.Body, 64<<10))
		return errors.New(string(message))
	}
	if _, err := io.Copy(out, response.Body); err != nil {
		return fmt.Errorf("read from the event log: %w", err)
	}
	return nil
}
