// Package freeport finds out whether servers listen on a TCP port.
package freeport

import (
	"errors"
	"syscall"
)

// Check returns an error that wraps syscall.EADDRINUSE if a socket listens on a TCP port of any address of this machine. Its own
// socket does not listen: a program that starts meanwhile shares the sockets of this process until the kernel executes it, and a
// shared one that listens would be in the way of the server that the port is for.
func Check(port int) error {
	err := bind(syscall.AF_INET6, &syscall.SockaddrInet6{Port: port})
	if errors.Is(err, syscall.EAFNOSUPPORT) || errors.Is(err, syscall.EADDRNOTAVAIL) { // the machine has no IPv6
		err = bind(syscall.AF_INET, &syscall.SockaddrInet4{Port: port})
	}
	return err
}

func bind(family int, address syscall.Sockaddr) error {
	syscall.ForkLock.RLock()
	socket, err := syscall.Socket(family, syscall.SOCK_STREAM, 0)
	if err == nil {
		syscall.CloseOnExec(socket)
	}
	syscall.ForkLock.RUnlock()
	if err != nil {
		return err
	}
	err = syscall.SetsockoptInt(socket, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1)
	if err == nil && family == syscall.AF_INET6 {
		err = syscall.SetsockoptInt(socket, syscall.IPPROTO_IPV6, syscall.IPV6_V6ONLY, 0)
	}
	if err == nil {
		err = syscall.Bind(socket, address)
	}
	return errors.Join(err, syscall.Close(socket))
}
