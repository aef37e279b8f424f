package creation

import (
	"context"
	"fmt"
	"net/http"
	"strings"

	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// client sends the probes, to loopback or to Pods.
var client = &http.Client{Timeout: patience, Transport: &http.Transport{}}

// Get returns an error unless the gateway at an address serves a host name.
func Get(ctx context.Context, address, host string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address, http.NoBody)
	if err != nil {
		return err
	}
	request.Host = host
	return do(request, http.StatusOK)
}

// Send returns an error unless the ingress at an address accepts an event of a type for a Broker.
func Send(ctx context.Context, address, namespace, broker, eventType string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+address+"/"+namespace+"/"+broker, strings.NewReader("{}"))
	if err != nil {
		return err
	}
	for name, value := range map[string]string{"Ce-Specversion": "1.0", "Ce-Id": "1", "Ce-Source": "/growth", "Ce-Type": eventType} {
		request.Header.Set(name, value)
	}
	return do(request, http.StatusAccepted)
}

func do(request *http.Request, want int) error {
	code, body, err := harness.Exchange(client, request)
	if err == nil && code != want {
		err = fmt.Errorf("the answer is %d %s", code, body)
	}
	return err
}
