#!/usr/bin/env bash
# Writes artifacts/monitoring/prometheusrule.yaml, for the Prometheus Operator, from the rules for Prometheus.
#
# Usage: hack/update-monitoring.sh [--verify]   --verify changes nothing, and fails if the file is out of date
set -euo pipefail
cd "$(dirname "$0")/../artifacts/monitoring"

prometheusrule() {
	cat <<-'EOF'
		# Written by hack/update-monitoring.sh from rules.yaml. Change that file.
		apiVersion: monitoring.coreos.com/v1
		kind: PrometheusRule
		metadata:
		  name: knative-apiserver
		  namespace: knative-system
		  labels:
		    app.kubernetes.io/component: monitoring
		spec:
	EOF
	# The specification has the form of a file of rules.
	sed -e '/^#/d' -e '/./s/^/  /' rules.yaml
}

case ${1:-} in
'') prometheusrule >prometheusrule.yaml ;;
--verify)
	prometheusrule | diff -u prometheusrule.yaml - || {
		echo "artifacts/monitoring/prometheusrule.yaml is out of date: run hack/update-monitoring.sh" >&2
		exit 1
	}
	;;
*) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//p}' "$0" >&2; exit 2 ;;
esac
