package manifests

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// answeringKubectl is a program that logs its arguments, and answers from variables of its environment.
const answeringKubectl = `#!/usr/bin/env bash
case "$*" in
*patch*) echo "${@: -1}" >>"$LOG" ;;
*spec.type*) echo "$TYPE" ;;
*ingress*ip*) echo "$LOAD_BALANCER" ;;
*hostname*) echo "$HOSTNAME_OF_LOAD_BALANCER" ;;
*ExternalIP*) echo "$EXTERNAL" ;;
*InternalIP*) echo "$INTERNAL" ;;
*config-domain*) printf '%b' "$DOMAINS" ;;
*wait*) exit 1 ;;
*) echo "unexpected arguments: $*" >&2; exit 1 ;;
esac
`

// TestDomain covers the patch of config-domain by hack/domain.sh: by a name, and by the address of the load balancer or of a node.
func TestDomain(t *testing.T) {
	for name, test := range map[string]struct {
		domain string
		env    []string
		// want is the patch; empty if the script fails with the message fault.
		want, fault string
	}{
		"a domain":              {domain: "example.org", want: `{"data":{"example.org":""}}`},
		"another domain before": {domain: "example.org", env: []string{`DOMAINS=example.com\nexample.org\n`}, want: `{"data":{"example.org":"","example.com":null}}`},
		"load balancer": {
			domain: "sslip.io", env: []string{"TYPE=LoadBalancer", "LOAD_BALANCER=192.0.2.1", "EXTERNAL=192.0.2.2", "INTERNAL=10.0.0.1"},
			want: `{"data":{"192.0.2.1.sslip.io":""}}`,
		},
		"load balancer without address": {domain: "sslip.io", env: []string{"TYPE=LoadBalancer", "INTERNAL=10.0.0.1"}, want: `{"data":{"10.0.0.1.sslip.io":""}}`},
		"load balancer with a name":     {domain: "sslip.io", env: []string{"TYPE=LoadBalancer", "HOSTNAME_OF_LOAD_BALANCER=lb.example.com"}, fault: "has a name and no address"},
		"node":                          {domain: "sslip.io", env: []string{"TYPE=NodePort", "EXTERNAL=192.0.2.2", "INTERNAL=10.0.0.1"}, want: `{"data":{"192.0.2.2.sslip.io":""}}`},
		"node of two families":          {domain: "sslip.io", env: []string{"INTERNAL=10.0.0.1 2001:db8::1"}, want: `{"data":{"10.0.0.1.sslip.io":""}}`},
		"IPv6":                          {domain: "sslip.io", env: []string{"ADDRESS=2001:db8::1"}, want: `{"data":{"2001-db8--1.sslip.io":""}}`},
		"IPv6 with zeros at both ends":  {domain: "sslip.io", env: []string{"ADDRESS=::"}, want: `{"data":{"0--0.sslip.io":""}}`},
		"no address":                    {domain: "sslip.io", fault: "set ADDRESS"},
		"a wrong address":               {domain: "sslip.io", env: []string{`ADDRESS="}`}, fault: "must be an IP address"},
		"one label":                     {domain: "example", fault: "must be a DNS name"},
		"upper case":                    {domain: "Example.org", fault: "must be a DNS name"},
		"JSON":                          {domain: `example.org":"","a.b`, fault: "must be a DNS name"},
		"no domain":                     {domain: "--help", fault: "Usage: hack/domain.sh DOMAIN"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			program, log := filepath.Join(dir, "kubectl"), filepath.Join(dir, "log")
			if err := os.WriteFile(program, []byte(answeringKubectl), 0o700); err != nil {
				t.Fatal(err)
			}
			command := exec.CommandContext(t.Context(), "../../hack/domain.sh", test.domain)
			command.Env = append([]string{"PATH=" + os.Getenv("PATH"), "KUBECTL=" + program, "LOG=" + log}, test.env...)
			out, err := command.CombinedOutput()
			patch, reading := os.ReadFile(log)
			if test.want == "" {
				if err == nil || !os.IsNotExist(reading) || !strings.Contains(string(out), test.fault) {
					t.Errorf("%v, patch %q, output %s; want %q", err, patch, out, test.fault)
				}
				return
			}
			if err != nil || strings.TrimSpace(string(patch)) != test.want {
				t.Errorf("%v, patch %q, want %q; output %s", err, patch, test.want, out)
			}
		})
	}
}
