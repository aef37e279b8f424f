package gateway

import (
	"context"
	"io"
	"net/http"
	"net/netip"
	"strconv"
	"sync"
	"time"
	"unicode/utf8"

	"k8s.io/klog/v2"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/serving/http1"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/serving/pool"
)

const (
	// flushInterval is the time for which a line waits for others.
	flushInterval = 200 * time.Millisecond
	// maxUnwritten bounds the lines that wait to be written, in bytes. Further lines are dropped and counted: a slow disk
	// must not delay requests.
	maxUnwritten = 4 << 20
	// maxLogged bounds each string from a client in a line, in bytes.
	maxLogged = 2048
)

// accessLog writes a line of JSON for each request.
type accessLog struct {
	to      io.Writer
	dropped func()
	// begun has a value when the first of some lines waits to be written.
	begun chan struct{}
	// writing orders the writes.
	writing sync.Mutex

	// mu guards the fields below.
	mu sync.Mutex
	// lines wait to be written. spare is the buffer for new lines while lines are written.
	lines, spare []byte
	clock        stamp
}

func newAccessLog(to io.Writer, dropped func()) *accessLog {
	return &accessLog{to: to, dropped: dropped, begun: make(chan struct{}, 1)}
}

// entry is the content of a line. At most one of head and request is set.
type entry struct {
	time                        time.Time
	duration                    time.Duration
	head                        *http1.Head
	request                     *http.Request
	revision, instance          string
	namespace                   string
	status                      int
	requestBytes, responseBytes int64
	trace                       *trace
	peer                        netip.AddrPort
	err                         error
}

// entry returns the log entry of an exchange that has ended, at a backend or nil.
func (x *exchange) entry(b *pool.Backend, now time.Time, took time.Duration) *entry {
	e := &entry{
		time: now, duration: took, head: x.in.head, request: x.in.request, peer: x.in.peer, trace: &x.trace,
		namespace: x.pool.Key().Namespace, revision: x.pool.Key().Name, instance: x.answeredBy, status: x.result.Status,
		requestBytes: x.result.RequestBytes, responseBytes: x.result.ResponseBytes, err: x.result.Err,
	}
	if b != nil {
		e.instance = b.Name()
	}
	return e
}

// write adds a line.
func (l *accessLog) write(e *entry) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.lines) > maxUnwritten {
		l.dropped()
		return
	}
	if len(l.lines) == 0 {
		select {
		case l.begun <- struct{}{}:
		default:
		}
	}
	l.lines = e.appendTo(l.lines, &l.clock)
}

// flush writes the lines.
func (l *accessLog) flush() error {
	l.writing.Lock()
	defer l.writing.Unlock()
	l.mu.Lock()
	lines := l.lines
	l.lines, l.spare = l.spare[:0], nil
	l.mu.Unlock()
	var err error
	if len(lines) > 0 {
		_, err = l.to.Write(lines)
	}
	l.mu.Lock()
	l.spare = lines[:0]
	l.mu.Unlock()
	return err
}

// run writes the lines some time after the first of them until ctx is canceled, then the last ones.
func (l *accessLog) run(ctx context.Context) {
	timer := time.NewTimer(flushInterval)
	defer timer.Stop()
	timer.Stop()
	for done := false; !done; {
		select {
		case <-l.begun:
			timer.Reset(flushInterval)
			continue
		case <-timer.C:
		case <-ctx.Done():
			done = true
		}
		if err := l.flush(); err != nil {
			klog.FromContext(ctx).Error(err, "Failed to write the access log")
		}
	}
}

// stamp formats times. It keeps the last second, which many lines share.
type stamp struct {
	second int64
	text   []byte
}

// appendTime appends a time in UTC with microseconds (RFC 3339).
func (s *stamp) appendTime(dst []byte, t time.Time) []byte {
	if second := t.Unix(); s.text == nil || second != s.second {
		s.second, s.text = second, t.UTC().AppendFormat(s.text[:0], "2006-01-02T15:04:05.")
	}
	dst = append(dst, s.text...)
	return append(appendMicros(dst, t.Nanosecond()/1000), 'Z')
}

// appendMicros appends six digits.
func appendMicros(dst []byte, micros int) []byte {
	for place := 100_000; place > 0; place /= 10 {
		dst = append(dst, byte('0'+micros/place%10))
	}
	return dst
}

func (e *entry) appendTo(dst []byte, clock *stamp) []byte {
	dst = append(dst, `{"time":"`...)
	dst = clock.appendTime(dst, e.time)
	dst = append(dst, '"')
	if e.head != nil {
		dst = appendMember(dst, "protocol", "HTTP/1.1")
		dst = appendRequest(dst, e.head.Method, e.head.Host, e.head.Target, e.head.Get("user-agent"))
	} else if e.request != nil {
		dst = appendMember(dst, "protocol", e.request.Proto)
		dst = appendRequest(dst, e.request.Method, e.request.Host, e.request.RequestURI, e.request.UserAgent())
	}
	dst = appendNumber(dst, "status", int64(e.status))
	dst = appendMember(dst, "namespace", e.namespace)
	dst = appendMember(dst, "revision", e.revision)
	dst = appendMember(dst, "instance", e.instance)
	dst = append(dst, `,"duration":`...)
	micros := max(e.duration.Round(time.Microsecond).Microseconds(), 0)
	dst = strconv.AppendInt(dst, micros/1e6, 10)
	dst = appendMicros(append(dst, '.'), int(micros%1e6))
	dst = appendNumber(dst, "bytesIn", e.requestBytes)
	dst = appendNumber(dst, "bytesOut", e.responseBytes)
	if e.trace != nil {
		dst = appendMember(dst, "traceId", e.trace.id())
	}
	if e.peer.IsValid() {
		dst = append(dst, `,"remote":"`...)
		dst = e.peer.AppendTo(dst)
		dst = append(dst, '"')
	}
	if e.err != nil {
		dst = appendMember(dst, "error", e.err.Error())
	}
	return append(dst, '}', '\n')
}

func appendRequest[T string | []byte](dst []byte, method, host, path, agent T) []byte {
	dst = appendMember(dst, "method", method)
	dst = appendMember(dst, "host", host)
	dst = appendMember(dst, "path", path)
	return appendMember(dst, "userAgent", agent)
}

func appendNumber(dst []byte, name string, v int64) []byte {
	dst = append(dst, ',', '"')
	dst = append(dst, name...)
	dst = append(dst, '"', ':')
	return strconv.AppendInt(dst, v, 10)
}

// appendMember appends a member of an object, unless its value is empty.
func appendMember[T string | []byte](dst []byte, name string, value T) []byte {
	if len(value) == 0 {
		return dst
	}
	dst = append(dst, ',', '"')
	dst = append(dst, name...)
	dst = append(dst, '"', ':')
	return appendString(dst, value)
}

// isPlain reports whether a byte needs no escape in a JSON string.
func isPlain(c byte) bool { return c >= ' ' && c < 0x7f && c != '"' && c != '\\' }

// appendString appends a JSON string. Invalid UTF-8 becomes U+FFFD.
func appendString[T string | []byte](dst []byte, value T) []byte {
	const digits = "0123456789abcdef"
	dst = append(dst, '"')
	end := min(len(value), maxLogged)
	plain := 0
	for plain < end && isPlain(value[plain]) {
		plain++
	}
	dst = append(dst, value[:plain]...)
	for i := plain; i < end; {
		c := value[i]
		switch {
		case c == '"' || c == '\\':
			dst = append(dst, '\\', c)
		case c < ' ' || c == 0x7f:
			dst = append(dst, '\\', 'u', '0', '0', digits[c>>4], digits[c&0xf])
		case c < utf8.RuneSelf:
			dst = append(dst, c)
		default:
			r, size := utf8.DecodeRuneInString(string(value[i:min(i+utf8.UTFMax, len(value))]))
			dst = utf8.AppendRune(dst, r)
			i += size
			continue
		}
		i++
	}
	return append(dst, '"')
}
