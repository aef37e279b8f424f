package logfile

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/workload/revisionlog"
)

func loggingRevision() *servingv1.Revision {
	r := &servingv1.Revision{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "hello"}}
	r.Spec.Containers = []corev1.Container{{Name: "main", Ports: []corev1.ContainerPort{{ContainerPort: 8080}}}, {Name: "side"}}
	return r
}

func sourceOf(root string) Source {
	return Source{Files: &Files{Root: root}, Serving: func(*servingv1.Revision) string { return "main" }}
}

// writeLog appends to a log that was last changed some seconds ago.
func writeLog(t *testing.T, root, name, text string, ago time.Duration) {
	t.Helper()
	path := filepath.Join(root, "default", "hello", name)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	file, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	_, err = file.WriteString(text)
	at := time.Now().Add(-ago)
	if err := errors.Join(err, file.Close(), os.Chtimes(path, at, at)); err != nil {
		t.Fatal(err)
	}
}

// TestSource reads existing lines: by container, by number of lines, by age.
func TestSource(t *testing.T) {
	root := t.TempDir()
	writeLog(t, root, "hello-a.stdout.log", "1\n2\n3\n", 2*time.Hour)
	writeLog(t, root, "hello-a.side.stderr.log", "s", time.Minute)
	writeLog(t, root, "hello-b.stderr.log", "4\n5", 0)
	writeLog(t, root, "hello-b.stdout.log.1", "old\n", 0)
	for _, tt := range []struct {
		name    string
		options servingv1.RevisionLogOptions
		want    string
	}{
		{"all", servingv1.RevisionLogOptions{}, "[hello-a main] 1\n[hello-a main] 2\n[hello-a main] 3\n[hello-a side] s\n[hello-b main] 4\n[hello-b main] 5\n"},
		{"container", servingv1.RevisionLogOptions{Container: "side"}, "[hello-a] s\n"},
		{"last line", servingv1.RevisionLogOptions{Container: "main", TailLines: ptr.To[int64](1)}, "[hello-a] 3\n[hello-b] 5\n"},
		{"more lines than exist", servingv1.RevisionLogOptions{Container: "main", TailLines: ptr.To[int64](9)}, "[hello-a] 1\n[hello-a] 2\n[hello-a] 3\n[hello-b] 4\n[hello-b] 5\n"},
		{"no lines", servingv1.RevisionLogOptions{TailLines: ptr.To[int64](0)}, ""},
		{"recent", servingv1.RevisionLogOptions{SinceSeconds: ptr.To[int64](1800)}, "[hello-a side] s\n[hello-b main] 4\n[hello-b main] 5\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			stream, err := revisionlog.Open(t.Context(), sourceOf(root), loggingRevision(), &tt.options)
			if err != nil {
				t.Fatal(err)
			}
			defer stream.Close()
			got, err := io.ReadAll(stream)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, string(got)); diff != "" {
				t.Errorf("log (-want +got):\n%s", diff)
			}
		})
	}
}

// TestSourceFollows reads new lines, including lines of new backends and of a truncated file.
func TestSourceFollows(t *testing.T) {
	root := t.TempDir()
	writeLog(t, root, "hello-a.stdout.log", "1\n2\n", 0)
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	lines, ended := make(chan string), make(chan error, 1)
	go func() {
		options := &servingv1.RevisionLogOptions{Follow: true, TailLines: ptr.To[int64](1)}
		ended <- sourceOf(root).Copy(ctx, loggingRevision(), options, func(line revisionlog.Line) error {
			lines <- line.Instance + " " + string(line.Text)
			return nil
		})
	}()
	expect := func(want string) {
		t.Helper()
		select {
		case got := <-lines:
			if got != want {
				t.Errorf("got %q, want %q", got, want)
			}
		case <-ctx.Done():
			t.Fatalf("no line, want %q", want)
		}
	}
	expect("hello-a 2")
	writeLog(t, root, "hello-a.stdout.log", "3", 0)
	writeLog(t, root, "hello-a.stdout.log", "4\n", 0)
	expect("hello-a 34")
	writeLog(t, root, "hello-b.stderr.log", "5\n6\n", 0)
	expect("hello-b 5")
	expect("hello-b 6")
	if err := os.Truncate(filepath.Join(root, "default", "hello", "hello-a.stdout.log"), 0); err != nil {
		t.Fatal(err)
	}
	writeLog(t, root, "hello-a.stdout.log", "7\n", 0)
	expect("hello-a 7")
	stop()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("ended with %v", err)
	}
}
