package podspec

import (
	"encoding/json"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
)

// everyField returns a Service that sets each field of a container, of its volumes and of the types in them.
const everyField = `
apiVersion: serving.knative.dev/v1
kind: Service
metadata: {name: hello, namespace: default}
spec:
  template:
    metadata:
      name: hello-v1
      labels: {tier: front}
      annotations: {example.com/note: text}
    spec:
      serviceAccountName: shop
      imagePullSecrets: [{name: registry}]
      containers:
      - name: app
        image: registry.example.com/app@sha256:0000000000000000000000000000000000000000000000000000000000000000
        imagePullPolicy: Always
        command: [/app]
        args: [--verbose]
        workingDir: /work
        ports: [{name: h2c, containerPort: 3000, protocol: TCP}]
        terminationMessagePath: /tmp/message
        terminationMessagePolicy: File
        securityContext: {runAsUser: 1000}
        resources:
          requests: {cpu: 100m, memory: 64Mi}
          limits: {cpu: "1", memory: 128Mi}
        env:
        - {name: PLAIN, value: text}
        - {name: FROM_CONFIG, valueFrom: {configMapKeyRef: {name: settings, key: mode, optional: true}}}
        - {name: FROM_SECRET, valueFrom: {secretKeyRef: {name: password, key: value, optional: true}}}
        envFrom:
        - {prefix: CONFIG_, configMapRef: {name: settings, optional: true}}
        - {secretRef: {name: password, optional: true}}
        volumeMounts:
        - {name: config, mountPath: /config, subPath: app, readOnly: true}
        - {name: secret, mountPath: /secret}
        - {name: both, mountPath: /both}
        readinessProbe:
          httpGet: {host: 127.0.0.1, path: /ready, scheme: HTTP, httpHeaders: [{name: X-Probe, value: ready}]}
          initialDelaySeconds: 1
          timeoutSeconds: 2
          successThreshold: 3
          failureThreshold: 4
          periodSeconds: 5
        livenessProbe:
          tcpSocket: {host: 127.0.0.1}
          initialDelaySeconds: 6
          timeoutSeconds: 7
          failureThreshold: 8
        startupProbe: {exec: {command: [/started]}}
      volumes:
      - name: config
        configMap: {name: settings, optional: true, defaultMode: 292, items: [{key: mode, path: app/mode, mode: 256}]}
      - name: secret
        secret: {secretName: password, optional: true, defaultMode: 288, items: [{key: value, path: value, mode: 256}]}
      - name: both
        projected:
          defaultMode: 272
          sources:
          - {configMap: {name: settings, optional: true, items: [{key: mode, path: mode}]}}
          - {secret: {name: password, optional: true, items: [{key: value, path: value}]}}
`

// TestFields checks that each field of a template is accepted and reaches the Pod as core/v1 specifies.
func TestFields(t *testing.T) {
	service := &servingv1.Service{}
	if err := yaml.UnmarshalStrict([]byte(everyField), service); err != nil {
		t.Fatal(err)
	}
	servingv1.SetDefaults_Service(service)
	if errs := servingv1.ValidateService(service, servingv1.DefaultSettings()); len(errs) > 0 {
		t.Fatal(errs.ToAggregate())
	}
	template := service.Spec.Template
	revision := &servingv1.Revision{ObjectMeta: template.ObjectMeta, Spec: template.Spec}
	encoded, err := json.Marshal(New(revision, Options{}))
	if err != nil {
		t.Fatal(err)
	}
	var pod any
	if err := json.Unmarshal(encoded, &pod); err != nil {
		t.Fatal(err)
	}
	const app, volume = "spec.containers.0.", "spec.volumes."
	for path, want := range map[string]string{
		// serving 10.3-1 and -2
		"metadata.labels.tier": `"front"`, "metadata.annotations.example.com/note": `"text"`, app + "name": `"app"`,
		// serving 10.4-1, -2, -5, -6, -8, -14, -15 and -18
		app + "args": `["--verbose"]`, app + "command": `["/app"]`, app + "workingDir": `"/work"`, app + "imagePullPolicy": `"Always"`,
		app + "image":                  `"registry.example.com/app@sha256:` + strings.Repeat("0", 64) + `"`,
		app + "terminationMessagePath": `"/tmp/message"`, app + "terminationMessagePolicy": `"File"`,
		// serving 10.4-3, 10.5-1 to -3, 10.6-1, -2, 10.7-1 to -3, 10.8-1 to -3; the variables of the runtime contract are first
		app + "env.4": `{"name":"PLAIN","value":"text"}`,
		app + "env.5": `{"name":"FROM_CONFIG","valueFrom":{"configMapKeyRef":{"key":"mode","name":"settings","optional":true}}}`,
		app + "env.6": `{"name":"FROM_SECRET","valueFrom":{"secretKeyRef":{"key":"value","name":"password","optional":true}}}`,
		// serving 10.4-4, 10.10-1 to -3, 10.16-1, -2, 10.17-1, -2
		app + "envFrom": `[{"configMapRef":{"name":"settings","optional":true},"prefix":"CONFIG_"},{"secretRef":{"name":"password","optional":true}}]`,
		// serving 10.4-9, 10.15-1 to -3
		app + "ports": `[{"containerPort":3000,"name":"h2c","protocol":"TCP"}]`,
		// serving 10.4-11, 10.18-1, -2
		app + "resources": `{"limits":{"cpu":"1","memory":"128Mi"},"requests":{"cpu":"100m","memory":"64Mi"}}`,
		// serving 10.4-13, 10.19-1
		app + "securityContext.runAsUser": `1000`,
		// serving 10.4-17, 10.20-1 to -4
		app + "volumeMounts.0": `{"mountPath":"/config","name":"config","readOnly":true,"subPath":"app"}`,
		app + "volumeMounts.1": `{"mountPath":"/secret","name":"secret","readOnly":true}`,
		// serving 10.4-10, 10.9-2 to -5, 10.9-7, 10.12-1 to -4, 10.14-1, -2
		app + "readinessProbe": `{"failureThreshold":4,"httpGet":{"host":"127.0.0.1","httpHeaders":[{"name":"X-Probe","value":"ready"}],"path":"/ready","port":3000,` +
			`"scheme":"HTTP"},"initialDelaySeconds":1,"periodSeconds":5,"successThreshold":3,"timeoutSeconds":2}`,
		// serving 10.4-7, 10.9-6, 10.13-1
		app + "livenessProbe.tcpSocket":           `{"host":"127.0.0.1","port":3000}`,
		app + "livenessProbe.initialDelaySeconds": `6`, app + "livenessProbe.timeoutSeconds": `7`, app + "livenessProbe.failureThreshold": `8`,
		// serving 10.9-1, 10.11-1
		app + "startupProbe.exec": `{"command":["/started"]}`,
		// serving 9.4.2-2, 10.21-1, 10.22-1 to -4, 10.25-1 to -3
		volume + "0": `{"configMap":{"defaultMode":292,"items":[{"key":"mode","mode":256,"path":"app/mode"}],"name":"settings","optional":true},"name":"config"}`,
		// serving 10.21-2, 10.23-1 to -4
		volume + "1": `{"name":"secret","secret":{"defaultMode":288,"items":[{"key":"value","mode":256,"path":"value"}],"optional":true,"secretName":"password"}}`,
		// serving 10.21-3, 10.24-1, -2, 10.26-1, -2, 10.27-1, -3, 10.28-1 to -3
		volume + "2": `{"name":"both","projected":{"defaultMode":272,"sources":[{"configMap":{"items":[{"key":"mode","path":"mode"}],"name":"settings","optional":true}},` +
			`{"secret":{"items":[{"key":"value","path":"value"}],"name":"password","optional":true}}]}}`,
		// serving 9.4.2-5, 9.4.2-6, 10.30-1
		"spec.serviceAccountName": `"shop"`, "spec.imagePullSecrets": `[{"name":"registry"}]`,
	} {
		t.Run(path, func(t *testing.T) {
			got, err := json.Marshal(at(pod, path))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, string(got)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// at returns the value at a path of keys and indexes. A key of metadata may contain dots if it is the last.
func at(value any, path string) any {
	for path != "" {
		var key string
		if fields, ok := value.(map[string]any); ok && fields[path] != nil {
			key, path = path, ""
		} else {
			key, path, _ = strings.Cut(path, ".")
		}
		switch v := value.(type) {
		case map[string]any:
			value = v[key]
		case []any:
			index, err := strconv.Atoi(key)
			if err != nil || index >= len(v) {
				return nil
			}
			value = v[index]
		default:
			return nil
		}
	}
	return value
}
