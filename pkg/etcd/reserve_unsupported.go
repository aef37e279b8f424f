//go:build !linux

package etcd

import "golang.org/x/sys/unix"

// reserve fails: preallocation beyond the end of a file is supported on Linux only.
func reserve(string) error { return unix.EOPNOTSUPP }
