package v1

import (
	"encoding/json"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"sigs.k8s.io/yaml"
)

// fuzzSeeds are manifests as users write them.
func fuzzSeeds() []string {
	return []string{
		`
apiVersion: serving.knative.dev/v1
kind: Service
metadata: {name: hello, namespace: default}
spec:
  template:
    spec:
      containers:
      - image: registry.example.com/helloworld-go:latest
        ports: [{containerPort: 8080}]
        env: [{name: TARGET, value: World}]
`, `
metadata:
  name: tuned
  namespace: shop
  labels: {networking.knative.dev/visibility: cluster-local}
  annotations: {serving.knative.dev/rollout-duration: 380s}
spec:
  template:
    metadata:
      name: tuned-v2
      creationTimestamp: null
      labels: {app: tuned}
      annotations:
        autoscaling.knative.dev/class: kpa.autoscaling.knative.dev
        autoscaling.knative.dev/metric: rps
        autoscaling.knative.dev/target: "150.5"
        autoscaling.knative.dev/min-scale: "2"
        autoscaling.knative.dev/maxScale: "10"
        autoscaling.knative.dev/window: 60s
        autoscaling.knative.dev/scale-down-delay: 15m
    spec:
      containerConcurrency: 50
      timeoutSeconds: 120
      responseStartTimeoutSeconds: 60
      idleTimeoutSeconds: 0
      serviceAccountName: shop
      imagePullSecrets: [{name: registry}]
      containers:
      - name: app
        image: registry.example.com:5000/shop/app@sha256:0000000000000000000000000000000000000000000000000000000000000000
        command: [/app]
        args: [--verbose]
        ports: [{name: h2c, containerPort: 9000}]
        resources:
          limits: {cpu: 1500m, memory: 1Gi, nvidia.com/gpu: 1}
          requests: {cpu: "0.5", memory: 512Mi}
        readinessProbe: {httpGet: {path: /ready, port: 9000}, periodSeconds: 5}
        livenessProbe: {grpc: {port: 9000}, initialDelaySeconds: 3, failureThreshold: 5}
        startupProbe: {exec: {command: [cat, /tmp/up]}}
        securityContext:
          runAsNonRoot: true
          runAsUser: 1000
          allowPrivilegeEscalation: false
          capabilities: {drop: [ALL], add: [NET_BIND_SERVICE]}
          seccompProfile: {type: RuntimeDefault}
  traffic:
  - {tag: current, revisionName: tuned-v1, percent: 90}
  - {tag: candidate, latestRevision: true, percent: 10}
`, `
metadata: {name: several, namespace: default}
spec:
  template:
    spec:
      containers:
      - image: app
        ports: [{containerPort: 8080, name: http1}]
        env:
        - {name: KEY, valueFrom: {secretKeyRef: {name: s, key: k}}}
        - {name: FLAG, valueFrom: {configMapKeyRef: {name: c, key: k, optional: true}}}
        envFrom: [{prefix: X_, configMapRef: {name: all}}, {secretRef: {name: all}}]
        volumeMounts:
        - {name: config, mountPath: /etc/app, readOnly: true}
        - {name: scratch, mountPath: /tmp/work}
        - {name: all, mountPath: /var/run/all, subPath: a}
      - name: sidecar
        image: proxy
        env: [{name: PORT, value: "9999"}]
        volumeMounts: [{name: scratch, mountPath: /work}]
      volumes:
      - {name: config, configMap: {name: c, items: [{key: a, path: a.yaml, mode: 256}], defaultMode: 420}}
      - {name: scratch, emptyDir: {medium: Memory, sizeLimit: 64Mi}}
      - name: all
        projected:
          sources:
          - configMap: {name: c}
          - secret: {name: s, items: [{key: a, path: b}]}
          - serviceAccountToken: {path: token, audience: x, expirationSeconds: 3600}
          - downwardAPI: {items: [{path: l, fieldRef: {fieldPath: metadata.labels}}]}
`, `
metadata: {name: wrong, generateName: wrong-, namespace: default, annotations: {autoscaling.knative.dev/min-scale: "1"}}
spec:
  template:
    spec:
      nodeSelector: {a: b}
      securityContext: {}
      initContainers: [{image: a, readinessProbe: {}}, null]
      containers: [{image: "A B", lifecycle: {}, ports: [{hostPort: 1}, null]}, null]
      volumes: [{name: a, nfs: {}}, {}, {emptyDir: {}, secret: {}}]
  traffic: [null, {url: x, percent: -1}]
`,
	}
}

// FuzzServiceValidation checks that no input breaks validation, and that valid Services are stable: they
// are read as they were written, with all defaults set.
func FuzzServiceValidation(f *testing.F) {
	for _, manifest := range fuzzSeeds() {
		data, err := yaml.YAMLToJSON([]byte(manifest))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data, []byte{}, false)
		f.Add(data, []byte{1, 2, 30, 7, 100, 12}, true)
	}
	f.Fuzz(func(t *testing.T, data, edits []byte, everything bool) {
		checkStable(t, edit(data, edits), everything)
	})
}

// checkStable reports whether data is a valid Service, and fails the test if a valid Service is not stable.
func checkStable(t *testing.T, data []byte, everything bool) bool {
	s := &Service{}
	if err := utiljson.Unmarshal(data, s); err != nil {
		return false
	}
	// The server writes these itself.
	s.ManagedFields, s.CreationTimestamp, s.DeletionTimestamp = nil, metav1.Time{}, nil
	s.Status = ServiceStatus{}
	SetDefaults_Service(s)

	st := DefaultSettings()
	if everything {
		for _, flag := range st.Features.flags() {
			*flag = true
		}
	}
	ValidateServiceUpdate(s, &Service{}, st)
	if len(ValidateService(s, st)) > 0 {
		return false
	}

	twice := s.DeepCopy()
	SetDefaults_Service(twice)
	if !equality.Semantic.DeepEqual(s, twice) {
		t.Errorf("defaulting changed a defaulted Service (-once +twice):\n%s", cmp.Diff(s, twice))
	}
	written, err := json.Marshal(s)
	if err != nil {
		t.Fatalf("a valid Service cannot be written: %v", err)
	}
	read := &Service{}
	if err := utiljson.Unmarshal(written, read); err != nil {
		t.Fatalf("a valid Service cannot be read back: %v", err)
	}
	if !equality.Semantic.DeepEqual(s, read) {
		t.Errorf("a round trip changed a Service (-written +read):\n%s", cmp.Diff(s, read))
	}
	if faults := ValidateServiceUpdate(read, s, st); len(faults) > 0 {
		t.Errorf("a Service cannot replace itself: %v", faults)
	}
	return true
}

// FuzzServiceValidation without the fuzzer, from a fixed seed, so that each run of the tests covers some edits.
func TestEditedServicesAreStable(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	valid := 0
	for _, manifest := range fuzzSeeds() {
		data, err := yaml.YAMLToJSON([]byte(manifest))
		if err != nil {
			t.Fatal(err)
		}
		for range 500 {
			edits := []byte{byte(random.Uint32()), byte(random.Uint32()), byte(random.Uint32()), byte(random.Uint32())}
			if checkStable(t, edit(data, edits), random.IntN(2) == 0) {
				valid++
			}
			if t.Failed() {
				t.Fatalf("with edits %v of:%s", edits, manifest)
			}
		}
	}
	if valid < 50 {
		t.Errorf("only %d edited Services were valid, which are too few", valid)
	}
}

// replacements are common mistakes of manifests, and values that programs often mishandle.
func replacements() []any {
	return []any{
		nil, "", "0", "a", "A b", "-1", "NaN", "1h", "1.5s", "/", "/dev", "../x", "100m", "-1Gi", "1e400", "\u0000", "http1",
		"2026-01-01T00:00:00.5Z",
		0, 1, -1, 100, 101, 1000, 65536, int64(1) << 31, int64(-1) << 63, 0.5, true, false,
		map[string]any{}, []any{}, []any{nil}, []any{map[string]any{}}, map[string]any{"": ""}, map[string]any{"a": "b"},
	}
}

// edit changes a document according to edits: each pair of bytes selects a node and its new value, one of
// the replacements or another node. Changes of single bytes would mostly result in invalid JSON.
func edit(data, edits []byte) []byte {
	for ; len(edits) >= 2; edits = edits[2:] {
		var tree any
		if err := json.Unmarshal(data, &tree); err != nil {
			return data
		}
		var nodes []any
		var setters []func(any)
		walk(tree, func(any) {}, func(node any, set func(any)) {
			nodes = append(nodes, node)
			setters = append(setters, set)
		})
		choices := append(replacements(), nodes...)
		setters[int(edits[0])%len(setters)](choices[int(edits[1])%len(choices)])
		edited, err := json.Marshal(tree)
		if err != nil || len(edited) > 1<<16 {
			// A node inside itself cannot be encoded, and copies of copies grow without limit.
			return data
		}
		data = edited
	}
	return data
}

// walk calls visit for a node and all its descendants, with a function that replaces the node in its parent.
func walk(node any, set func(any), visit func(any, func(any))) {
	visit(node, set)
	switch node := node.(type) {
	case map[string]any:
		for _, key := range slices.Sorted(maps.Keys(node)) {
			walk(node[key], func(v any) { node[key] = v }, visit)
		}
	case []any:
		for i := range node {
			walk(node[i], func(v any) { node[i] = v }, visit)
		}
	}
}

// The first seeds are valid and the last is not. Otherwise the fuzzer would have no useful start.
func TestFuzzSeeds(t *testing.T) {
	for i, manifest := range fuzzSeeds() {
		s := &Service{}
		if err := yaml.UnmarshalStrict([]byte(manifest), s); err != nil {
			t.Fatalf("seed %d: %v", i, err)
		}
		SetDefaults_Service(s)
		faults := ValidateService(s, DefaultSettings())
		if good := i < len(fuzzSeeds())-1; good != (len(faults) == 0) {
			t.Errorf("seed %d: %v", i, faults)
		}
	}
}
