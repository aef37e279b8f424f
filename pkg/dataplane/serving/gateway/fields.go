package gateway

import (
	"math/rand/v2"
	"net/http"
	"net/netip"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/serving/http1"
)

// Names of the header fields that the gateway replaces, in lower case.
const (
	forwardedField      = "forwarded"
	forwardedForField   = "x-forwarded-for"
	forwardedHostField  = "x-forwarded-host"
	forwardedProtoField = "x-forwarded-proto"
	traceparentField    = "traceparent"
	tracestateField     = "tracestate"
	tagField            = "knative-serving-tag"
	// relayField is the prefix of the fields between replicas.
	relayField = "knative-gateway-"
)

// passes reports whether a request's header field is forwarded to the backend unchanged. Fields that the gateway writes and
// internal fields of Knative are not.
func passes[T string | []byte](name T) bool {
	switch string(name) {
	case forwardedField, forwardedForField, forwardedHostField, forwardedProtoField, traceparentField,
		"k-proxy-request", "k-kubelet-probe", "k-network-probe", "k-network-hash", "k-passthrough-lb",
		"knative-serving-namespace", "knative-serving-revision", "knative-serving-default-route":
		return false
	}
	return len(name) < len(relayField) || string(name[:len(relayField)]) != relayField
}

// appendForwarded appends this hop's element of the Forwarded header (RFC 7239).
func appendForwarded[T string | []byte](dst []byte, peer netip.Addr, host T) []byte {
	dst = append(dst, "for="...)
	switch {
	case !peer.IsValid():
		dst = append(dst, "unknown"...)
	case peer.Is4():
		dst = peer.AppendTo(dst)
	default:
		dst = append(dst, `"[`...)
		dst = peer.WithZone("").AppendTo(dst)
		dst = append(dst, `]"`...)
	}
	dst = append(dst, `;host="`...)
	for i := range len(host) {
		if c := host[i]; c == '"' || c == '\\' {
			dst = append(dst, '\\')
		}
		dst = append(dst, host[i])
	}
	return append(dst, `";proto=http`...)
}

// openQuote reports whether a list ends within a quoted string. Appended values would become part of the string.
func openQuote[T string | []byte](list T) bool {
	open := false
	for i := 0; i < len(list); i++ {
		switch {
		case list[i] == '"':
			open = !open
		case list[i] == '\\' && open:
			i++
		}
	}
	return open
}

// trace is the value of a traceparent header of W3C trace context: version, trace id, parent id, flags.
type trace [55]byte

// id returns the trace id.
func (t *trace) id() []byte { return t[3:35] }

// set continues the trace of a traceparent header, or begins a trace if the header is invalid. It keeps the flags sampled and
// random; the others are not defined yet.
func (t *trace) set(parent string) (begins bool) {
	copy(t[:], "00-")
	begins = !validTraceparent(parent)
	if !begins {
		copy(t[3:], parent[3:35])
		flags := parent[54]
		if flags >= 'a' {
			flags -= 'a' - 10
		}
		t[53], t[54] = '0', '0'+flags&3
	} else {
		putHex(t[3:], nonZero())
		putHex(t[19:], rand.Uint64())
		// Clients record the traces that they begin, unless configured otherwise; the gateway does the same.
		copy(t[53:], "01")
	}
	t[35], t[52] = '-', '-'
	putHex(t[36:], nonZero())
	return begins
}

// validTraceparent reports whether a traceparent header is valid. Headers of later versions may be longer.
func validTraceparent(v string) bool {
	if len(v) < 55 || v[2] != '-' || v[35] != '-' || v[52] != '-' || v[:2] == "ff" {
		return false
	}
	if len(v) > 55 && (v[:2] == "00" || v[55] != '-') {
		return false
	}
	return isHex(v[:2]) && isHex(v[3:35]) && isHex(v[36:52]) && isHex(v[53:55]) && !zeros(v[3:35]) && !zeros(v[36:52])
}

func isHex(v string) bool {
	for _, c := range []byte(v) {
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}

func zeros(v string) bool {
	for _, c := range []byte(v) {
		if c != '0' {
			return false
		}
	}
	return true
}

func nonZero() uint64 { return max(rand.Uint64(), 1) }

// putHex writes v as 16 hexadecimal digits.
func putHex(dst []byte, v uint64) {
	const digits = "0123456789abcdef"
	for i := range 16 {
		dst[i] = digits[v>>(60-4*i)&0xf]
	}
}

// only returns the value of a field, or nil if the head has several fields of the name or none.
func only(head *http1.Head, name string) (value []byte) {
	found := false
	for i := range head.Fields {
		if f := &head.Fields[i]; string(f.Name) == name {
			if found {
				return nil
			}
			value, found = f.Value, true
		}
	}
	return value
}

// appendJoined appends the values of all fields of a name, each followed by a comma. It appends nothing if one of them ends
// within a quoted string.
func appendJoined(dst []byte, head *http1.Head, name string) []byte {
	size := len(dst)
	for i := range head.Fields {
		f := &head.Fields[i]
		if string(f.Name) != name || len(f.Value) == 0 {
			continue
		}
		if openQuote(f.Value) {
			return dst[:size]
		}
		dst = append(dst, f.Value...)
		dst = append(dst, ", "...)
	}
	return dst
}

// joined returns the values of all fields of a name, each followed by a comma, or nil if one of them ends within a quoted
// string.
func joined(header http.Header, name string) (all []byte) {
	for _, value := range header.Values(name) {
		if openQuote(value) {
			return nil
		}
		if value != "" {
			all = append(append(all, value...), ", "...)
		}
	}
	return all
}
