package ingress

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"runtime/debug"
	"slices"
	"strconv"
	"sync"

	"k8s.io/klog/v2"

	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
)

// An HTTP/2 request between replicas for each event was the largest part of the processor time of small events (docs/performance.md). Under load,
// a replica therefore sends requests to one stream together: as a pipeline of HTTP/1.1 messages (RFC 9112 10.2), in one HTTP/2 request.
const (
	// PipelineElement begins the paths of requests with a pipeline. Handler.Pipelined serves them.
	PipelineElement = "event-pipelines"
	// pipelineType is the media type of a pipeline of requests or responses.
	pipelineType = "application/http"
	// concurrentForwards is the number of requests to one stream that a replica forwards at a time. Further ones wait, and are sent
	// together after the first response.
	concurrentForwards = 4
	// maxPipelined bounds the requests of a pipeline, and maxPipelinedHead and maxPipelinedBody the bytes of each. Other requests are sent alone.
	maxPipelined                       = 64
	maxPipelinedHead, maxPipelinedBody = 4 << 10, smallBody
	// maxPipeline bounds the bytes of a pipeline. usualHead is about the size of a head.
	maxPipeline = maxPipelined * (maxPipelinedHead + maxPipelinedBody)
	usualHead   = 1 << 10
)

// forwarding is a request that is being forwarded.
type forwarding struct {
	request *http.Request
	body    []byte
	// done is closed after reply or err is set.
	done  chan struct{}
	reply *ownerReply
	err   error
}

// ownerReply is a response of an owner.
type ownerReply struct {
	status  int
	header  http.Header
	message []byte
}

// replyOf reads a response. message stays empty if it has no text that matters.
func replyOf(response *http.Response) *ownerReply {
	defer response.Body.Close()
	r := &ownerReply{status: response.StatusCode, header: response.Header}
	if r.status/100 == 2 {
		return r
	}
	var err error
	if r.message, err = io.ReadAll(io.LimitReader(response.Body, maxMessage)); err != nil {
		r.message = []byte(response.Status)
	}
	return r
}

// pipelineable reports whether a request may be sent in a pipeline.
func (r *forwarding) pipelineable() bool {
	return r.request.Method == http.MethodPost && len(r.body) <= maxPipelinedBody && headSize(r.request) <= maxPipelinedHead
}

// destination is a stream at its owner.
type destination struct {
	address string
	to      eventing.Key
}

// pipelines gather the requests that cannot be sent at once. The zero value is empty.
type pipelines struct {
	mu  sync.Mutex
	all map[destination]*pipeline
}

// pipeline has the number of requests to one destination that are in flight, at least one, and the requests that wait.
type pipeline struct {
	inFlight int
	waiting  []*forwarding
}

// enter reports whether a request may be sent at once, until next. Otherwise it waits.
func (p *pipelines) enter(at destination, r *forwarding) (now bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.all == nil {
		p.all = map[destination]*pipeline{}
	}
	line := p.all[at]
	if line == nil {
		line = &pipeline{}
		p.all[at] = line
	}
	if line.inFlight < concurrentForwards {
		line.inFlight++
		return true
	}
	line.waiting = append(line.waiting, r)
	return false
}

// next returns the requests to send after one that was sent has ended, none if none waits.
func (p *pipelines) next(at destination) []*forwarding {
	p.mu.Lock()
	defer p.mu.Unlock()
	line := p.all[at]
	n := min(len(line.waiting), maxPipelined)
	if n == 0 {
		if line.inFlight--; line.inFlight == 0 {
			delete(p.all, at)
		}
		return nil
	}
	gathered := line.waiting[:n:n]
	line.waiting = line.waiting[n:]
	return gathered
}

// withdraw removes a waiting request, and reports whether it was waiting.
func (p *pipelines) withdraw(at destination, r *forwarding) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	line := p.all[at]
	if line == nil {
		return false
	}
	i := slices.Index(line.waiting, r)
	if i < 0 {
		return false
	}
	line.waiting = slices.Delete(line.waiting, i, i+1)
	return true
}

// exchange sends a request to the owner of a stream, alone or in a pipeline.
func (f *Forwarder) exchange(r *http.Request, to eventing.Key, body []byte) (*ownerReply, error) {
	x := &forwarding{request: r, body: body, done: make(chan struct{})}
	if !x.pipelineable() {
		return f.alone(r)
	}
	at := destination{address: r.URL.Host, to: to}
	if f.pipelines.enter(at, x) {
		// The sender of this request may be gone before the others.
		defer f.proceed(context.WithoutCancel(r.Context()), at)
		return f.alone(r)
	}
	select {
	case <-x.done:
		return x.reply, x.err
	case <-r.Context().Done():
	}
	if f.pipelines.withdraw(at, x) {
		return nil, r.Context().Err()
	}
	// It is being sent, and the body may be in use until then.
	<-x.done
	return x.reply, x.err
}

// alone sends a request in an HTTP/2 request of its own.
func (f *Forwarder) alone(r *http.Request) (*ownerReply, error) {
	response, err := f.Transport.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	return replyOf(response), nil
}

// proceed sends the requests that wait after one has ended.
func (f *Forwarder) proceed(ctx context.Context, at destination) {
	if gathered := f.pipelines.next(at); len(gathered) > 0 {
		go func() {
			for ; len(gathered) > 0; gathered = f.pipelines.next(at) {
				f.together(ctx, gathered)
			}
		}()
	}
}

// errNoPipeline means that the owner has accepted no request of a pipeline, because it does not serve pipelines or refused this one.
var errNoPipeline = errors.New("the owner refused a pipeline")

// together sends requests in a pipeline, and each alone if the owner refuses it.
func (f *Forwarder) together(ctx context.Context, requests []*forwarding) {
	err := errNoPipeline
	if len(requests) > 1 {
		err = f.send(ctx, requests)
	}
	if errors.Is(err, errNoPipeline) {
		var sending sync.WaitGroup
		for _, r := range requests {
			sending.Go(func() { r.reply, r.err = f.alone(r.request) })
		}
		sending.Wait()
	}
	for _, r := range requests {
		if r.reply == nil && r.err == nil {
			r.err = err
		}
		close(r.done)
	}
}

// send sends requests in a pipeline, and sets their replies. It returns the reason why the last ones have none.
func (f *Forwarder) send(ctx context.Context, requests []*forwarding) error {
	first := requests[0].request
	ctx, cancel := context.WithTimeout(ctx, forwardTimeout)
	defer cancel()
	to := first.URL.EscapedPath()[len("/"+ForwardedElement):]
	size := 0
	for _, r := range requests {
		size += len(r.body) + usualHead
	}
	messages := bytes.NewBuffer(make([]byte, 0, size))
	for _, r := range requests {
		fmt.Fprintf(messages, "%s %s HTTP/1.1\r\nHost: %s\r\nContent-Length: %d\r\n", r.request.Method, to, first.URL.Host, len(r.body))
		r.request.Header.Write(messages) //nolint:errcheck // a buffer accepts everything
		messages.WriteString("\r\n")
		messages.Write(r.body)
	}
	sent, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://"+first.URL.Host+"/"+PipelineElement+to, messages)
	if err != nil {
		return err
	}
	sent.Header.Set("Content-Type", pipelineType)
	response, err := f.Transport.RoundTrip(sent)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK || response.Header.Get("Content-Type") != pipelineType {
		return errNoPipeline
	}
	replies := bufio.NewReader(response.Body)
	for _, r := range requests {
		reply, err := http.ReadResponse(replies, r.request)
		if err != nil {
			return err
		}
		r.reply = replyOf(reply)
	}
	return nil
}

// Pipelined returns the handler of pipelines that other replicas send. It serves their requests as Forwarded does, at the same time, and answers
// with the responses in the same order.
func (h *Handler) Pipelined() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := h.servePipeline(w, r); err != nil {
			answer(w, err)
		}
	})
}

// servePipeline serves the requests of a pipeline. It fails before it serves any.
func (h *Handler) servePipeline(w http.ResponseWriter, r *http.Request) error {
	if r.Method != http.MethodPost || r.Header.Get("Content-Type") != pipelineType || r.ContentLength < 0 || r.ContentLength > maxPipeline {
		return &Refusal{Status: http.StatusBadRequest, Message: fmt.Sprintf("a pipeline is sent by POST as %s of %d bytes at most", pipelineType, maxPipeline)}
	}
	to, err := h.target(r)
	if err != nil {
		return err
	}
	// The messages, and the bodies in them.
	held := 2 * r.ContentLength
	if !h.bodies.memory.Reserve(to.Namespace, held) {
		return errMemory
	}
	defer h.bodies.memory.Release(to.Namespace, held)
	requests, err := requestsOf(r)
	if err != nil {
		return &Refusal{Status: http.StatusBadRequest, Message: "read pipeline: " + err.Error()}
	}
	responses := make([]pipelinedResponse, len(requests))
	var serving sync.WaitGroup
	for i, request := range requests {
		serving.Go(func() { h.serveContained(&responses[i], request) })
	}
	serving.Wait()
	var messages bytes.Buffer
	for i := range responses {
		responses[i].writeTo(&messages)
	}
	w.Header().Set("Content-Type", pipelineType)
	w.Header().Set("Content-Length", strconv.Itoa(messages.Len()))
	w.Write(messages.Bytes()) //nolint:errcheck // the other replica may be gone
	return nil
}

// requestsOf returns the requests of a pipeline, with their bodies in memory.
func requestsOf(r *http.Request) ([]*http.Request, error) {
	data := make([]byte, r.ContentLength)
	if _, err := io.ReadFull(r.Body, data); err != nil {
		return nil, err
	}
	messages := bufio.NewReader(bytes.NewReader(data))
	var requests []*http.Request
	for {
		request, err := http.ReadRequest(messages)
		if errors.Is(err, io.EOF) {
			return requests, nil
		}
		if err != nil {
			return nil, err
		}
		if len(requests) == maxPipelined {
			return nil, fmt.Errorf("more than %d requests", maxPipelined)
		}
		body, err := io.ReadAll(request.Body)
		if err != nil {
			return nil, err
		}
		request.Body = io.NopCloser(bytes.NewReader(body))
		request.TLS, request.RemoteAddr = r.TLS, r.RemoteAddr
		requests = append(requests, request.WithContext(r.Context()))
	}
}

// serveContained serves a request of a pipeline. A panic ends only this request, as net/http does.
func (h *Handler) serveContained(w *pipelinedResponse, r *http.Request) {
	defer func() {
		if fault := recover(); fault != nil {
			klog.Background().Error(nil, "Recovered from a panic while accepting events", "panic", fault, "stack", string(debug.Stack()))
			*w = pipelinedResponse{status: http.StatusInternalServerError}
		}
	}()
	h.serve(w, r, headSize(r), true)
}

// pipelinedResponse is a response of a pipeline. It implements http.ResponseWriter.
type pipelinedResponse struct {
	status int
	header http.Header
	body   bytes.Buffer
}

var _ http.ResponseWriter = (*pipelinedResponse)(nil)

// Header implements http.ResponseWriter.
func (w *pipelinedResponse) Header() http.Header {
	if w.header == nil {
		w.header = http.Header{}
	}
	return w.header
}

// WriteHeader implements http.ResponseWriter.
func (w *pipelinedResponse) WriteHeader(status int) {
	if w.status == 0 {
		w.status = status
	}
}

// Write implements http.ResponseWriter.
func (w *pipelinedResponse) Write(b []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	return w.body.Write(b)
}

func (w *pipelinedResponse) writeTo(messages *bytes.Buffer) {
	w.WriteHeader(http.StatusOK)
	fmt.Fprintf(messages, "HTTP/1.1 %d %s\r\n", w.status, http.StatusText(w.status))
	w.header.Del("Content-Length")
	w.header.Write(messages) //nolint:errcheck // a buffer accepts everything
	fmt.Fprintf(messages, "Content-Length: %d\r\n\r\n", w.body.Len())
	w.body.WriteTo(messages) //nolint:errcheck // see above
}
