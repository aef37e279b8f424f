package main

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/knative-apiserver/knative-apiserver/pkg/etcd"
)

// snapshot runs a snapshot command.
func snapshot(t *testing.T, in io.Reader, args ...string) (*bytes.Buffer, error) {
	t.Helper()
	return execute(t, newSnapshotCommand(), in, args...)
}

// execute runs a command with a standard input, and returns its standard output.
func execute(t *testing.T, command *cobra.Command, in io.Reader, args ...string) (*bytes.Buffer, error) {
	t.Helper()
	var out bytes.Buffer
	command.SetArgs(args)
	command.SetIn(in)
	command.SetOut(&out)
	command.SetErr(io.Discard)
	return &out, command.ExecuteContext(t.Context())
}

// run runs an etcd on a directory while do runs.
func run(t *testing.T, dir string, do func(client *clientv3.Client)) {
	t.Helper()
	e, err := etcd.Start(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer e.Stop()
	client, err := clientv3.New(clientv3.Config{Endpoints: e.Endpoints()})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	do(client)
}

// A restore recreates the objects that were saved while the server ran, and removes later ones.
func TestSnapshotCommands(t *testing.T) {
	dir, file := t.TempDir(), filepath.Join(t.TempDir(), "objects.db")
	at := "--data-dir=" + dir
	if _, err := snapshot(t, nil, "save", at); err == nil || !strings.Contains(err.Error(), dir) {
		t.Errorf("saving where no server runs: %v, want an error that names the directory", err)
	}
	var saved *bytes.Buffer
	run(t, dir, func(client *clientv3.Client) {
		if _, err := client.Put(t.Context(), "kept", "value"); err != nil {
			t.Fatal(err)
		}
		var err error
		if saved, err = snapshot(t, nil, "save", at, "-"); err != nil {
			t.Fatal(err)
		}
		if _, err := snapshot(t, nil, "save", at, file); err != nil {
			t.Fatal(err)
		}
		if _, err := client.Put(t.Context(), "later", "value"); err != nil {
			t.Fatal(err)
		}
		if out, err := snapshot(t, nil, "defragment", at); err != nil || !strings.Contains(out.String(), "bytes") {
			t.Errorf("defragmenting: %q, %v", out, err)
		}
	})
	replace := []string{"restore", at, "--name=knative-apiserver", "--peer-url=http://localhost:0", "--replace"}
	if _, err := snapshot(t, bytes.NewReader(saved.Bytes()[:saved.Len()/2]), append(replace, "-")...); err == nil {
		t.Error("half of a snapshot was restored")
	}
	if _, err := snapshot(t, nil, "restore", at, file); err == nil {
		t.Error("restored without the name of a Pod")
	}
	for from, in := range map[string]io.Reader{"-": saved, file: nil} {
		if _, err := snapshot(t, in, append(replace, from)...); err != nil {
			t.Fatal(err)
		}
		run(t, dir, func(client *clientv3.Client) {
			got, err := client.Get(t.Context(), "", clientv3.WithPrefix(), clientv3.WithKeysOnly())
			if err != nil {
				t.Fatal(err)
			}
			if len(got.Kvs) != 1 || string(got.Kvs[0].Key) != "kept" {
				t.Errorf("restored from %s: %v, want 'kept'", from, got.Kvs)
			}
		})
	}
	if _, err := snapshot(t, nil, "discard", at); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "etcd")); !os.IsNotExist(err) {
		t.Errorf("data exists after discard: %v", err)
	}
	aside, err := filepath.Glob(filepath.Join(dir, "etcd.*"))
	if err != nil || len(aside) != 3 {
		t.Errorf("moved aside: %v, %v, want 3 directories", aside, err)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, ".snapshot-*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}
