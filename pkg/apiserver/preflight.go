package apiserver

import (
	"context"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
)

// The ConfigMap in which kube-apiserver publishes the CA of its front proxy.
const (
	authenticationNamespace = metav1.NamespaceSystem
	authenticationConfigMap = "extension-apiserver-authentication"
	requestHeaderCAKey      = "requestheader-client-ca-file"
)

// checkFrontProxy checks that the host publishes the CA of its front proxy. Without it, every request through
// kube-aggregator would be anonymous.
func checkFrontProxy(ctx context.Context, host kubernetes.Interface) error {
	where := authenticationNamespace + "/" + authenticationConfigMap
	configMap, err := host.CoreV1().ConfigMaps(authenticationNamespace).Get(ctx, authenticationConfigMap, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("read ConfigMap %s of the host cluster with the CA of its front proxy "+
			"(the Role extension-apiserver-authentication-reader allows it): %w", where, err)
	}
	if configMap.Data[requestHeaderCAKey] == "" {
		return fmt.Errorf("ConfigMap %s of the host cluster has no key %s: start its kube-apiserver with "+
			"--requestheader-client-ca-file and the other aggregation flags, or give this server --requestheader-client-ca-file", where, requestHeaderCAKey)
	}
	return nil
}

var crdResource = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}

// checkNoCRDs returns an error if the host cluster has CustomResourceDefinitions of the same API group and version: the host
// would serve one or the other, with one OpenAPI document for both.
func checkNoCRDs(ctx context.Context, host dynamic.Interface) error {
	list, err := host.Resource(crdResource).List(ctx, metav1.ListOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("list CustomResourceDefinitions of the host cluster: %w", err)
	}
	var conflicts []string
	for i := range list.Items {
		if servesOurVersion(&list.Items[i]) {
			conflicts = append(conflicts, list.Items[i].GetName())
		}
	}
	if len(conflicts) == 0 {
		return nil
	}
	return fmt.Errorf("the host cluster has CustomResourceDefinitions in the API groups of this server: %s. Save their objects "+
		"(kubectl get <kind> -A -o yaml), uninstall Knative and delete these definitions, start this server, and apply the objects again; "+
		"docs/operations.md has the steps", strings.Join(conflicts, ", "))
}

func servesOurVersion(crd *unstructured.Unstructured) bool {
	group, _, _ := unstructured.NestedString(crd.Object, "spec", "group")
	versions, _, _ := unstructured.NestedSlice(crd.Object, "spec", "versions")
	for _, gv := range groupVersions {
		if group != gv.Group {
			continue
		}
		for _, version := range versions {
			if v, ok := version.(map[string]any); ok && v["name"] == gv.Version && v["served"] == true {
				return true
			}
		}
	}
	return false
}
