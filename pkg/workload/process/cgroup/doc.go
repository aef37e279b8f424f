// Package cgroup enforces the resource limits of containers that run as processes.
package cgroup
