// Package probing implements the network checks of core/v1 probes with the kubelet's semantics.
package probing

import (
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	corev1 "k8s.io/api/core/v1"
)

// Check returns nil if a container is healthy.
type Check func(ctx context.Context) error

// TCP returns a check that passes if an address accepts connections.
func TCP(address string) Check {
	return func(ctx context.Context) error {
		var dialer net.Dialer
		conn, err := dialer.DialContext(ctx, "tcp", address)
		if err != nil {
			return err
		}
		return conn.Close()
	}
}

// HTTP returns a check that passes if the response has a status from 200 to 399 (core/v1 HTTPGetAction). Like the kubelet,
// it does not verify certificates. protocols are the protocols to use; nil means the default ones.
func HTTP(get *corev1.HTTPGetAction, address string, protocols *http.Protocols) Check {
	transport := &http.Transport{
		DisableKeepAlives: true, DisableCompression: true, Protocols: protocols,
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
		defer transport.CloseIdleConnections()
		defer response.Body.Close()
		if response.StatusCode < http.StatusOK || response.StatusCode >= http.StatusBadRequest {
			return fmt.Errorf("GET %s: status %d", target.Path, response.StatusCode)
		}
		return nil
	}
}

// GRPC returns a check that passes if the service reports SERVING by the gRPC health protocol.
func GRPC(address, service string) Check {
	return func(ctx context.Context) error {
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
}
