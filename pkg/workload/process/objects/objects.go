// Package objects reads the objects of core/v1 that Revisions refer to.
package objects

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/ptr"
)

// Reader reads objects from storage, not from a cache. The error for a missing object satisfies
// apierrors.IsNotFound.
type Reader interface {
	ConfigMap(ctx context.Context, namespace, name string) (*corev1.ConfigMap, error)
	Secret(ctx context.Context, namespace, name string) (*corev1.Secret, error)
	ServiceAccount(ctx context.Context, namespace, name string) error
}

// Reference names an object that Revisions refer to.
type Reference struct {
	Kind            Kind
	Namespace, Name string
}

// Kind is the kind of an object that Revisions refer to.
type Kind string

// Kinds of references.
const (
	ConfigMap      Kind = "ConfigMap"
	Secret         Kind = "Secret"
	ServiceAccount Kind = "ServiceAccount"
)

// Snapshot holds the objects that one backend refers to. Each is read at most once, so that all containers start with the same
// values.
type Snapshot struct {
	ctx       context.Context
	reader    Reader
	namespace string
	read      map[Reference]Data
}

// Data is the content of a ConfigMap or a Secret.
type Data struct {
	// Text values may become variables and files, Binary values only files.
	Text   map[string]string
	Binary map[string][]byte
	err    error
}

// Read returns a Snapshot that reads objects of a namespace, until ctx is canceled.
func Read(ctx context.Context, reader Reader, namespace string) *Snapshot {
	return &Snapshot{ctx: ctx, reader: reader, namespace: namespace, read: map[Reference]Data{}}
}

// Get returns the content of an object, empty if the object is missing and optional. Errors quote no value.
func (s *Snapshot) Get(kind Kind, name string, optional *bool) (Data, error) {
	key := Reference{kind, s.namespace, name}
	d, ok := s.read[key]
	if !ok {
		d = s.fetch(kind, name)
		s.read[key] = d
	}
	switch {
	case d.err == nil:
		return d, nil
	case apierrors.IsNotFound(d.err) && ptr.Deref(optional, false):
		return Data{}, nil
	case apierrors.IsNotFound(d.err):
		return Data{}, fmt.Errorf("%s %q not found", strings.ToLower(string(kind)), name)
	default:
		return Data{}, fmt.Errorf("get %s %q: %w", strings.ToLower(string(kind)), name, d.err)
	}
}

func (s *Snapshot) fetch(kind Kind, name string) Data {
	if kind == Secret {
		secret, err := s.reader.Secret(s.ctx, s.namespace, name)
		if err != nil {
			return Data{err: err}
		}
		d := Data{Text: make(map[string]string, len(secret.Data))}
		for key, value := range secret.Data {
			d.Text[key] = string(value)
		}
		return d
	}
	c, err := s.reader.ConfigMap(s.ctx, s.namespace, name)
	if err != nil {
		return Data{err: err}
	}
	return Data{Text: c.Data, Binary: c.BinaryData}
}

// Value returns the value of a key, and false if the key or the object is missing and optional.
func (s *Snapshot) Value(kind Kind, name, key string, optional *bool) (string, bool, error) {
	d, err := s.Get(kind, name, optional)
	if err != nil {
		return "", false, err
	}
	value, ok := d.Text[key]
	if !ok && !ptr.Deref(optional, false) {
		return "", false, fmt.Errorf("couldn't find key %s in %s %s/%s", key, kind, s.namespace, name)
	}
	return value, ok, nil
}

// CheckServiceAccount returns an error if a ServiceAccount does not exist. Kubernetes creates the default one in each
// Namespace; it is not required to exist here.
func (s *Snapshot) CheckServiceAccount(name string) error {
	if name == "" || name == "default" {
		return nil
	}
	err := s.reader.ServiceAccount(s.ctx, s.namespace, name)
	if apierrors.IsNotFound(err) {
		return fmt.Errorf("serviceaccount %q not found", name)
	}
	return err
}
