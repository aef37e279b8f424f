package proxy

import (
	"cmp"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httputil"
	"net/textproto"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/http/httpguts"
	"golang.org/x/net/http2/hpack"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/serving"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/serving/http1"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/serving/http2"
)

const (
	// maxResends bounds how often a request is sent again that its backend did not process.
	maxResends = 3
	// continueTimeout is the time after which the body of a request that expects 100 (Continue) is sent without it.
	continueTimeout = time.Second
)

// errAnswered is the error of sending a body after the response has ended.
var errAnswered = errors.New("the response has ended")

// Upgrades reports whether a request asks for another protocol on its connection, except for h2c: after such an upgrade, the client could send
// requests that the gateway does not route.
func Upgrades(r *http.Request) bool {
	protocol := r.Header.Get("Upgrade")
	return protocol != "" && !strings.EqualFold(protocol, "h2c") && httpguts.HeaderValuesContainsToken(r.Header["Connection"], "upgrade")
}

// ForwardH2C is like Forward for a backend that speaks HTTP/2 without TLS, and a request that upgrades to nothing else. Requests share
// connections. If limited is true, a request that ends before its backend has ended it is abandoned.
func (f *Request) ForwardH2C(address string, limited bool) serving.Result {
	failure := f.serveH2C(address)
	if limited && !f.finished.Load() {
		// HTTP/2 does not report that the backend has ended a reset stream.
		f.observer.Abandon().Expire()
	}
	if failure != nil {
		return f.Failed(failure)
	}
	return f.responded()
}

// serveH2C sends the request, and its response to the client. It returns an error if there is no response.
func (f *Request) serveH2C(address string) error {
	out := outgoings.Get().(*outgoing)
	defer out.release()
	head := out.write(f)
	f.limitSilence()
	for resends := 0; ; resends++ {
		err := f.attemptH2C(address, head)
		if !errors.Is(err, http2.ErrUnprocessed) || resends == maxResends || f.Sent() || f.Context().Err() != nil {
			return err
		}
	}
}

// outgoing is the memory of a request to a backend.
type outgoing struct {
	request http.Request
	url     url.URL
	header  http.Header
	proxied httputil.ProxyRequest
	head    http2.Request
}

// outgoings have empty headers.
var outgoings = sync.Pool{New: func() any { return &outgoing{header: http.Header{}} }}

// release keeps the memory for another request.
func (o *outgoing) release() {
	clear(o.header)
	*o = outgoing{header: o.header}
	outgoings.Put(o)
}

// write returns the request to the backend.
func (o *outgoing) write(f *Request) *http2.Request {
	o.request, o.url = *f.in, *f.in.URL
	out := &o.request
	out.URL, out.Header, out.Trailer = &o.url, o.header, f.in.Trailer.Clone()
	forwardable(out.Header, f.in.Header)
	o.proxied = httputil.ProxyRequest{In: f.in, Out: out}
	f.rewrite(&o.proxied)
	o.head = http2.Request{
		Method: out.Method, Authority: out.Host, Path: out.URL.RequestURI(), Header: out.Header,
		HasBody: f.body != nil, Length: out.ContentLength, Trailer: out.Trailer,
	}
	return &o.head
}

// forwardable adds the fields of a request to another header, except for fields of one connection, and for fields that describe the client to
// the next hop, which Observer.Rewrite sets. The values are not copied.
func forwardable(to, from http.Header) {
	for name, values := range from {
		switch name {
		case "Trailer", "Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto":
		default:
			if !ofConnection(name) {
				to[name] = values
			}
		}
	}
	for _, value := range from["Connection"] {
		for name := range strings.SplitSeq(value, ",") {
			to.Del(textproto.TrimString(name))
		}
	}
	if httpguts.HeaderValuesContainsToken(from["Te"], "trailers") {
		to["Te"] = []string{"trailers"}
	}
}

// ofConnection reports whether a field, by its canonical name, is for one connection, in both directions. Trailer is not: each hop announces its own.
func ofConnection(name string) bool {
	switch name {
	case "Connection", "Proxy-Connection", "Keep-Alive", "Proxy-Authenticate", "Proxy-Authorization", "Te", "Transfer-Encoding", "Upgrade":
		return true
	}
	return false
}

// attemptH2C sends the request once, and its response to the client. It returns an error if there is no response.
func (f *Request) attemptH2C(address string, head *http2.Request) (err error) {
	ctx := f.Context()
	f.finished.Store(true)
	answered := f.limitStart()
	defer answered()
	stream, err := f.transports.h2c.Open(ctx, address, head)
	if err != nil {
		if errors.As(err, new(*http2.DialError)) {
			return Unreached(err)
		}
		return err
	}
	upload := upload{request: f, stream: stream, trailer: head.Trailer}
	defer func() {
		f.finished.Store(stream.Close(errAnswered))
		upload.stop()
	}()
	if f.body != nil {
		if httpguts.HeaderValuesContainsToken(head.Header["Expect"], "100-continue") {
			upload.proceed = make(chan struct{})
		}
		go upload.run(ctx)
	}
	response, err := f.headH2C(ctx, stream, upload.begin)
	answered()
	if err != nil {
		if errors.Is(err, http2.ErrMalformed) {
			return serving.BadResponse
		}
		return err
	}
	if f.respondH2C(ctx, stream, &response) != nil {
		f.aborted = true
		f.err = cmp.Or(f.err, errBroken)
	}
	return nil
}

// limitStart limits the time until the response starts, from when the request is sent.
func (f *Request) limitStart() (started func()) {
	limit := f.observer.Timeouts().ResponseStart
	if limit == 0 {
		return func() {}
	}
	timer := time.AfterFunc(limit, f.expire)
	return func() { timer.Stop() }
}

// upload sends the body of a request.
type upload struct {
	request *Request
	stream  *http2.Stream
	trailer http.Header
	// proceed is closed, once, when the body may be sent. Nil means at once.
	proceed chan struct{}
	once    sync.Once
	// claimed is true once run sends the body, or stop has prevented it.
	claimed atomic.Bool
}

// begin lets run send the body.
func (u *upload) begin() {
	if u.proceed != nil {
		u.once.Do(func() { close(u.proceed) })
	}
}

// stop ends run. The body may be sent once more only if run has not begun to read it.
func (u *upload) stop() {
	if u.claimed.Swap(true) {
		u.request.body.begun.Store(true)
	}
	u.begin()
}

// run sends the body, and the trailers. It may outlive the request.
func (u *upload) run(ctx context.Context) {
	if u.proceed != nil {
		select {
		case <-u.proceed:
		case <-time.After(continueTimeout):
		}
	}
	if u.claimed.Swap(true) {
		return
	}
	body, buffers := u.request.body, &u.request.transports.buffers
	buffer := buffers.Get()
	defer buffers.Put(buffer)
	for {
		n, err := body.Read(buffer)
		if n > 0 && u.stream.Write(ctx, buffer[:n]) != nil {
			return
		}
		switch {
		case errors.Is(err, io.EOF):
			u.stream.CloseWrite(u.trailer) //nolint:errcheck // the reader of the response gets the same error
			return
		case err != nil:
			u.stream.Close(err)
			return
		}
	}
}

// headH2C returns the head of the response, after it has sent the interim responses to the client. It calls proceed after 100 (Continue).
func (f *Request) headH2C(ctx context.Context, stream *http2.Stream, proceed func()) (http2.Head, error) {
	for {
		head, err := stream.Head(ctx)
		if err != nil || head.Status >= http.StatusOK {
			return head, err
		}
		f.touch()
		if head.Status == http.StatusContinue {
			proceed()
		}
		header := f.w.Header()
		setFields(header, head.Fields)
		f.w.WriteHeader(head.Status)
		clear(header)
		header["Content-Type"] = nil
	}
}

// respondH2C sends the response to the client.
func (f *Request) respondH2C(ctx context.Context, stream *http2.Stream, response *http2.Head) error {
	header := f.w.Header()
	setFields(header, response.Fields)
	f.status = response.Status
	f.observer.ResponseStarted()
	f.observer.Respond(header)
	f.started(f.observer.Timeouts().Stall)
	if !response.Ended {
		f.observer.Streaming(http1.IsEventStream(header.Get("Content-Type")))
	}
	f.endConnection(header)
	f.w.WriteHeader(response.Status)
	flush := func() { f.control.Flush() }
	for ended := response.Ended; !ended; {
		var chunk http2.Chunk
		var err error
		if chunk, ended, err = stream.Body(ctx, flush); err != nil {
			return err
		}
		f.touch()
		f.received.Add(int64(len(chunk.Data)))
		_, err = f.w.Write(chunk.Data)
		chunk.Done()
		if err != nil {
			return err
		}
		f.touch()
	}
	if !f.complete(header) {
		return errBroken
	}
	if trailer := stream.Trailer(); len(trailer) > 0 {
		if f.in.ProtoMajor != 2 {
			// Without chunks there are no trailers.
			flush()
		}
		for _, field := range trailer {
			name := http.TrailerPrefix + http2.CanonicalName(field.Name)
			header[name] = append(header[name], field.Value)
		}
	}
	return nil
}

// complete reports whether the body of a response has the length that the response has announced.
func (f *Request) complete(header http.Header) bool {
	announced := header.Get("Content-Length")
	length, err := strconv.ParseInt(announced, 10, 64)
	return announced == "" || f.in.Method == http.MethodHead || f.status == http.StatusNotModified || err == nil && length == f.received.Load()
}

// setFields adds the fields of a response, except for fields of one connection.
func setFields(header http.Header, fields []hpack.HeaderField) {
	values := make([]string, len(fields))
	for i := range fields {
		name := http2.CanonicalName(fields[i].Name)
		if ofConnection(name) {
			continue
		}
		values[i] = fields[i].Value
		if former := header[name]; former != nil {
			header[name] = append(former, fields[i].Value)
		} else {
			header[name] = values[i : i+1 : i+1]
		}
	}
}
