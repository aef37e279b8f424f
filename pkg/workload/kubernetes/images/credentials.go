package images

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// defaultServiceAccount is the ServiceAccount of Pods without one.
const defaultServiceAccount = "default"

// credentials returns the credentials to try for a repository. As in the kubelet, credentials of longer paths precede
// others. The last one is anonymous, for public images.
func (r *Resolver) credentials(ctx context.Context, pull Pull, repository name.Repository) []authn.Authenticator {
	var all []entry
	for _, secret := range r.secrets(ctx, pull) {
		entries, err := parse(secret)
		if err != nil {
			r.options.Logger.Info("Failed to read pull secret", "secret", secret.Name, "namespace", secret.Namespace, "error", err.Error())
		}
		all = append(all, entries...)
	}
	all = slices.DeleteFunc(all, func(e entry) bool { return !e.matches(repository) })
	slices.SortStableFunc(all, func(a, b entry) int { return cmp.Compare(len(b.path), len(a.path)) })
	credentials := make([]authn.Authenticator, 0, len(all)+1)
	for _, e := range all {
		credentials = append(credentials, authn.FromConfig(e.config))
	}
	return append(credentials, authn.Anonymous)
}

// secrets returns the pull secrets of the Pod, then of its ServiceAccount. Like the kubelet, it ignores missing ones.
func (r *Resolver) secrets(ctx context.Context, pull Pull) []*corev1.Secret {
	names := strings.FieldsFunc(pull.Secrets, func(c rune) bool { return c == ',' })
	core := r.options.Client.CoreV1()
	account, err := core.ServiceAccounts(pull.Namespace).Get(ctx, cmp.Or(pull.ServiceAccount, defaultServiceAccount), metav1.GetOptions{})
	if err == nil {
		for _, secret := range account.ImagePullSecrets {
			names = append(names, secret.Name)
		}
	} else if !apierrors.IsNotFound(err) {
		r.options.Logger.Info("Failed to read pull secrets of service account", "namespace", pull.Namespace, "error", err.Error())
	}
	var secrets []*corev1.Secret
	for i, name := range names {
		if slices.Contains(names[:i], name) {
			continue
		}
		secret, err := core.Secrets(pull.Namespace).Get(ctx, name, metav1.GetOptions{})
		if err == nil {
			secrets = append(secrets, secret)
		} else if !apierrors.IsNotFound(err) {
			r.options.Logger.Info("Failed to read pull secret", "secret", name, "namespace", pull.Namespace, "error", err.Error())
		}
	}
	return secrets
}

// entry is one credential of a pull secret.
type entry struct {
	registry, path string
	config         authn.AuthConfig
}

// matches reports whether a credential applies to a repository: to its registry, and to its path or a parent of it.
func (e *entry) matches(repository name.Repository) bool {
	if e.registry != repository.RegistryStr() {
		return false
	}
	path, ok := strings.CutPrefix(repository.RepositoryStr(), e.path)
	return ok && (e.path == "" || path == "" || path[0] == '/')
}

// parse returns the credentials in a Secret of either type that the kubelet supports.
func parse(secret *corev1.Secret) ([]entry, error) {
	var auths map[string]authn.AuthConfig
	switch secret.Type {
	case corev1.SecretTypeDockerConfigJson:
		var file struct {
			Auths map[string]authn.AuthConfig `json:"auths"`
		}
		if err := json.Unmarshal(secret.Data[corev1.DockerConfigJsonKey], &file); err != nil {
			return nil, fmt.Errorf("parse %s: %w", corev1.DockerConfigJsonKey, err)
		}
		auths = file.Auths
	case corev1.SecretTypeDockercfg:
		if err := json.Unmarshal(secret.Data[corev1.DockerConfigKey], &auths); err != nil {
			return nil, fmt.Errorf("parse %s: %w", corev1.DockerConfigKey, err)
		}
	default:
		return nil, fmt.Errorf("type %q is not a pull secret type", secret.Type)
	}
	var entries []entry
	for key, config := range auths {
		host, path := split(key)
		registry, err := name.NewRegistry(host, name.WeakValidation)
		if err != nil {
			continue
		}
		entries = append(entries, entry{registry: registry.RegistryStr(), path: path, config: config})
	}
	return entries, nil
}

// split returns the host and the path of a key, which may be a URL. It drops the protocol version that some tools append to
// the host.
func split(key string) (host, path string) {
	if _, rest, ok := strings.Cut(key, "://"); ok {
		key = rest
	}
	host, path, _ = strings.Cut(key, "/")
	path = strings.TrimSuffix(path, "/")
	if path == "v1" || path == "v2" {
		path = ""
	}
	return host, path
}
