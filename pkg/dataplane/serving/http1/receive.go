package http1

import (
	"errors"
	"io"
	"net/http"
	"os"
	"strconv"
	"time"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/serving"
)

// receive reads the backend's response, of which resp[:conn.n] has arrived, and sends it to the client. A rejection is only
// possible if nothing was sent to the client.
func (x *Exchange) receive() (*serving.Rejection, error) {
	x.observer.ResponseStarted()
	size, have, err := x.readHead()
	if err != nil {
		if isInvalid(err) {
			return serving.BadResponse, err
		}
		if errors.Is(err, errOverBudget) {
			return serving.OverBudget, err
		}
		return failed(err)
	}
	x.started = true
	res, rest := &x.res, x.resp[size:have]
	x.closes = x.c.closing()
	if altSvc := x.observer.AltSvc(); altSvc != "" {
		res.setDefault("Alt-Svc", altSvc)
	}
	x.out = res.appendTo(x.out[:0], x.closes)
	n, done := len(rest), false
	switch res.framing {
	case noBody:
		n, done = 0, true
	case byLength:
		n = int(min(res.length, int64(len(rest))))
		done = int64(n) == res.length
	case byChunks:
		x.body = chunks{name: x.body.name[:0]}
		if n, done, err = x.body.feed(rest); err != nil {
			return serving.BadResponse, err
		}
	case byClose:
		if n > 0 {
			x.out = strconv.AppendInt(x.out, int64(n), 16)
			x.out = append(x.out, "\r\n"...)
		}
	}
	x.out = append(x.out, rest[:n]...)
	if res.framing == byClose && n > 0 {
		x.out = append(x.out, "\r\n"...)
	}
	if done {
		// Other requests can use the connection while the client reads the response.
		x.keep(!res.close && n == len(rest))
	}
	if err := x.sendResponse(x.out, n); err != nil {
		return nil, err
	}
	x.status = res.status
	if done {
		return nil, nil
	}
	if res.eventStream() {
		x.streaming = true
		x.observer.Streaming(true)
	}
	return nil, x.stream(res.length - int64(n))
}

// isInvalid reports whether an error means that the backend sent a malformed response.
func isInvalid(err error) bool {
	for _, invalid := range []error{errStatusLine, errField, errFraming, errHeadSize, errInterim} {
		if errors.Is(err, invalid) {
			return true
		}
	}
	return false
}

// readHead reads the head of the response, and forwards interim responses before it. Then resp[:size] is the head, and
// resp[size:have] the start of the body.
func (x *Exchange) readHead() (size, have int, err error) {
	have = x.conn.n
	for scanned, interim := 0, 0; ; {
		size, malformed := headSize(x.resp[:have], scanned)
		switch {
		case malformed != nil:
			return 0, 0, errStatusLine
		case size == 0:
			scanned = have
			if have == len(x.resp) {
				if have >= maxResponseHead {
					return 0, 0, errHeadSize
				}
				if !x.observer.Hold(have) {
					return 0, 0, errOverBudget
				}
				x.resp = append(x.resp, make([]byte, have)...)
			}
			x.conn.in = x.resp[have:]
			if err := x.await(); err != nil {
				return 0, 0, unexpectedEnd(err)
			}
			have += x.conn.n
			continue
		}
		if err := x.res.parse(x.resp[:size], x.c.isHead()); err != nil {
			return 0, 0, err
		}
		if x.res.status >= http.StatusOK {
			return size, have, nil
		}
		if interim++; interim > maxInterim || x.res.status == http.StatusSwitchingProtocols {
			return 0, 0, errInterim
		}
		// A 100 (Continue) is not needed: the request was sent with its body.
		if x.res.status != http.StatusContinue {
			if err := x.sendResponse(x.res.appendTo(x.out[:0], false), 0); err != nil {
				return 0, 0, err
			}
		}
		scanned, have = 0, copy(x.resp, x.resp[size:have])
	}
}

// stream forwards the rest of a body. remaining is the number of its bytes if its length is known.
func (x *Exchange) stream(remaining int64) error {
	buf := x.resp[:min(len(x.resp), streamSize)]
	for {
		// await moves the deadline of the connection only after it has passed.
		x.last = time.Now()
		if x.watch != nil && !x.streaming {
			x.streaming = true
			x.observer.Streaming(false)
		}
		in := buf[chunkHeadRoom : len(buf)-2]
		if x.res.framing == byLength {
			in = in[:min(remaining, int64(len(in)))]
		}
		x.conn.in = in
		if err := x.await(); err != nil {
			if x.res.framing != byClose || !errors.Is(err, io.EOF) {
				return unexpectedEnd(err)
			}
			x.keep(false)
			return x.sendResponse([]byte(lastChunk), 0)
		}
		n, size, done := x.conn.n, x.conn.n, false
		out := in[:n]
		switch x.res.framing {
		case byLength:
			remaining -= int64(n)
			done = remaining == 0
		case byChunks:
			var err error
			if size, done, err = x.body.feed(out); err != nil {
				return err
			}
			out = out[:size]
		case byClose:
			out = frame(buf, n)
		}
		if done {
			x.keep(!x.res.close && size == n)
		}
		if err := x.sendResponse(out, size); err != nil || done {
			return err
		}
		if n == len(in) && len(buf) < streamSize && x.observer.Hold(streamSize) {
			big := streamPool.Get().(*[streamSize]byte)
			defer streamPool.Put(big)
			buf = big[:]
		}
	}
}

// unexpectedEnd returns errEOF for an unexpected end of the connection, and other errors unchanged.
func unexpectedEnd(err error) error {
	if errors.Is(err, io.EOF) {
		return errEOF
	}
	return err
}

// sendResponse sends a part of the response. body is the number of body bytes in it, ignored for a chunked response.
func (x *Exchange) sendResponse(b []byte, body int) error {
	within := x.timeouts.Stall
	if limit := x.limit(); !x.started && !limit.IsZero() {
		within = max(time.Until(limit), time.Nanosecond)
	}
	err := x.c.send(b, within)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return serving.ErrTimeout
	}
	if err != nil {
		return errors.Join(errClientGone, err)
	}
	if x.res.framing == byChunks {
		x.received = x.body.data
	} else {
		x.received += int64(body)
	}
	return nil
}
