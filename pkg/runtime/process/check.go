package process

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

// checks makes the checks of one container of one instance.
type checks struct {
	container *container
	// port is PORT of the instance.
	port int
	h2c  bool
	// command is the container's own, whose surroundings exec checks share.
	command *command
	spawner *spawner
}

// check returns what a probe does to find out how a container is.
func (c *checks) check(handler *corev1.ProbeHandler) check {
	switch {
	case handler.Exec != nil:
		return func(ctx context.Context, timeout time.Duration) error {
			return c.exec(ctx, timeout, handler.Exec.Command)
		}
	case handler.HTTPGet != nil:
		return c.at(handler.HTTPGet.Port.String(), func(address string) func(context.Context) error {
			return c.http(handler.HTTPGet, address)
		})
	case handler.GRPC != nil:
		return c.at(strconv.Itoa(int(handler.GRPC.Port)), func(address string) func(context.Context) error {
			return func(ctx context.Context) error {
				return checkGRPC(ctx, address, ptr.Deref(handler.GRPC.Service, ""))
			}
		})
	default:
		tcp := ptr.Deref(handler.TCPSocket, corev1.TCPSocketAction{})
		return c.at(tcp.Port.String(), func(address string) func(context.Context) error {
			return func(ctx context.Context) error { return checkTCP(ctx, address) }
		})
	}
}

// at returns the check of a port of the container. What has no address fails each time.
func (c *checks) at(port string, at func(address string) func(context.Context) error) check {
	number, err := c.container.port(c.port, port)
	if err != nil {
		return within(func(context.Context) error { return err })
	}
	return within(at(net.JoinHostPort(loopback, strconv.Itoa(number))))
}

// checkTCP passes where something listens.
func checkTCP(ctx context.Context, address string) error {
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return err
	}
	return conn.Close()
}

// http passes where the answer has a status from 200 to 399 (core/v1 HTTPGetAction). Certificates are not
// verified, as the kubelet does not.
func (c *checks) http(get *corev1.HTTPGetAction, address string) func(ctx context.Context) error {
	protocols := &http.Protocols{}
	protocols.SetHTTP1(!c.h2c)
	protocols.SetUnencryptedHTTP2(c.h2c)
	transport := &http.Transport{
		DisableKeepAlives: true, DisableCompression: true, Protocols: protocols,
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true},
	}
	path, query, _ := strings.Cut(get.Path, "?")
	target := url.URL{Scheme: strings.ToLower(string(get.Scheme)), Host: address, Path: "/" + strings.TrimPrefix(path, "/"), RawQuery: query}
	if target.Scheme == "" {
		target.Scheme = "http"
	}
	return func(ctx context.Context) error {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, target.String(), nil)
		if err != nil {
			return err
		}
		request.Header.Set("User-Agent", "kube-probe/standalone")
		for _, header := range get.HTTPHeaders {
			request.Header.Add(header.Name, header.Value)
			if strings.EqualFold(header.Name, "Host") {
				request.Host = header.Value
			}
		}
		response, err := transport.RoundTrip(request)
		if err != nil {
			return err
		}
		defer transport.CloseIdleConnections()
		defer response.Body.Close()
		if response.StatusCode < http.StatusOK || response.StatusCode >= http.StatusBadRequest {
			return fmt.Errorf("GET %s: status %d", target.Path, response.StatusCode)
		}
		return nil
	}
}

// checkGRPC passes where the gRPC health protocol says that a service is serving.
func checkGRPC(ctx context.Context, address, service string) error {
	conn, err := grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	response, err := grpc_health_v1.NewHealthClient(conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{Service: service})
	if err != nil {
		return err
	}
	if response.Status != grpc_health_v1.HealthCheckResponse_SERVING {
		return fmt.Errorf("service %q is %s", service, response.Status)
	}
	return nil
}

// exec passes where a program ends with 0. It runs with the environment of the container, in a group of its own.
// The timeout counts from its start, for which it may have to wait while many instances start.
func (c *checks) exec(ctx context.Context, timeout time.Duration, argv []string) error {
	if len(argv) == 0 {
		return errors.New("exec.command is empty")
	}
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer null.Close()
	command := *c.command
	command.argv, command.stdout, command.stderr, command.cgroup = argv, null, null, nil
	p, err := c.spawner.start(&command)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	select {
	case <-p.done:
	case <-ctx.Done():
		p.signal(syscall.SIGKILL)
		<-p.done
		return fmt.Errorf("%s: %w", argv[0], ctx.Err())
	}
	if !p.state.Success() {
		return fmt.Errorf("%s: %s", argv[0], p.state)
	}
	return nil
}
