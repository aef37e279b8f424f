package harness

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"text/template"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/knative-apiserver/knative-apiserver/pkg/certs"
)

// overlay is an installation from the shipped manifests whose server runs outside the cluster: the Service has
// the address of the server instead of a selector. Loopback addresses are rejected there.
var overlay = template.Must(template.New("overlay").Parse(`apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
resources:
- {{.Base}}
- endpoints.yaml
patches:
- target: {group: apiregistration.k8s.io, kind: APIService}
  patch: |-
    [{"op": "add", "path": "/spec/caBundle", "value": "{{.CABundle}}"}]
`))

var endpoints = template.Must(template.New("endpoints").Parse(`apiVersion: v1
kind: Service
metadata: {name: knative-apiserver, namespace: knative-system}
spec:
  clusterIP: None
  ports:
  - {name: https, port: 443, targetPort: {{.Port}}, protocol: TCP}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata:
  name: knative-apiserver
  namespace: knative-system
  labels: {kubernetes.io/service-name: knative-apiserver}
addressType: IPv4
ports:
- {name: https, port: {{.Port}}, protocol: TCP}
endpoints:
- addresses: ["{{.Address}}"]
  conditions: {ready: true}
`))

// register applies the shipped manifests, without waiting.
func (i *Installation) register(root string) error {
	dir := i.path("overlay")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	// Kustomize takes relative paths only, and resolves links first.
	from, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return err
	}
	base, err := filepath.Rel(from, filepath.Join(root, "artifacts", "install", "base"))
	if err != nil {
		return err
	}
	ca, err := os.ReadFile(i.path("certs", "ca.crt"))
	if err != nil {
		return err
	}
	values := map[string]any{"Base": base, "CABundle": encode(ca), "Port": i.Port, "Address": i.Address}
	for name, content := range map[string]*template.Template{"kustomization.yaml": overlay, "endpoints.yaml": endpoints} {
		var rendered bytes.Buffer
		if err := content.Execute(&rendered, values); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, name), rendered.Bytes(), 0o600); err != nil {
			return err
		}
	}
	bin, err := KubernetesBin()
	if err != nil {
		return err
	}
	if out, err := exec.Command(filepath.Join(bin, "kubectl"), "--kubeconfig", i.Kubeconfig, "apply", "-k", dir).CombinedOutput(); err != nil {
		return fmt.Errorf("apply manifests: %w\n%s", err, out)
	}
	return nil
}

// APIServices is the resource in which the host registers aggregated servers.
func APIServices() schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: "apiregistration.k8s.io", Version: "v1", Resource: "apiservices"}
}

// Registrations returns all APIServices of the server.
func (c *Clients) Registrations(ctx context.Context) ([]unstructured.Unstructured, error) {
	list, err := c.Dynamic.Resource(APIServices()).List(ctx, metav1.ListOptions{LabelSelector: certs.InjectLabel})
	if err != nil {
		return nil, fmt.Errorf("list APIServices: %w", err)
	}
	registered := map[string]bool{}
	for _, item := range list.Items {
		registered[item.GetName()] = true
	}
	for _, k := range AllKinds() {
		if name := k.Version + "." + k.Group; !registered[name] {
			return nil, fmt.Errorf("no APIService %s with the label %s exists", name, certs.InjectLabel)
		}
	}
	return list.Items, nil
}

// apiServiceAvailable fails unless the host reports a group as available.
func (i *Installation) apiServiceAvailable(ctx context.Context, name string) error {
	response, err := i.Admin.Send(ctx, Request{Method: http.MethodGet, Path: "/apis/apiregistration.k8s.io/v1/apiservices/" + name})
	if err != nil {
		return err
	}
	object := &unstructured.Unstructured{}
	if err := object.UnmarshalJSON(response.Body); err != nil {
		return err
	}
	conditions, _, _ := unstructured.NestedSlice(object.Object, "status", "conditions")
	for _, condition := range conditions {
		if c, ok := condition.(map[string]any); ok && c["type"] == "Available" && c["status"] == "True" {
			return nil
		}
	}
	return fmt.Errorf("APIService %s is not available: %v", name, conditions)
}
