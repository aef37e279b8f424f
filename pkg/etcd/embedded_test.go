package etcd

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

func open(t *testing.T, e *Embedded) *clientv3.Client {
	t.Helper()
	client, err := clientv3.New(clientv3.Config{Endpoints: e.Endpoints(), DialTimeout: 10 * time.Second})
	if err != nil {
		t.Fatalf("connecting to etcd: %v", err)
	}
	t.Cleanup(func() { client.Close() })
	return client
}

func TestRestartKeepsData(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	// Longer than the limit of socket paths: the socket must not depend on the data directory.
	dir := filepath.Join(t.TempDir(), strings.Repeat("d", 120))

	first, err := Start(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := open(t, first).Put(ctx, "key", "value"); err != nil {
		t.Fatal(err)
	}
	first.Stop()

	second, err := Start(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer second.Stop()
	got, err := open(t, second).Get(ctx, "key")
	if err != nil {
		t.Fatal(err)
	}
	if len(got.Kvs) != 1 || string(got.Kvs[0].Value) != "value" {
		t.Errorf("after a restart etcd holds %v, want key=value", got.Kvs)
	}
}

func TestDirectoryBelongsToOne(t *testing.T) {
	dir := t.TempDir()
	first, err := Start(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer first.Stop()
	if second, err := Start(dir); !errors.Is(err, ErrInUse) {
		if err == nil {
			second.Stop()
		}
		t.Errorf("starting a second etcd on the directory: %v, want ErrInUse", err)
	}
}

func TestSocketIsPrivate(t *testing.T) {
	e, err := Start(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer e.Stop()
	info, err := os.Stat(e.socketDir)
	if err != nil {
		t.Fatal(err)
	}
	if perm := info.Mode().Perm(); perm != 0o700 {
		t.Errorf("the socket's directory has mode %o, want 700", perm)
	}
}
