package gateway

import (
	"math/rand/v2"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/serving"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/serving/http1"
)

// Names of the header fields that the gateway replaces, in lower case.
const (
	forwardedField      = "forwarded"
	forwardedForField   = "x-forwarded-for"
	forwardedHostField  = "x-forwarded-host"
	forwardedProtoField = "x-forwarded-proto"
	// originalHostField is the requested host name, if it stands for another one.
	originalHostField  = "k-original-host"
	traceparentField   = "traceparent"
	tracestateField    = "tracestate"
	tagField           = "knative-serving-tag"
	authorizationField = "authorization"
	// networkProbeField and kubeletProbeField mark probes of Knative.
	networkProbeField = "k-network-probe"
	kubeletProbeField = "k-kubelet-probe"
	// relayField is the prefix of the fields between replicas.
	relayField = "knative-gateway-"
)

// maxOwnField exceeds the length of the longest field name that passes compares with.
const maxOwnField = 32

// passes reports whether a request's header field is forwarded to the backend unchanged. Fields that the gateway writes and
// internal fields of Knative are not. Applications may not distinguish '_' from '-' (RFC 3875 4.1.18), so neither does passes.
func passes[T string | []byte](name T) bool {
	var buffer [maxOwnField]byte
	own := buffer[:min(len(name), maxOwnField)]
	for i := range own {
		if own[i] = name[i]; own[i] == '_' {
			own[i] = '-'
		}
	}
	if len(own) >= len(relayField) && string(own[:len(relayField)]) == relayField {
		return false
	}
	if len(name) > maxOwnField {
		return true
	}
	switch string(own) {
	case forwardedField, forwardedForField, forwardedHostField, forwardedProtoField, originalHostField, traceparentField,
		networkProbeField, kubeletProbeField, "k-proxy-request", "k-network-hash", "k-passthrough-lb",
		"knative-serving-namespace", "knative-serving-revision", "knative-serving-default-route":
		return false
	}
	return !serving.IsUserField(own)
}

// trace is the value of a traceparent header of W3C trace context: version, trace id, parent id, flags.
type trace [55]byte

// id returns the trace id.
func (t *trace) id() []byte { return t[3:35] }

// set continues the trace of a traceparent header, or begins a trace if the header is invalid. It keeps the flags sampled and
// random; the others are not defined yet.
func (t *trace) set(parent string) (begins bool) { return setTrace(t, parent) }

// setTrace is trace.set for both types of header, without allocating.
func setTrace[T string | []byte](t *trace, parent T) (begins bool) {
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

// sampled reports whether the client records the trace.
func (t *trace) sampled() bool { return t[54]&1 == 1 }

// validTraceparent reports whether a traceparent header is valid. Headers of later versions may be longer.
func validTraceparent[T string | []byte](v T) bool {
	if len(v) < 55 || v[2] != '-' || v[35] != '-' || v[52] != '-' || string(v[:2]) == "ff" {
		return false
	}
	if len(v) > 55 && (string(v[:2]) == "00" || v[55] != '-') {
		return false
	}
	return isHex(v[:2]) && isHex(v[3:35]) && isHex(v[36:52]) && isHex(v[53:55]) && !zeros(v[3:35]) && !zeros(v[36:52])
}

func isHex[T string | []byte](v T) bool {
	for i := range len(v) {
		if c := v[i]; (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}

func zeros[T string | []byte](v T) bool {
	for i := range len(v) {
		if v[i] != '0' {
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
