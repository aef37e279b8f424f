package certs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// fileKeeper is like keeper, for a Secret in a file that only this process writes.
type fileKeeper struct {
	*keeper
	path string
}

// run maintains the file until ctx is canceled.
func (k *fileKeeper) run(ctx context.Context) {
	for {
		next, err := k.pass()
		if err != nil {
			k.logger.Error(err, "Failed to sync certificates; retrying", "file", k.path)
			next = k.clock.Now().Add(retry)
		}
		if !k.sleep(ctx, next) {
			return
		}
	}
}

// pass applies the state in the file, performs a due step of a rotation, and returns the time of the next pass.
func (k *fileKeeper) pass() (time.Time, error) {
	now := k.clock.Now()
	secret, err := k.read()
	if err != nil {
		return time.Time{}, err
	}
	current, err := readState(secret)
	if err != nil {
		return time.Time{}, fmt.Errorf("read %s: %w", k.path, err)
	}
	if current == nil {
		if current, err = k.rotation.newState(now); err != nil {
			return time.Time{}, err
		}
		if err := k.write(current.write(secret)); err != nil {
			return time.Time{}, err
		}
	}
	next, err := k.apply(current, now)
	if err != nil {
		return time.Time{}, err
	}
	after, due, err := k.rotation.advance(current, now, true)
	switch {
	case err != nil:
		return time.Time{}, err
	case after != nil:
		return now, k.write(after.write(secret))
	case due.Before(next):
		next = due
	}
	return next, nil
}

// read reads the Secret. It is empty before the first write.
func (k *fileKeeper) read() (*corev1.Secret, error) {
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: k.name}}
	content, err := os.ReadFile(k.path)
	if errors.Is(err, fs.ErrNotExist) {
		return secret, nil
	}
	if err == nil {
		err = json.Unmarshal(content, secret)
	}
	if err != nil {
		return nil, fmt.Errorf("read certificate authority (restore %s, or delete it and its users must trust another one): %w", k.path, err)
	}
	return secret, nil
}

// write writes the Secret.
func (k *fileKeeper) write(secret *corev1.Secret) error {
	content, err := json.Marshal(secret)
	if err != nil {
		return fmt.Errorf("encode certificate authority: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(k.path), 0o700); err != nil {
		return fmt.Errorf("create directory of certificate authority: %w", err)
	}
	return replace(k.path, content)
}
