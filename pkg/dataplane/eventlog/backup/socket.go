package eventlog

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
)

const (
	// endpointFile is the file in the directory of an embedded log that has the path of its socket for other processes.
	endpointFile = "endpoint"
	framesPath   = "/frames"
)

// ErrNotRunning says that no process has an embedded log open on a directory.
var ErrNotRunning = errors.New("no server with an embedded event log runs on the data directory")

// local offers Backup and Restore to other processes of the same user.
type local struct {
	server         *http.Server
	noted, tempDir string
}

// offer begins to listen on a socket in a directory of our own user's. The log's is not it because socket paths are short.
func (l *Log) offer() (_ *local, err error) {
	o := &local{noted: filepath.Join(l.opts.Dir, endpointFile)}
	if o.tempDir, err = os.MkdirTemp("", "knative-eventlog-"); err != nil {
		return nil, fmt.Errorf("event log: directory of the socket: %w", err)
	}
	socket := filepath.Join(o.tempDir, "socket")
	listener, err := new(net.ListenConfig).Listen(l.ctx, "unix", socket)
	if err == nil {
		if err = os.WriteFile(o.noted, []byte(socket), 0o600); err != nil {
			listener.Close()
		}
	}
	if err != nil {
		os.RemoveAll(o.tempDir)
		return nil, fmt.Errorf("event log: listen for other processes: %w", err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+framesPath, func(w http.ResponseWriter, r *http.Request) {
		if err := l.Backup(r.Context(), w); err != nil {
			l.logger.Error(err, "A backup was broken off")
			// What was written is not to be taken for all.
			panic(http.ErrAbortHandler)
		}
	})
	mux.HandleFunc("POST "+framesPath, func(w http.ResponseWriter, r *http.Request) {
		if err := l.Restore(r.Context(), r.Body); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.WriteHeader(http.StatusNoContent)
	})
	o.server = &http.Server{Handler: mux, ReadHeaderTimeout: time.Minute}
	go func() { _ = o.server.Serve(listener) }()
	return o, nil
}

// end breaks off what is under way.
func (o *local) end() {
	o.server.Close()
	os.Remove(o.noted)
	os.RemoveAll(o.tempDir)
}

// Running is the embedded log of another process of the same user.
type Running struct{ client *http.Client }

// Connect returns the log that a process has open on the data in dir. It fails with ErrNotRunning if there is none.
func Connect(ctx context.Context, dir string) (*Running, error) {
	socket, err := os.ReadFile(filepath.Join(dir, endpointFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: %s", ErrNotRunning, dir)
	}
	if err != nil {
		return nil, fmt.Errorf("looking for the event log: %w", err)
	}
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", string(socket))
	}
	// A server that was killed leaves its note.
	connection, err := dial(ctx, "", "")
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrNotRunning, dir, err)
	}
	connection.Close()
	return &Running{&http.Client{Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true}}}, nil
}

// Backup is Log.Backup of the other process.
func (r *Running) Backup(ctx context.Context, w io.Writer) error {
	return r.do(ctx, http.MethodGet, http.NoBody, w)
}

// Restore is Log.Restore of the other process; its errors do not wrap those of the log.
func (r *Running) Restore(ctx context.Context, from io.Reader) error {
	return r.do(ctx, http.MethodPost, from, io.Discard)
}

func (r *Running) do(ctx context.Context, method string, in io.Reader, out io.Writer) error {
	request, err := http.NewRequestWithContext(ctx, method, "http://localhost"+framesPath, in)
	if err != nil {
		return err
	}
	response, err := r.client.Do(request)
	if err != nil {
		return fmt.Errorf("asking the event log: %w", err)
	}
	defer response.Body.Close()
	if response.StatusCode/100 != 2 {
		said, _ := io.ReadAll(io.LimitReader(response.Body, 64<<10))
		return errors.New(string(said))
	}
	if _, err := io.Copy(out, response.Body); err != nil {
		return fmt.Errorf("reading from the event log: %w", err)
	}
	return nil
}
