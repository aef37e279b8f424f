package destination

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Lookup finds the resource of a kind, in another version if the cluster does not serve the one of kind. It asks the cluster
// itself: Mapper is a cache, and leaves out groups whose server did not answer. found is false only if the cluster serves no
// version of the kind; an error means that this is unknown.
func (h *Host) Lookup(ctx context.Context, kind schema.GroupVersionKind) (resource schema.GroupVersionResource, found bool, err error) {
	if h.Discovery == nil {
		return schema.GroupVersionResource{}, false, nil
	}
	var group metav1.APIGroup
	if err := h.discover(ctx, &group, kind.Group); apierrors.IsNotFound(err) {
		return schema.GroupVersionResource{}, false, nil
	} else if err != nil {
		return schema.GroupVersionResource{}, false, err
	}
	versions := make([]string, 0, len(group.Versions))
	for _, version := range group.Versions {
		versions = append(versions, version.Version)
	}
	if i := slices.Index(versions, kind.Version); i > 0 {
		versions[0], versions[i] = versions[i], versions[0]
	}
	for _, version := range versions {
		var resources metav1.APIResourceList
		if err := h.discover(ctx, &resources, kind.Group, version); apierrors.IsNotFound(err) {
			continue
		} else if err != nil {
			return schema.GroupVersionResource{}, false, err
		}
		for _, r := range resources.APIResources {
			if r.Kind == kind.Kind && !strings.Contains(r.Name, "/") {
				return schema.GroupVersionResource{Group: kind.Group, Version: version, Resource: r.Name}, true, nil
			}
		}
	}
	return schema.GroupVersionResource{}, false, nil
}

// discover reads a document of the cluster's discovery below /apis.
func (h *Host) discover(ctx context.Context, into any, path ...string) error {
	path = append([]string{"/apis"}, path...)
	document, err := h.Discovery.Get().AbsPath(path...).SetHeader("Accept", "application/json").Do(ctx).Raw()
	if err == nil {
		err = json.Unmarshal(document, into)
	}
	if err != nil {
		return fmt.Errorf("read %s of the cluster: %w", strings.Join(path, "/"), err)
	}
	return nil
}
