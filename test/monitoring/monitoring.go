// Package monitoring tests artifacts/monitoring: the rules with promtool, and rules and dashboards with a real Prometheus that reads the
// metrics of a real server.
package monitoring
