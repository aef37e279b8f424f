#!/usr/bin/env bash
# Sets the domain of public host names in config-domain on the cluster of the current context, for all Routes that no other entry selects.
#
# Usage: hack/domain.sh DOMAIN
#   DOMAIN   a domain whose records *.<namespace>.DOMAIN point to the Service gateway, such as example.org; or sslip.io, a public DNS
#            service whose names contain their address: the address of the Service gateway, or of a node, is put before it
#
# Environment: KUBECTL (kubectl), ADDRESS for sslip.io instead of the address that is found, ADDRESS_TIMEOUT of the wait for the address
# of a load balancer (1m).
set -euo pipefail

usage() { sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//p}' "$0" >&2; exit 2; }
[[ $# -eq 1 && $1 != -* ]] || usage
domain=$1
read -ra kubectl <<<"${KUBECTL:-kubectl}"
k() { "${kubectl[@]}" -n knative-system "$@"; }
label='[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?'
[[ ${#domain} -le 200 && $domain =~ ^$label(\.$label)+$ ]] || { echo "DOMAIN $domain must be a DNS name in lower case, such as example.org" >&2; exit 2; }

# address prints the address of the load balancer, or of a node without one.
address() {
	local found="" type
	if [[ $(k get service gateway -o 'jsonpath={.spec.type}') == LoadBalancer ]]; then
		k wait service gateway --for='jsonpath={.status.loadBalancer.ingress}' --timeout="${ADDRESS_TIMEOUT:-1m}" >/dev/null 2>&1 || true
		found=$(k get service gateway -o 'jsonpath={.status.loadBalancer.ingress[0].ip}')
		if [[ -z $found && -n $(k get service gateway -o 'jsonpath={.status.loadBalancer.ingress[0].hostname}') ]]; then
			echo "the load balancer of the Service gateway has a name and no address: set ADDRESS, or use a DOMAIN with a record for that name" >&2
			return 1
		fi
	fi
	for type in ExternalIP InternalIP; do
		[[ -n $found ]] || found=$(k get nodes -o "jsonpath={.items[0].status.addresses[?(@.type==\"$type\")].address}")
	done
	# A node may have an address of each family.
	found=${found%% *}
	[[ -n $found ]] || { echo "neither the Service gateway nor a node has an address: set ADDRESS" >&2; return 1; }
	echo "$found"
}

if [[ $domain == sslip.io ]]; then
	at=${ADDRESS:-$(address)}
	[[ $at =~ ^[0-9a-f.:]+$ ]] || { echo "ADDRESS $at must be an IP address" >&2; exit 2; }
	if [[ $at == *:* ]]; then
		# 2001:db8::1 is 2001-db8--1. A label may not begin or end with a hyphen.
		at=${at//:/-}
		[[ $at != -* ]] || at=0$at
		[[ $at != *- ]] || at=${at}0
	fi
	domain=$at.$domain
fi

# Another domain without a selector is replaced.
entries="\"$domain\":\"\""
while read -r previous; do
	[[ -z $previous || $previous == "$domain" ]] || entries+=",\"$previous\":null"
done < <(k get configmap config-domain -o 'go-template={{range $key, $value := .data}}{{if eq $value ""}}{{$key}}{{"\n"}}{{end}}{{end}}')
k patch configmap config-domain --type=merge -p "{\"data\":{$entries}}" >&2
echo "Public host names end in $domain" >&2
