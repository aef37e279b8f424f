package manifests

import (
	"bytes"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// rotatingKubectl is a fake of a cluster with three replicas, whose Secret is a file in $STATE. It logs which authorities a replaced replica
// finds, and fails once, when the replacement of number $STATE/fail is awaited.
const rotatingKubectl = `#!/usr/bin/env bash
set -euo pipefail
secret() { "$REAL" patch --local -f "$STATE/secret.json" --type=merge "$@"; }
case "$*" in
*" get secret knative-apiserver-etcd-ca "*) secret -p '{}' -o "${!#}" ;;
*" patch secret knative-apiserver-etcd-ca "*)
	secret "${!#}" -o json >"$STATE/patched.json"
	mv "$STATE/patched.json" "$STATE/secret.json" ;;
*" get statefulset knative-apiserver "*) echo 3 ;;
*" patch statefulset knative-apiserver "*)
	read -r signer trusted <<<"$(secret -p '{}' -o 'jsonpath={.data.tls\.crt} {.data.ca\.crt}')"
	trusted=$(openssl base64 -d -A <<<"$trusted" | grep -c BEGIN)
	[[ $signer == "$(cat "$STATE/former")" ]] && signer=former || signer=next
	echo "replace $(sed 's/.*"partition":\([0-9]*\).*/\1/' <<<"$*"): $trusted trusted, the $signer signs" >>"$STATE/log" ;;
*" rollout status "*)
	if [[ $(wc -l <"$STATE/log") == "$(cat "$STATE/fail")" ]]; then echo 0 >"$STATE/fail"; exit 1; fi ;;
*" wait "*) ;;
*) echo "unexpected: $*" >&2; exit 1 ;;
esac
`

// TestEtcdRotation checks the steps of hack/rotate-etcd-ca.sh, and that it continues after a failed replacement.
func TestEtcdRotation(t *testing.T) {
	root, err := harness.Root()
	if err != nil {
		t.Fatal(err)
	}
	bin, err := harness.KubernetesBin()
	if err != nil {
		t.Fatal(err)
	}
	replace := func(authorities string) (steps []string) {
		for _, partition := range []string{"2", "1", "0"} {
			steps = append(steps, "replace "+partition+": "+authorities)
		}
		return steps
	}
	first, second := replace("2 trusted, the former signs"), replace("1 trusted, the next signs")
	for _, fail := range []int{0, 2, 5} {
		t.Run(fmt.Sprint("failure ", fail), func(t *testing.T) {
			t.Parallel()
			want := slices.Concat(first, second)
			switch {
			case fail > 3:
				want = slices.Concat(first, second[:fail-3], second)
			case fail > 0:
				want = slices.Concat(first[:fail], first, second)
			}
			state := t.TempDir()
			former := []byte("-----BEGIN CERTIFICATE-----\nformer\n-----END CERTIFICATE-----\n")
			secret := &corev1.Secret{
				TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"},
				ObjectMeta: metav1.ObjectMeta{Name: "knative-apiserver-etcd-ca", Namespace: harness.SystemNamespace},
				Data:       map[string][]byte{corev1.TLSCertKey: former, corev1.TLSPrivateKeyKey: []byte("key"), "ca.crt": former},
			}
			stored, err := json.Marshal(secret)
			if err != nil {
				t.Fatal(err)
			}
			encoded, err := json.Marshal(former)
			if err != nil {
				t.Fatal(err)
			}
			for name, content := range map[string]string{
				"kubectl": rotatingKubectl, "log": "", "secret.json": string(stored), "former": strings.Trim(string(encoded), `"`), "fail": fmt.Sprint(fail),
			} {
				if err := os.WriteFile(filepath.Join(state, name), []byte(content), 0o700); err != nil { //nolint:gosec // a script must be executable
					t.Fatal(err)
				}
			}
			run := func() ([]byte, error) {
				cmd := exec.CommandContext(t.Context(), filepath.Join(root, "hack", "rotate-etcd-ca.sh"))
				cmd.Env = append(os.Environ(), "KUBECTL="+filepath.Join(state, "kubectl"), "REAL="+filepath.Join(bin, "kubectl"), "STATE="+state)
				return cmd.CombinedOutput()
			}
			out, err := run()
			if failed := err != nil; failed != (fail > 0) {
				t.Fatalf("the first run: %v\n%s", err, out)
			}
			if fail > 0 {
				if out, err = run(); err != nil {
					t.Fatalf("the second run: %v\n%s", err, out)
				}
			}
			log, err := os.ReadFile(filepath.Join(state, "log"))
			if err != nil {
				t.Fatal(err)
			}
			if got := strings.Split(strings.TrimSpace(string(log)), "\n"); !slices.Equal(got, want) {
				t.Errorf("it did\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
			}
			if stored, err = os.ReadFile(filepath.Join(state, "secret.json")); err != nil {
				t.Fatal(err)
			}
			secret = &corev1.Secret{}
			if err := json.Unmarshal(stored, secret); err != nil {
				t.Fatal(err)
			}
			if len(secret.Data) != 3 || len(secret.Annotations) > 0 || !bytes.Equal(secret.Data["ca.crt"], secret.Data[corev1.TLSCertKey]) {
				t.Errorf("the Secret is %s", stored)
			}
			pair, err := tls.X509KeyPair(secret.Data[corev1.TLSCertKey], secret.Data[corev1.TLSPrivateKeyKey])
			if err != nil {
				t.Fatal(err)
			}
			if !pair.Leaf.IsCA || !pair.Leaf.MaxPathLenZero || pair.Leaf.Subject.CommonName != secret.Name {
				t.Errorf("the authority is %+v", pair.Leaf)
			}
		})
	}
}
