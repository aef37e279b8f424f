package standalone

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// serving are the files of an application, except the core kinds. APP is its program.
var serving = map[string]string{
	"service.yaml": `apiVersion: serving.knative.dev/v1
kind: Service
metadata: {name: web, namespace: NAMESPACE}
spec:
  template:
    metadata: {annotations: {autoscaling.knative.dev/min-scale: "1"}}
    spec:
      serviceAccountName: runner
      containers:
      - image: registry.example.com/web
        command: [APP]
        envFrom: [{prefix: CONFIG_, configMapRef: {name: settings}}, {secretRef: {name: none, optional: true}}]
        env: [{name: PASSWORD, valueFrom: {secretKeyRef: {name: credentials, key: password}}}]
        volumeMounts:
        - {name: settings, mountPath: /knative-apiserver-test/settings, readOnly: true}
        - {name: settings, mountPath: /etc/knative-apiserver-test.properties, subPath: app.properties, readOnly: true}
        - {name: all, mountPath: /knative-apiserver-test/all, readOnly: true}
      volumes:
      - {name: settings, configMap: {name: settings}}
      - {name: all, projected: {sources: [{secret: {name: credentials, items: [{key: password, path: deep/password}]}}, {configMap: {name: settings}}]}}
`,
	"trigger.yaml": `apiVersion: eventing.knative.dev/v1
kind: Broker
metadata: {name: default, namespace: NAMESPACE}
---
apiVersion: eventing.knative.dev/v1
kind: Trigger
metadata: {name: web, namespace: NAMESPACE}
spec:
  broker: default
  subscriber: {ref: {apiVersion: serving.knative.dev/v1, kind: Service, name: web}}
`,
}

// gatewayGet sends a GET request for a path to a Service.
func gatewayGet(t testing.TB, s *harness.Standalone, host, path string) (int, string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.Gateway+path, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	request.Host = host
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, err.Error()
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return 0, err.Error()
	}
	return response.StatusCode, string(body)
}

// TestKubectlAppliesAnApplication checks that kubectl apply -f works for the directory of an application, and that its
// ConfigMaps and Secrets reach the processes.
func TestKubectlAppliesAnApplication(t *testing.T) {
	data := t.TempDir()
	own := harness.RunStandalone(t, data)
	files := maps.Clone(application)
	maps.Copy(files, serving)
	files["service.yaml"] = strings.ReplaceAll(files["service.yaml"], "APP", harness.AppBinary(t))
	dir := writeFiles(t, files, "shop")
	kubectl := harness.NewKubectl(t, own.Kubeconfig, "")
	kubectl.Must(t, "", "apply", "-f", dir)
	kubectl.Must(t, "", "wait", "-n", "shop", "ksvc/web", "broker/default", "trigger/web", "--for=condition=Ready", "--timeout=60s")

	const host = "web.shop.localhost"
	environment := func() string {
		_, body := gatewayGet(t, own, host, "/info")
		return body
	}()
	for _, want := range []string{`"CONFIG_GREETING":"hello"`, `"CONFIG_app.properties":"a=b\n"`, `"PASSWORD":"hunter2"`} {
		if !strings.Contains(environment, want) {
			t.Errorf("no variable %s in %s", want, environment)
		}
	}
	for path, want := range map[string]string{
		"/knative-apiserver-test/settings/GREETING":  "hello",
		"/knative-apiserver-test/settings/logo":      "\x00\x01\x02",
		"/etc/knative-apiserver-test.properties":     "a=b\n",
		"/knative-apiserver-test/all/deep/password":  "hunter2",
		"/knative-apiserver-test/all/app.properties": "a=b\n",
	} {
		if code, got := gatewayGet(t, own, host, "/file?path="+path); code != http.StatusOK || got != want {
			t.Errorf("%s is %q, code %d, want %q", path, got, code, want)
		}
		if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is on the machine: %v", path, err)
		}
	}
	kubectl.Must(t, "", "patch", "-n", "shop", "cm", "settings", "--type=merge", "-p", `{"data":{"GREETING":"goodbye"}}`)
	harness.Eventually(t, "the volume has the new value", func() error {
		if _, got := gatewayGet(t, own, host, "/file?path=/knative-apiserver-test/settings/GREETING"); got != "goodbye" {
			return fmt.Errorf("it has %q", got)
		}
		return nil
	})

	event, err := http.NewRequestWithContext(t.Context(), http.MethodPost, own.Broker+"/shop/default", strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range map[string]string{"Specversion": "1.0", "Id": "the-event", "Source": "/test", "Type": "test"} {
		event.Header.Set("Ce-"+name, value)
	}
	response, err := http.DefaultClient.Do(event)
	if err != nil || response.Body.Close() != nil || response.StatusCode != http.StatusAccepted {
		t.Fatalf("%v, %v", response, err)
	}
	harness.Eventually(t, "the Service has the event", func() error {
		logs, err := filepath.Glob(filepath.Join(data, "revisions", "logs", "shop", "*", "*.log"))
		for _, name := range logs {
			if content, err := os.ReadFile(name); err == nil && bytes.Contains(content, []byte("the-event")) {
				return nil
			}
		}
		return fmt.Errorf("it is in none of %q, %w", logs, err)
	})
	if strings.Contains(own.Log(), "hunter2") {
		t.Error("the value of a Secret is in the log of the server")
	}

	kubectl.Must(t, "", "delete", "-f", dir, "--ignore-not-found", "--wait=true")
	if left := kubectl.Run(t, "", "get", "knative,cm,secret,sa", "-n", "shop"); left.Stdout != "" {
		t.Errorf("the deleted Namespace still has %s", left.Stdout)
	}
}

// TestMissingObjects checks that a Revision reports missing objects, and becomes ready once they exist.
func TestMissingObjects(t *testing.T) {
	own := harness.RunStandalone(t, t.TempDir())
	files := map[string]string{"service.yaml": strings.ReplaceAll(serving["service.yaml"], "APP", harness.AppBinary(t))}
	dir := writeFiles(t, files, "shop")
	kubectl := harness.NewKubectl(t, own.Kubeconfig, "shop")
	kubectl.Must(t, "", "apply", "-f", dir)
	lacks := func(reason, message string) {
		t.Helper()
		harness.Eventually(t, "the Revision reports "+message, func() error {
			got := kubectl.Run(t, "", "get", "rev", "web-00001", "-o", `jsonpath={.status.conditions[?(@.type=="ResourcesAvailable")]}`).Stdout
			if !strings.Contains(got, `"reason":"`+reason+`"`) || !strings.Contains(got, message) {
				return errors.New(got)
			}
			return nil
		})
	}
	lacks("FailedCreate", `serviceaccount \"runner\" not found`)
	kubectl.Must(t, "", "create", "sa", "runner")
	lacks("CreateContainerConfigError", `configmap \"settings\" not found`)
	kubectl.Must(t, "", "create", "cm", "settings", "--from-literal=app.properties=x")
	lacks("CreateContainerConfigError", `secret \"credentials\" not found`)
	kubectl.Must(t, "", "create", "secret", "generic", "credentials", "--from-literal=user=x")
	lacks("CreateContainerConfigError", `couldn't find key password in Secret shop/credentials`)
	kubectl.Must(t, "", "patch", "secret", "credentials", "-p", `{"stringData":{"password":"y"}}`)
	kubectl.Must(t, "", "wait", "ksvc/web", "--for=condition=Ready", "--timeout=60s")
}

// TestSettingsFromConfigMaps checks that the settings ConfigMaps of a cluster work without one too.
func TestSettingsFromConfigMaps(t *testing.T) {
	own := harness.RunStandalone(t, t.TempDir())
	kubectl := harness.NewKubectl(t, own.Kubeconfig, "default")
	kubectl.Must(t, manifest(t, object{"apiVersion": "v1", "kind": "ConfigMap",
		"metadata": object{"name": "config-domain", "namespace": "knative-system"}, "data": object{"apps.example.com": ""}}), "apply", "--namespace=knative-system", "-f", "-")
	kubectl.Must(t, manifest(t, withoutNamespace(harness.KindOf("Service"))), "apply", "-f", "-")
	harness.Eventually(t, "the Service has a name of the domain", func() error {
		if url := kubectl.Must(t, "", "get", "ksvc", "a", "-o", "jsonpath={.status.url}"); !strings.Contains(url, "a.default.apps.example.com") {
			return errors.New(url)
		}
		return nil
	})
}
