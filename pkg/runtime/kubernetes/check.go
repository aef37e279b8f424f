package kubernetes

import (
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
)

// newCheck returns what finds out how a container is, as the kubelet would, within the probe's timeout.
func newCheck(spec *corev1.Probe, c *corev1.Container, ip string) func(ctx context.Context) error {
	timeout := time.Duration(cmp.Or(spec.TimeoutSeconds, 1)) * time.Second
	var check func(ctx context.Context) error
	switch {
	case spec.HTTPGet != nil:
		check = checkHTTP(spec.HTTPGet, net.JoinHostPort(cmp.Or(spec.HTTPGet.Host, ip), number(spec.HTTPGet.Port, c)))
	case spec.GRPC != nil:
		address, service := net.JoinHostPort(ip, strconv.Itoa(int(spec.GRPC.Port))), ptr.Deref(spec.GRPC.Service, "")
		check = func(ctx context.Context) error { return checkGRPC(ctx, address, service) }
	default:
		tcp := ptr.Deref(spec.TCPSocket, corev1.TCPSocketAction{})
		address := net.JoinHostPort(cmp.Or(tcp.Host, ip), number(tcp.Port, c))
		check = func(ctx context.Context) error { return checkTCP(ctx, address) }
	}
	return func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, timeout)
		defer cancel()
		return check(ctx)
	}
}

// number looks up a port of a container that is given by name.
func number(port intstr.IntOrString, c *corev1.Container) string {
	for i := range c.Ports {
		if port.Type == intstr.String && c.Ports[i].Name == port.StrVal {
			return strconv.Itoa(int(c.Ports[i].ContainerPort))
		}
	}
	return port.String()
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

// checkHTTP passes where the answer has a status from 200 to 399 (core/v1 HTTPGetAction). Certificates are not
// verified, as the kubelet does not.
func checkHTTP(get *corev1.HTTPGetAction, address string) func(ctx context.Context) error {
	transport := &http.Transport{
		DisableKeepAlives: true, DisableCompression: true,
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true},
	}
	path, query, _ := strings.Cut(get.Path, "?")
	target := url.URL{
		Scheme: strings.ToLower(cmp.Or(string(get.Scheme), string(corev1.URISchemeHTTP))),
		Host:   address, Path: "/" + strings.TrimPrefix(path, "/"), RawQuery: query,
	}
	return func(ctx context.Context) error {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, target.String(), nil)
		if err != nil {
			return err
		}
		request.Header.Set("User-Agent", "kube-probe/knative-apiserver")
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
