#!/usr/bin/env bash
# Creates the certificate of the server for kube-aggregator: DIR/{ca.crt,ca.key,tls.crt,tls.key}. An
# existing authority is reused, so a second run renews the certificate without distributing a new
# authority.
#
# Usage: hack/serving-cert.sh [DIR]   DIR defaults to the directory that artifacts/install/components/own-certificate uses.
#
# Environment: CLUSTER_DOMAIN is the DNS domain of the cluster (cluster.local).
set -euo pipefail
umask 077

dir=${1:-$(dirname "$0")/../artifacts/install/components/own-certificate/certs}
host=knative-apiserver.knative-system.svc
mkdir -p "$dir"
cd "$dir"

new_key() { openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out "$1"; }

if [[ ! -s ca.crt || ! -s ca.key ]]; then
	new_key ca.key
	openssl req -x509 -new -key ca.key -sha256 -days 3650 -subj "/CN=knative-apiserver-ca" \
		-addext "keyUsage = critical, keyCertSign" -out ca.crt
fi
new_key tls.key
openssl req -new -key tls.key -subj "/CN=$host" |
	openssl x509 -req -CA ca.crt -CAkey ca.key -set_serial "0x$(openssl rand -hex 16)" -sha256 -days 365 \
		-extfile <(
			echo "basicConstraints = critical, CA:FALSE"
			echo "keyUsage = critical, digitalSignature"
			echo "extendedKeyUsage = serverAuth"
			echo "subjectAltName = DNS:$host, DNS:$host.${CLUSTER_DOMAIN:-cluster.local}"
		) -out tls.crt 2>/dev/null
openssl verify -CAfile ca.crt -purpose sslserver -verify_hostname "$host" tls.crt >/dev/null
echo "$PWD/tls.crt is valid until $(openssl x509 -in tls.crt -noout -enddate | cut -d= -f2)"
