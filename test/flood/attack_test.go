package flood

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// flooders are the namespaces of the attackers.
const flooders = 2

// target has the addresses that the attackers use.
type target struct {
	// gateway and broker are host:port, api the URL of the API.
	gateway, broker string
	clients         *harness.Clients
	// hosts are the host names of the Services of the flooders.
	hosts [flooders]string
}

// attack is one way to make the server hold memory. As many goroutines as workers call run in a loop.
type attack struct {
	name    string
	workers int
	run     func(ctx context.Context, a *target, worker int) error
}

// attacks are the entries of the server.
func attacks() []attack {
	return []attack{
		{"gateway: large bodies for an application that hangs", 48, largeBody},
		{"gateway: large heads with bodies for an application that hangs", 400, largeHead},
		{"gateway: heads that arrive slowly", 300, func(ctx context.Context, a *target, _ int) error {
			return slowSender(ctx, a.gateway, "GET / HTTP/1.1\r\nHost: "+a.hosts[0]+"\r\nX-Slow: ", 56<<10)
		}},
		{"gateway: bodies that arrive slowly", 200, func(ctx context.Context, a *target, _ int) error {
			return slowSender(ctx, a.gateway, "POST /upload HTTP/1.1\r\nHost: "+a.hosts[0]+"\r\nContent-Length: 1000000\r\n\r\n", 48<<10)
		}},
		{"gateway: responses that are not read", 100, func(ctx context.Context, a *target, worker int) error {
			return slowReader(ctx, a.gateway, a.hosts[worker%flooders], "/stream?n=1000000")
		}},
		{"gateway: HTTP/2 streams with bodies for an application that hangs", 40, gatewayStreams},
		{"broker: events of a mebibyte for failing Triggers", 32, largeEvent},
		{"broker: batches of small events with large headers", 16, batch},
		{"broker: events for LIKE filters", 4, likeEvent},
		{"broker: events for subscribers with large replies", 32, repliedEvent},
		{"broker: heads that arrive slowly", 300, func(ctx context.Context, a *target, worker int) error {
			return slowSender(ctx, a.broker, "POST /"+flooder(worker)+"/failing HTTP/1.1\r\nHost: broker\r\nKnative-Slow: ", 56<<10)
		}},
		{"broker: bodies that arrive slowly", 300, func(ctx context.Context, a *target, worker int) error {
			return slowSender(ctx, a.broker, "POST /"+flooder(worker)+"/failing HTTP/1.1\r\nHost: broker\r\nContent-Type: application/cloudevents+json\r\n"+
				"Content-Length: 1000000\r\n\r\n", 900<<10)
		}},
		{"broker: HTTP/2 streams with bodies that do not end", 32, brokerStreams},
		{"API: large objects", 8, largeObject},
		{"API: large objects that are not stored", 16, invalidObject},
		{"API: watches that are not read", 600, unreadWatch},
		{"API: lists that are not read", 100, unreadList},
		{"API: followed logs", 80, followedLog},
	}
}

func flooder(worker int) string { return fmt.Sprintf("flood-%d", worker%flooders) }

// outcomes counts the responses to an attack.
type outcomes struct{ answered, refused, failed atomic.Int64 }

// note counts a response. 429 and 503 are refusals.
func (o *outcomes) note(err error) {
	switch refused := (*refusedError)(nil); {
	case err == nil:
		o.answered.Add(1)
	case errors.As(err, &refused):
		o.refused.Add(1)
	default:
		o.failed.Add(1)
	}
}

// refusedError is a response 429 or 503.
type refusedError struct{ code int }

func (e *refusedError) Error() string { return http.StatusText(e.code) }

// withoutRetryAfter counts the refusals without Retry-After.
var withoutRetryAfter atomic.Int64

// flood runs attacks until ctx is canceled, and returns the outcomes in their order.
func flood(ctx context.Context, a *target, attacks []attack) []outcomes {
	var running sync.WaitGroup
	counts := make([]outcomes, len(attacks))
	for i, attack := range attacks {
		for worker := range attack.workers {
			running.Go(func() {
				for ctx.Err() == nil {
					err := attack.run(ctx, a, worker)
					if ctx.Err() != nil {
						return
					}
					counts[i].note(err)
					if err != nil {
						// Attackers ignore Retry-After.
						select {
						case <-ctx.Done():
						case <-time.After(50 * time.Millisecond):
						}
					}
				}
			})
		}
	}
	running.Wait()
	client.CloseIdleConnections()
	http2.CloseIdleConnections()
	return counts
}

// client is the client of the attackers, http2 the one for HTTP/2 without TLS.
var (
	client = &http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: 64, DisableCompression: true}}
	http2  = func() *http.Client {
		protocols := new(http.Protocols)
		protocols.SetUnencryptedHTTP2(true)
		return &http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{Protocols: protocols, DisableCompression: true}}
	}()
)

// send sends a request and discards the response.
func send(c *http.Client, r *http.Request) error {
	response, err := c.Do(r)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	io.Copy(io.Discard, response.Body) //nolint:errcheck // only the code counts
	return refusal(response)
}

// refusal returns the refusal of a response, or nil.
func refusal(response *http.Response) error {
	if response.StatusCode != http.StatusServiceUnavailable && response.StatusCode != http.StatusTooManyRequests {
		return nil
	}
	if response.Header.Get("Retry-After") == "" {
		withoutRetryAfter.Add(1)
	}
	return &refusedError{response.StatusCode}
}

func post(ctx context.Context, address, host, path string, body io.Reader, header map[string]string) (*http.Request, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+address+path, body)
	if err != nil {
		return nil, err
	}
	if host != "" {
		r.Host = host
	}
	for name, value := range header {
		r.Header.Set(name, value)
	}
	return r, nil
}

var mebibyte = bytes.Repeat([]byte("x"), 1<<20)

func largeBody(ctx context.Context, a *target, worker int) error {
	r, err := post(ctx, a.gateway, a.hosts[worker%flooders], "/hang", bytes.NewReader(bytes.Repeat(mebibyte, 4)), nil)
	if err != nil {
		return err
	}
	return send(client, r)
}

func largeHead(ctx context.Context, a *target, worker int) error {
	header := map[string]string{}
	for i := range 6 {
		header[fmt.Sprintf("X-Large-%d", i)] = string(mebibyte[:9<<10])
	}
	r, err := post(ctx, a.gateway, a.hosts[worker%flooders], "/hang", bytes.NewReader(mebibyte[:30<<10]), header)
	if err != nil {
		return err
	}
	return send(client, r)
}

func gatewayStreams(ctx context.Context, a *target, worker int) error {
	r, err := post(ctx, a.gateway, a.hosts[worker%flooders], "/hang", bytes.NewReader(mebibyte), nil)
	if err != nil {
		return err
	}
	return send(http2, r)
}

func brokerStreams(ctx context.Context, a *target, worker int) error {
	body, end := io.Pipe()
	defer end.Close()
	go func() {
		if _, err := end.Write(mebibyte[:1000<<10]); err != nil {
			return
		}
		<-ctx.Done()
	}()
	r, err := post(ctx, a.broker, "", "/"+flooder(worker)+"/failing", body, map[string]string{"Content-Type": "application/cloudevents+json"})
	if err != nil {
		return err
	}
	return send(http2, r)
}

// slowSender sends the beginning of a request, then bytes in small parts with pauses, until the server closes the connection.
func slowSender(ctx context.Context, address, beginning string, bytes int) error {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", address)
	if err != nil {
		return err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	if _, err := io.WriteString(conn, beginning); err != nil {
		return err
	}
	if _, err := conn.Write(mebibyte[:bytes]); err != nil {
		return err
	}
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			if _, err := io.WriteString(conn, "x"); err != nil {
				return err
			}
		}
	}
}

// slowReader sends a request and does not read the response.
func slowReader(ctx context.Context, address, host, path string) error {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", address)
	if err != nil {
		return err
	}
	defer conn.Close()
	if _, err := fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: %s\r\n\r\n", path, host); err != nil {
		return err
	}
	select {
	case <-ctx.Done():
	case <-time.After(10 * time.Second):
	}
	return nil
}

// event returns the headers of an event.
func event(eventType string) map[string]string {
	return map[string]string{
		"Ce-Specversion": "1.0", "Ce-Type": eventType, "Ce-Source": "/flood", "Ce-Id": fmt.Sprint(ids.Add(1)), "Content-Type": "text/plain",
	}
}

var ids atomic.Int64

func largeEvent(ctx context.Context, a *target, worker int) error {
	r, err := post(ctx, a.broker, "", "/"+flooder(worker)+"/failing", bytes.NewReader(mebibyte), event("flood"))
	if err != nil {
		return err
	}
	return send(client, r)
}

func batch(ctx context.Context, a *target, worker int) error {
	const one = `{"specversion":"1.0","type":"t","source":"s","id":"1"},`
	body := "[" + strings.TrimSuffix(strings.Repeat(one, 8000), ",") + "]"
	r, err := post(ctx, a.broker, "", "/"+flooder(worker)+"/failing", strings.NewReader(body), map[string]string{
		"Content-Type": "application/cloudevents-batch+json", "Knative-Flood": string(mebibyte[:7<<10]),
	})
	if err != nil {
		return err
	}
	return send(client, r)
}

func likeEvent(ctx context.Context, a *target, worker int) error {
	r, err := post(ctx, a.broker, "", "/"+flooder(worker)+"/like", nil, event(strings.Repeat("a", 50_000)))
	if err != nil {
		return err
	}
	return send(client, r)
}

func repliedEvent(ctx context.Context, a *target, worker int) error {
	r, err := post(ctx, a.broker, "", "/"+flooder(worker)+"/replies", nil, event("flood"))
	if err != nil {
		return err
	}
	return send(client, r)
}

// api sends a request to the API.
func api(ctx context.Context, a *target, method, path string, body []byte) (*http.Response, error) {
	r, err := http.NewRequestWithContext(ctx, method, a.clients.Config.Host+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	if body != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	return a.clients.HTTP.Do(r)
}

// large returns a Service of about a mebibyte that never starts.
func large(namespace, name, more string) []byte {
	return fmt.Appendf(nil, `{"apiVersion":"serving.knative.dev/v1","kind":"Service","metadata":{"name":%q,"namespace":%q,"annotations":{%s}},`+
		`"spec":{"template":{"metadata":{"annotations":{"autoscaling.knative.dev/initial-scale":"0"}},`+
		`"spec":{"containers":[{"image":"ko.local/large","command":["/bin/true"],"env":[{"name":"LARGE","value":%q}]}]}}}}`,
		name, namespace, more, mebibyte[:400<<10])
}

func largeObject(ctx context.Context, a *target, worker int) error {
	name := fmt.Sprintf("large-%d", worker)
	path := "/apis/serving.knative.dev/v1/namespaces/" + flooder(worker) + "/services"
	response, err := api(ctx, a, http.MethodPost, path, large(flooder(worker), name, ""))
	if err != nil {
		return err
	}
	io.Copy(io.Discard, response.Body) //nolint:errcheck // only the code counts
	response.Body.Close()
	if err := refusal(response); err != nil {
		return err
	}
	if response, err = api(ctx, a, http.MethodDelete, path+"/"+name, nil); err != nil {
		return err
	}
	io.Copy(io.Discard, response.Body) //nolint:errcheck // only the code counts
	return errors.Join(response.Body.Close(), refusal(response))
}

func invalidObject(ctx context.Context, a *target, worker int) error {
	values := strings.Repeat(`"a":{},`, 300<<10)
	body := fmt.Appendf(nil, `{"apiVersion":"serving.knative.dev/v1","kind":"Service","metadata":{"name":"invalid"},"spec":{"unknown":{%s"z":1}}}`, values)
	response, err := api(ctx, a, http.MethodPost, "/apis/serving.knative.dev/v1/namespaces/"+flooder(worker)+"/services?fieldValidation=Strict", body)
	if err != nil {
		return err
	}
	io.Copy(io.Discard, response.Body) //nolint:errcheck // only the code counts
	return errors.Join(response.Body.Close(), refusal(response))
}

// unreadWatch watches and does not read the events.
func unreadWatch(ctx context.Context, a *target, worker int) error {
	resources := []string{"serving.knative.dev/v1/namespaces/%s/services", "serving.knative.dev/v1/namespaces/%s/revisions", "eventing.knative.dev/v1/namespaces/%s/triggers"}
	return unread(ctx, a, "/apis/"+fmt.Sprintf(resources[worker%len(resources)], flooder(worker))+"?watch=true", "application/json")
}

// unreadList lists and does not read the objects, in all encodings.
func unreadList(ctx context.Context, a *target, worker int) error {
	accepted := []string{"application/json", "application/yaml", "application/json;as=Table;v=v1;g=meta.k8s.io"}[worker%3]
	return unread(ctx, a, "/apis/serving.knative.dev/v1/namespaces/"+flooder(worker)+"/services?pretty=1&includeObject=Object", accepted)
}

// unread sends a request by HTTP/1.1, so that it has a connection whose buffers fill, and reads only the first bytes of the response.
func unread(ctx context.Context, a *target, path, accepted string) error {
	config, err := tlsConfig(a.clients)
	if err != nil {
		return err
	}
	base, err := url.Parse(a.clients.Config.Host)
	if err != nil {
		return err
	}
	conn, err := (&tls.Dialer{Config: config}).DialContext(ctx, "tcp", base.Host)
	if err != nil {
		return err
	}
	defer conn.Close()
	if _, err := fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: %s\r\nAccept: %s\r\n\r\n", path, base.Host, accepted); err != nil {
		return err
	}
	head := make([]byte, 12)
	if _, err := io.ReadFull(conn, head); err != nil {
		return err
	}
	if code := string(head[9:]); code == "429" || code == "503" {
		return &refusedError{http.StatusTooManyRequests}
	}
	<-ctx.Done()
	return nil
}

func followedLog(ctx context.Context, a *target, worker int) error {
	response, err := api(ctx, a, http.MethodGet, "/apis/serving.knative.dev/v1/namespaces/"+flooder(worker)+"/revisions/app-00001/log?follow=true", nil)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if err := refusal(response); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}
