package main

// proxies are the other proxies of a benchmark of the gateway, with what their metrics end in.
func proxies(benchmark, suffix string) []reference {
	var all []reference
	for _, name := range []string{"nginx", "haproxy", "bare-ReverseProxy"} {
		all = append(all, reference{name, "serving " + benchmark + " " + name + suffix})
	}
	return all
}

// Reasons why figures are left out.
const (
	needsCluster = "needs a cluster with a node: root on Linux, or `E2E_CLUSTER`"
	onlyLong     = "some minutes long, only in `make bench`"
)

// table returns the figures. Ratios to something that is measured in the same run depend little on the machine: those decide.
func table() []row {
	const ofDirect, added = "-%-of-direct", "-added-p50-µs"
	return []row{
		{
			work: "HTTP/1.1 requests/s through the gateway, 64 connections", unit: "% of direct", metric: "serving Throughput gateway" + ofDirect,
			references: proxies("Throughput", ofDirect), target: 1, relative: "serving Throughput nginx" + ofDirect,
		},
		{
			work: "added to the median latency of one connection", unit: "µs", metric: "serving Latency gateway" + added,
			// 60 µs where httputil.ReverseProxy adds 172.
			references: proxies("Latency", added), less: true, target: 60. / 172, relative: "serving Latency bare-ReverseProxy" + added,
		},
		{
			work: "HTTP/2 requests/s without TLS, 8 connections with 8 streams", unit: "% of direct", metric: "serving H2C gateway" + ofDirect,
			references: proxies("H2C", ofDirect), target: 1, relative: "serving H2C nginx" + ofDirect,
		},
		{
			work: "gRPC calls/s, 8 connections with 8 concurrent calls", unit: "% of direct", metric: "serving GRPC gateway" + ofDirect,
			references: proxies("GRPC", ofDirect), target: 1, relative: "serving GRPC nginx" + ofDirect,
		},
		{
			work: "WebSocket messages/s, 64 connections", unit: "% of direct", metric: "serving WebSocket gateway" + ofDirect,
			references: proxies("WebSocket", ofDirect), target: 0.9, relative: "serving WebSocket haproxy" + ofDirect,
		},
		{
			work: "durable events/s of 1 KiB, one Trigger, end to end", unit: "% of direct", metric: "eventing OneTrigger broker-%-of-direct",
			references: []reference{
				{"events/s", "eventing OneTrigger delivered/s"}, {"direct events/s", "eventing OneTrigger direct-events/s"},
				{"fdatasync/s", "eventing OneTrigger fdatasync/s"}, {"events/fdatasync", "eventing OneTrigger events/fdatasync"},
			},
			// 15,000 events/s where 50,000 are sent directly.
			target: 30, slack: 3,
		},
		{
			work: "p99 of events at half of that rate", unit: "ms", metric: "eventing OneTrigger broker-p99-ms",
			references: []reference{{"direct", "eventing OneTrigger direct-p99-ms"}, {"p50", "eventing OneTrigger broker-p50-ms"}},
			// It depends on the disk.
			less: true, target: 10, slack: 10,
		},
		{
			work: "deliveries/s with ten matching Triggers", unit: "x one Trigger", metric: "eventing TenTriggers ten/one", target: 3, slack: 2.5,
		},
		{
			work: "API creates/s of Services", unit: "x ConfigMaps", metric: "bench API creates-ratio", target: 0.8,
		},
		{
			work: "API creates/s of Services with distinct templates", unit: "x ConfigMaps", metric: "bench API creates-distinct-ratio",
			references: []reference{{"each judged by the host", "bench API creates-judged-ratio"}}, target: 0.6,
		},
		{
			work: "p99 of API gets", unit: "x ConfigMaps", metric: "bench API get-p99-ratio", less: true, target: 1.2, slack: 4,
		},
		{
			work: "50 Services on pods until all are Ready", unit: "x Deployments", leftOut: needsCluster, metric: "cluster ManyServices ratio",
			references: []reference{{"Services s", "cluster ManyServices services-s"}, {"Deployments s", "cluster ManyServices bare-s"}},
			less:       true, target: 1.25,
		},
		{
			work: "requests/s to a Pod through the default installation, 64 connections", unit: "% of direct", leftOut: needsCluster, metric: "serving Installed gateway" + ofDirect,
			references: []reference{{"requests/s", "serving Installed gateway-req/s"}, {"direct requests/s", "serving Installed direct-req/s"}}, target: 60,
		},
		{
			work: "durable events/s through the default installation, one Trigger", unit: "% of direct", leftOut: needsCluster, metric: "eventing Installed broker-%-of-direct",
			references: []reference{
				{"events/s", "eventing Installed events/s"}, {"with six Brokers", "eventing Installed spread-events/s"},
				{"direct events/s", "eventing Installed direct-events/s"},
			},
			// 6,000 events/s where 50,000 are sent directly.
			target: 12,
		},
		{
			work: "CPU of an idle replica", unit: "% of a core", leftOut: needsCluster, metric: "cluster Idle replica-cpu-%", less: true, target: 1,
		},
		{
			work: "resident memory of all replicas and gateways, without Services", unit: "MB", leftOut: needsCluster, metric: "cluster Memory rss-MB",
			references: []reference{{"with 100 Services", "cluster Memory rss-100-Services-MB"}, {"after their deletion", "cluster Memory rss-returned-MB"}},
			less:       true, target: 6 * 110,
		},
		{
			work: "time until it is that again, after 100 Services were deleted", unit: "s", leftOut: needsCluster, metric: "cluster Memory returned-after-s", less: true, target: 600,
		},
		{
			work: "growth: Services created per second, the last thousand of 10,000", unit: "x the first", leftOut: onlyLong, metric: "growth Growth Services-last/first",
			references: []reference{{"the first, /s", "growth Growth Services/s"}, {"all ready after s", "growth Growth Services-ready-s"}}, target: 0.8,
		},
		{
			work: "growth: memory for a Service with its children", unit: "kB", leftOut: onlyLong, metric: "growth Growth kB/Service",
			references: []reference{{"kB/Trigger", "growth Growth kB/Trigger"}}, less: true, target: 60,
		},
		{
			work: "growth: resident memory with 10,000 Services and 10,000 Triggers", unit: "MB", leftOut: onlyLong, metric: "growth Growth server-MB",
			references: []reference{{"restarted", "growth Growth restarted-MB"}}, less: true, target: 1000,
		},
		{
			work: "growth: a changed Route takes effect, p99", unit: "ms", leftOut: onlyLong, metric: "growth Growth route-p99-ms",
			references: []reference{{"p50", "growth Growth route-p50-ms"}}, less: true, target: 20,
		},
		{
			work: "growth: a changed Trigger among 10,000 is ready, p50", unit: "ms", leftOut: onlyLong, metric: "growth Growth Trigger-of-all-ms",
			references: []reference{{"the only one", "growth Growth Trigger-of-one-ms"}}, less: true, target: 1.25, relative: "growth Growth Trigger-of-one-ms",
		},
		{
			work: "growth: processor time of a change beside 2,000 watchers of other namespaces", unit: "µs", leftOut: onlyLong, metric: "growth Watchers beside-others-cpu-µs",
			references: []reference{{"without them", "growth Watchers alone-cpu-µs"}, {"kB/watcher", "growth Watchers kB/watcher"}},
			less:       true, target: 1.25, relative: "growth Watchers alone-cpu-µs",
		},
		{
			work: "growth: the Revision of the thousandth change of a Service is ready", unit: "ms", leftOut: onlyLong, metric: "growth Revisions last-ready-ms",
			references: []reference{{"of the first", "growth Revisions first-ready-ms"}, {"kB/Revision", "growth Revisions kB/Revision"}},
			less:       true, target: 1.5, relative: "growth Revisions first-ready-ms",
		},
		{
			work: "growth: memory of an idle Broker in the event log", unit: "KiB", leftOut: onlyLong, metric: "eventlog Idle/new heap-KiB/stream",
			references: []reference{{"resident", "eventlog Idle/new rss-KiB/stream"}}, less: true, target: 30,
		},
		{
			work: "growth: a host is served after kill -9", unit: "s", leftOut: onlyLong, metric: "growth Growth served-after-s", less: true, target: 2,
		},
		{
			work: "growth: an event is accepted after kill -9", unit: "s", leftOut: onlyLong, metric: "growth Growth accepted-after-s", less: true, target: 5,
		},
	}
}
