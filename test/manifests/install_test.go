package manifests

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// kubectl is a fake of a cluster with an installation, whose state are files in $STATE: image, replicas and gateway, the label, of the
// StatefulSet, gateways, the number of replicas of the Deployment, and objects, the objects of gateways. It logs changes.
const kubectl = `#!/usr/bin/env bash
set -euo pipefail
log() { echo "$*" >>"$STATE/log"; }
state() { cat "$STATE/$1" 2>/dev/null || true; }
case "$*" in
"kustomize "*) exec "$REAL" "$@" ;;
"apply "*)
	file=${!#}
	if grep -q '^kind: StatefulSet$' "$file"; then
		grep -q 'knative-apiserver/gateway: "true"' "$file" && gateway=true || gateway=
		echo "$gateway" >"$STATE/gateway"
		sed -n 's/^  replicas: //p' "$file" >"$STATE/replicas"
		sed -n 's/^ *image: //p' "$file" >"$STATE/image"
		log "apply server, gateway=$gateway $(sed -n 's/^ *\(partition: .*\)/\1/p' "$file")"
	elif grep -q '^  name: knative-gateway$' "$file" && grep -q '^kind: HorizontalPodAutoscaler$' "$file"; then
		log "apply gateway, $(sed -n 's/^  \(replicas: .*\)/\1/p' "$file")"
		sed -n 's/^  replicas: //p' "$file" >"$STATE/gateways"
	elif grep -q '^kind: APIService$' "$file"; then
		log "apply registrations"
	else
		! grep -q '^kind: StatefulSet\|^kind: HorizontalPodAutoscaler' "$file"
		log "apply the rest"
	fi ;;
*"patch statefulset "*) log "set image $(sed 's/.*"partition":\([0-9]*\).*"image":"\([^"]*\)".*/\2, partition \1/' <<<"$*")" ;;
*"rollout status "*) log "await ${5#*/}" ;;
*" wait "* | "wait "*) ;;
*"get endpointslices "*) log "read endpoints"; printf 'knative-gateway-a\nknative-gateway-b\n' ;;
*"get pods "*) printf 'knative-gateway-a\nknative-gateway-b\n' ;;
*"get statefulset knative-apiserver "*labels*) state gateway ;;
*"get statefulset knative-apiserver "*image*) state image ;;
*"get statefulset knative-apiserver "*replicas*) state replicas ;;
*"get deployment knative-gateway "*replicas*) state gateways ;;
*"get statefulset,deployment -o name"*) echo statefulset.apps/knative-apiserver ;;
*"get statefulset,deployment "*) echo statefulset.apps/knative-apiserver ;;
*"get customresourcedefinitions "*) ;;
*"get deployments.apps "*) state objects | grep ^deployment || true ;;
*"get clusterrolebindings."*) state objects | grep ^cluster || true ;;
"-n kube-system get rolebindings."*) state objects | grep 'rolebinding.*extension-' || true ;;
*"get horizontalpodautoscalers."*) state objects | grep '^horizontal\|^serviceaccount' || true ;;
*" delete "*) log "delete $2 $4" ;;
*) echo "unexpected: $*" >&2; exit 1 ;;
esac
`

// TestInstallOrder checks that hack/install.sh moves the gateway between the StatefulSet and its own Deployment in an order in which some gateway
// always serves, and keeps the number of gateways that their autoscaler has chosen.
func TestInstallOrder(t *testing.T) {
	root, err := harness.Root()
	if err != nil {
		t.Fatal(err)
	}
	bin, err := harness.KubernetesBin()
	if err != nil {
		t.Fatal(err)
	}
	await := "await knative-apiserver"
	serverWith := func(gateway string) []string {
		var steps []string
		for _, partition := range []string{"2", "1", "0"} {
			steps = append(steps, "apply server, gateway="+gateway+" partition: "+partition, await)
		}
		return steps
	}
	endpoints := []string{"read endpoints", "read endpoints"}
	tests := map[string]struct {
		variant string
		state   map[string]string
		want    [][]string
	}{
		"new, two workloads": {
			variant: "default",
			want: [][]string{
				{"apply the rest", "apply server, gateway= partition: 0", await, await, "apply registrations", "apply gateway, replicas: 3", "await knative-gateway"},
			},
		},
		"upgrade of two workloads": {
			variant: "default",
			state:   map[string]string{"image": "old", "replicas": "3", "gateways": "7"},
			want: [][]string{
				{"apply the rest"}, serverWith(""), {await, "apply registrations", "apply gateway, replicas: 7", "await knative-gateway"},
			},
		},
		"from one workload to two": {
			variant: "default",
			state: map[string]string{
				"image": "new", "replicas": "3", "gateway": "true",
				"objects": "clusterrole.rbac.authorization.k8s.io/knative-gateway\nclusterrolebinding.rbac.authorization.k8s.io/knative-gateway\n",
			},
			want: [][]string{
				{"apply the rest", "apply gateway, replicas: 3", "await knative-gateway"}, endpoints, serverWith(""),
				{await, "apply registrations", "apply gateway, replicas: 3", "await knative-gateway", "delete default clusterrolebinding.rbac.authorization.k8s.io/knative-gateway"},
			},
		},
		"from one workload of another version to two": {
			variant: "default",
			state:   map[string]string{"image": "old", "replicas": "3", "gateway": "true"},
			want: [][]string{
				{"apply the rest", "set image new, partition 2", await, "set image new, partition 1", await, "set image new, partition 0", await},
				{"apply gateway, replicas: 3", "await knative-gateway"}, endpoints, serverWith(""),
				{await, "apply registrations", "apply gateway, replicas: 3", "await knative-gateway"},
			},
		},
		"from two workloads to one": {
			variant: "combined",
			state: map[string]string{
				"image": "old", "replicas": "3", "gateways": "7",
				"objects": "deployment.apps/knative-gateway\nclusterrole.rbac.authorization.k8s.io/knative-gateway\nclusterrole.rbac.authorization.k8s.io/knative-gateway:api\n" +
					"horizontalpodautoscaler.autoscaling/knative-gateway\nserviceaccount/knative-gateway\n" +
					"rolebinding.rbac.authorization.k8s.io/knative-gateway:extension-apiserver-authentication-reader\n",
			},
			want: [][]string{
				{"apply the rest"}, serverWith("true"), {await, "apply registrations"},
				{
					"delete knative-system deployment.apps/knative-gateway", "delete knative-system horizontalpodautoscaler.autoscaling/knative-gateway",
					"delete knative-system serviceaccount/knative-gateway",
					"delete kube-system rolebinding.rbac.authorization.k8s.io/knative-gateway:extension-apiserver-authentication-reader",
					"delete default clusterrole.rbac.authorization.k8s.io/knative-gateway:api",
				},
			},
		},
		"upgrade of one workload": {
			variant: "combined",
			state:   map[string]string{"image": "old", "replicas": "3", "gateway": "true", "objects": "clusterrole.rbac.authorization.k8s.io/knative-gateway\n"},
			want:    [][]string{{"apply the rest"}, serverWith("true"), {await, "apply registrations"}},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			state := t.TempDir()
			script := filepath.Join(state, "kubectl")
			files := map[string]string{"kubectl": kubectl, "log": ""}
			for name, content := range test.state {
				files[name] = content
			}
			for name, content := range files {
				if err := os.WriteFile(filepath.Join(state, name), []byte(content), 0o700); err != nil { //nolint:gosec // a script must be executable
					t.Fatal(err)
				}
			}
			cmd := exec.CommandContext(t.Context(), filepath.Join(root, "hack", "install.sh"), "new", test.variant)
			cmd.Env = append(os.Environ(), "KUBECTL="+script, "REAL="+filepath.Join(bin, "kubectl"), "STATE="+state, "FORCE=", "SERVER_FLAGS=")
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("install.sh: %v\n%s", err, out)
			}
			log, err := os.ReadFile(filepath.Join(state, "log"))
			if err != nil {
				t.Fatal(err)
			}
			if got, want := strings.Split(strings.TrimSpace(string(log)), "\n"), slices.Concat(test.want...); !slices.Equal(got, want) {
				t.Errorf("install.sh did\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
			}
		})
	}
}
