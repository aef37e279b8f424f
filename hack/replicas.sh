# Functions that replace the replicas of the StatefulSet one at a time. Scripts that source it set timeout, of each wait, and define k, which
# runs kubectl. They may set unavailable, a hint for the case that a replica is unavailable.

say() { echo "$*" >&2; }

rollout() { k -n knative-system rollout status "$1" --timeout="$timeout" >&2; }

# stepwise REPLICAS STEP lets the replicas of the StatefulSet be replaced one after the other, beginning with the last: STEP PARTITION
# changes the StatefulSet. The StatefulSet's controller only waits for replaced replicas, not for replicas that it will replace next.
stepwise() {
	local replicas=$1 step=$2 partition pod
	for ((pod = 0; pod < replicas - 1; pod++)); do
		k -n knative-system wait pod "knative-apiserver-$pod" --for=condition=Ready --timeout="$timeout" >&2 || {
			say "No replica is replaced while another is unavailable.${unavailable:+ $unavailable}"
			return 1
		}
	done
	for ((partition = replicas - 1; partition >= 0; partition--)); do
		say "replacing replica $partition, if it differs"
		"$step" "$partition"
		rollout statefulset/knative-apiserver
		k -n knative-system wait statefulset knative-apiserver --for="jsonpath={.status.availableReplicas}=$replicas" --timeout="$timeout" >&2
	done
}
