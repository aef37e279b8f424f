package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
)

// The components of the server, as --components names them.
const (
	componentAPIServer   = "apiserver"
	componentControllers = "controllers"
	componentGateway     = "gateway"
	componentBroker      = "broker"
)

var allComponents = componentList{componentAPIServer, componentControllers, componentGateway, componentBroker}

// componentList is the value of --components.
type componentList []string

// has tells whether a component is among them.
func (l componentList) has(component string) bool { return slices.Contains(l, component) }

// group returns the name of the replicas that run these components.
func (l componentList) group() string { return strings.Join(slices.Sorted(slices.Values(l)), ".") }

func (l componentList) validate() error {
	var errs []error
	for _, component := range l {
		if !allComponents.has(component) {
			errs = append(errs, fmt.Errorf("--components %q must be among %s", component, strings.Join(allComponents, ", ")))
		}
	}
	if len(l) == 0 {
		errs = append(errs, fmt.Errorf("--components must name some of %s", strings.Join(allComponents, ", ")))
	}
	return errors.Join(errs...)
}

// listen opens the port of a flag.
func listen(ctx context.Context, host net.IP, flag string, port int) (net.Listener, error) {
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp", net.JoinHostPort(host.String(), strconv.Itoa(port)))
	if err != nil {
		return nil, fmt.Errorf("opening --%s %d: %w", flag, port, err)
	}
	return listener, nil
}
