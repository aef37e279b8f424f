#!/usr/bin/env bash
# Regenerates all code that is generated from pkg/apis: deepcopy, defaulters, OpenAPI models and
# definitions, apply configurations, clientset, listers, informers.
#
# Usage: hack/update-codegen.sh [ROOT]   ROOT is the root of the module (default: this one); verify-codegen.sh
# passes a copy.
set -euo pipefail
cd "${1:-$(dirname "$0")/..}"

module=$(go list -m)
apis=(duck/v1 serving/v1 serving/v1beta1 eventing/v1 eventing/v1alpha1 messaging/v1 networking/v1alpha1)
groups=(serving/v1 serving/v1beta1 eventing/v1 eventing/v1alpha1 messaging/v1 networking/v1alpha1)
api_pkgs=("${apis[@]/#/$module/pkg/apis/}")
group_pkgs=("${groups[@]/#/$module/pkg/apis/}")
core_pkgs=(
	k8s.io/api/autoscaling/v1
	k8s.io/api/core/v1
	k8s.io/apimachinery/pkg/api/resource
	k8s.io/apimachinery/pkg/apis/meta/v1
	k8s.io/apimachinery/pkg/runtime
	k8s.io/apimachinery/pkg/util/intstr
	k8s.io/apimachinery/pkg/version
)
header=hack/boilerplate.go.txt
out=pkg/generated

gen() {
	local tool=$1
	shift
	echo "$tool" >&2
	go tool "$tool" --go-header-file "$header" "$@"
}

find pkg/apis -name 'zz_generated.*.go' -delete
rm -rf "$out"
mkdir -p "$out/openapi"

gen deepcopy-gen --output-file zz_generated.deepcopy.go "${api_pkgs[@]}"
gen defaulter-gen --output-file zz_generated.defaults.go "${group_pkgs[@]}"

# Violations of the OpenAPI naming rules that the types inherit from core/v1 are not reported.
gen openapi-gen \
	"${core_pkgs[@]/#/--readonly-pkg=}" \
	--output-dir "$out/openapi" --output-pkg "$module/$out/openapi" --output-file zz_generated.openapi.go \
	--output-model-name-file zz_generated.model_name.go \
	--report-filename /dev/null \
	"${api_pkgs[@]}" "${core_pkgs[@]}"

# The apply configurations embed a schema of the types, which only a program that links the definitions
# above can print.
schema=$(mktemp)
trap 'rm -f "$schema"' EXIT
go run ./hack/openapi-schema >"$schema"
# The apply configurations of embedded core/v1 types are in client-go.
external=$(sed -n 's#^type \([A-Za-z0-9]*\)ApplyConfiguration struct.*#k8s.io/api/core/v1.\1:k8s.io/client-go/applyconfigurations/core/v1#p' \
	"$(go list -f '{{.Dir}}' k8s.io/client-go/applyconfigurations/core/v1)"/*.go | paste -sd, -)
gen applyconfiguration-gen --external-applyconfigurations "$external" \
	--output-dir "$out/applyconfiguration" --output-pkg "$module/$out/applyconfiguration" \
	--openapi-schema "$schema" \
	"${api_pkgs[@]}"

gen client-gen \
	--clientset-name versioned --input-base "" \
	--output-dir "$out/clientset" --output-pkg "$module/$out/clientset" \
	--apply-configuration-package "$module/$out/applyconfiguration" \
	"${group_pkgs[@]/#/--input=}"
gen lister-gen --output-dir "$out/listers" --output-pkg "$module/$out/listers" "${group_pkgs[@]}"
gen informer-gen \
	--output-dir "$out/informers" --output-pkg "$module/$out/informers" \
	--versioned-clientset-package "$module/$out/clientset/versioned" \
	--listers-package "$module/$out/listers" \
	"${group_pkgs[@]}"
