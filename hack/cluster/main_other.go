//go:build !linux

// Command cluster runs a real Kubernetes control plane for tests, on Linux only.
package main

import (
	"fmt"
	"os"
	"runtime"
)

func main() {
	fmt.Fprintf(os.Stderr, "cluster: %s is not supported: the cluster needs Linux, "+
		"because its processes are tracked through /proc; run it in a Linux machine or container\n", runtime.GOOS)
	os.Exit(1)
}
