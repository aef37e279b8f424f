package certs

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"k8s.io/client-go/util/keyutil"
)

// EtcdFiles are the paths of the PEM files of a member of etcd.
type EtcdFiles struct{ Cert, Key, CA string }

// WriteEtcdFiles writes the certificate of this replica's etcd member, its key, and the trusted authorities into dir,
// readable only for the current user, and returns once they exist. Until ctx is canceled, it renews the certificate in its file,
// which etcd reads at every handshake. The key never changes, so that certificate and key always match.
func (m *Manager) WriteEtcdFiles(ctx context.Context, dir string) (EtcdFiles, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return EtcdFiles{}, fmt.Errorf("create directory of etcd certificates: %w", err)
	}
	key, err := newKey()
	if err != nil {
		return EtcdFiles{}, err
	}
	written := make(chan struct{})
	w := &etcdWriter{
		m: m, key: key,
		files: EtcdFiles{
			Cert: filepath.Join(dir, "etcd.crt"), Key: filepath.Join(dir, "etcd.key"), CA: filepath.Join(dir, "etcd-ca.crt"),
		},
		written: sync.OnceFunc(func() { close(written) }),
	}
	k := &keeper{
		client: m.options.Client, namespace: m.options.Namespace, name: m.options.EtcdSecretName,
		clock: m.options.Clock, logger: m.options.Logger,
		rotation: rotation{name: "knative-apiserver-etcd-ca", validity: m.options.EtcdValidity, manual: true},
		rotates:  m.options.Leading,
		known:    func(*state) bool { return true },
		apply:    w.apply,
	}
	m.running.Go(func() { k.run(ctx) })
	select {
	case <-written:
		return w.files, nil
	case <-ctx.Done():
		return EtcdFiles{}, context.Cause(ctx)
	}
}

// etcdWriter writes the files of an etcd member from the state of its authority.
type etcdWriter struct {
	m       *Manager
	key     *ecdsa.PrivateKey
	files   EtcdFiles
	written func()

	// signer, leaf and bundle are the contents of the files.
	signer *authority
	leaf   *leaf
	bundle []byte
}

// apply writes the files whose contents changed or are due for renewal. It returns the next renewal time.
func (w *etcdWriter) apply(s *state, now time.Time) (time.Time, error) {
	if bundle := s.bundle(); !bytes.Equal(bundle, w.bundle) {
		if err := replace(w.files.CA, bundle); err != nil {
			return time.Time{}, err
		}
		w.bundle = bundle
	}
	if w.leaf == nil || !w.signer.cert.Equal(s.signer.cert) || !now.Before(w.leaf.renew) {
		if err := w.issue(s.signer, now); err != nil {
			return time.Time{}, err
		}
	}
	w.m.expiries.WithLabelValues("etcd_ca").Set(seconds(s.signer.cert.NotAfter))
	w.m.expiries.WithLabelValues("etcd").Set(seconds(w.leaf.tls.Leaf.NotAfter))
	w.written()
	return w.leaf.renew, nil
}

func (w *etcdWriter) issue(signer *authority, now time.Time) error {
	l, err := signer.issue(w.m.peerNames("localhost"), w.m.options.LeafValidity, w.key, now)
	if err != nil {
		return err
	}
	if w.leaf == nil {
		keyPEM, err := keyutil.MarshalPrivateKeyToPEM(w.key)
		if err != nil {
			return fmt.Errorf("encode etcd key: %w", err)
		}
		if err := replace(w.files.Key, keyPEM); err != nil {
			return err
		}
	}
	if err := replace(w.files.Cert, l.certPEM); err != nil {
		return err
	}
	w.signer, w.leaf = signer, l
	return nil
}

// replace writes a file atomically: readers see either the old or the new contents.
func replace(path string, content []byte) error {
	temporary, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-")
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	defer os.Remove(temporary.Name())
	_, err = temporary.Write(content)
	if closed := temporary.Close(); err == nil {
		err = closed
	}
	if err == nil {
		err = os.Rename(temporary.Name(), path)
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}
