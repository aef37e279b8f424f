package gateway

import (
	"net/http"
	"net/netip"
	"strings"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/serving/http1"
)

// The fields in which proxies describe their client are kept from trusted proxies, and this hop is appended. From all other peers they
// are replaced. Requests between replicas keep what the first gateway wrote.

// identify determines whether the peer is a trusted proxy and whether the client uses HTTPS, for redirects and forwarding alike.
func (c *chain) identify(in *inbound) {
	in.https = in.tls
	if in.trusted = c.trusts(in.peer.Addr()); !in.trusted {
		return
	}
	elements := forwardedElements{chain: c}
	proto := ""
	if in.head != nil {
		in.forwardedValid = elements.parseHead(in.head)
		proto = string(in.head.Get(forwardedProtoField))
	} else {
		in.forwardedValid = elements.parseHeader(in.request.Header)
		proto = in.request.Header.Get(forwardedProtoField)
	}
	// The first scheme of a list belongs to the proxy next to the client.
	proto, _, _ = strings.Cut(proto, ",")
	if https, known := schemeOf(strings.Trim(proto, " \t")); known {
		in.https = https
	} else if in.forwardedValid && elements.known {
		in.https = elements.https
	}
}

// trusts reports whether an address belongs to a trusted proxy.
func (c *chain) trusts(peer netip.Addr) bool {
	for _, prefix := range c.options.TrustedProxies {
		if prefix.Contains(peer.WithZone("")) {
			return true
		}
	}
	return false
}

// schemeOf returns the scheme that a proxy names, also for WebSocket. known is false for other names.
func schemeOf(name string) (https, known bool) {
	switch {
	case strings.EqualFold(name, "https") || strings.EqualFold(name, "wss"):
		return true, true
	case strings.EqualFold(name, "http") || strings.EqualFold(name, "ws"):
		return false, true
	}
	return false, false
}

func schemeName(https bool) string {
	if https {
		return "https"
	}
	return "http"
}

// forwardedElements finds the scheme of the client in the elements of Forwarded headers: in the last element for a node that is not a
// trusted proxy, or else in the first element. Elements before that may be forged.
type forwardedElements struct {
	chain        *chain
	begun        bool
	https, known bool
}

func (e *forwardedElements) add(node, proto string) {
	if !e.begun || !e.chain.trusts(nodeAddress(node)) {
		e.https, e.known = schemeOf(proto)
	}
	e.begun = true
}

// parseHead parses all Forwarded headers of a request, and reports whether they are valid.
func (e *forwardedElements) parseHead(head *http1.Head) bool {
	for i := range head.Fields {
		if f := &head.Fields[i]; string(f.Name) == forwardedField && !parseForwarded(string(f.Value), e.add) {
			return false
		}
	}
	return true
}

// parseHeader is like parseHead.
func (e *forwardedElements) parseHeader(header http.Header) bool {
	for _, value := range header.Values(forwardedField) {
		if !parseForwarded(value, e.add) {
			return false
		}
	}
	return true
}

// nodeAddress returns the address of a node (RFC 7239 6) such as 10.0.0.1, 10.0.0.1:80, [::1] or [::1]:80, and the zero value for others.
func nodeAddress(node string) netip.Addr {
	if address, err := netip.ParseAddrPort(node); err == nil {
		return address.Addr().Unmap()
	}
	if inner, ok := strings.CutPrefix(node, "["); ok {
		node = strings.TrimSuffix(inner, "]")
	}
	address, err := netip.ParseAddr(node)
	if err != nil {
		return netip.Addr{}
	}
	return address.Unmap()
}

// parseForwarded parses the value of a Forwarded header (RFC 7239 4), and reports whether it is valid. It calls add with the parameters
// "for" and "proto" of each element, without quotes; a value with escapes is passed as it is. White space around semicolons is accepted.
func parseForwarded(list string, add func(node, proto string)) bool {
	for rest := list; ; rest = rest[1:] {
		element, tail, ok := parseElement(rest)
		if !ok {
			return false
		}
		if element != (forwardedElement{}) {
			add(element.value("for"), element.value("proto"))
		}
		if tail == "" {
			return true
		}
		if tail[0] != ',' {
			return false
		}
		rest = tail
	}
}

// forwardedElement has the values of the registered parameters, in the order of forwardedParameters, and the number of others.
type forwardedElement struct {
	values [len(forwardedParameters)]string
	set    [len(forwardedParameters)]bool
	others int
}

var forwardedParameters = [...]string{"for", "proto", "by", "host"}

func (e *forwardedElement) value(name string) string {
	for i, parameter := range forwardedParameters {
		if parameter == name {
			return e.values[i]
		}
	}
	return ""
}

// put adds a parameter, and reports whether it is the first of its name.
func (e *forwardedElement) put(name, value string) bool {
	for i, parameter := range forwardedParameters {
		if strings.EqualFold(name, parameter) {
			first := !e.set[i]
			e.values[i], e.set[i] = value, true
			return first
		}
	}
	e.others++
	return true
}

// parseElement parses the element that s starts with, which may be empty, and returns the rest after it.
func parseElement(s string) (e forwardedElement, rest string, ok bool) {
	for s = trimStart(s); ; s = trimStart(s[1:]) {
		if name := s[:tokenLength(s)]; name != "" {
			s = s[len(name):]
			if s == "" || s[0] != '=' {
				return e, "", false
			}
			value := ""
			if value, s, ok = parseValue(s[1:]); !ok || !e.put(name, value) {
				return e, "", false
			}
			s = trimStart(s)
		}
		if s == "" || s[0] != ';' {
			return e, s, true
		}
	}
}

// parseValue parses the token or quoted string that s starts with.
func parseValue(s string) (value, rest string, ok bool) {
	if s == "" || s[0] != '"' {
		n := tokenLength(s)
		return s[:n], s[n:], n > 0
	}
	for i := 1; i < len(s); i++ {
		switch s[i] {
		case '"':
			return s[1:i], s[i+1:], true
		case '\\':
			i++
		}
	}
	return "", "", false
}

func trimStart(s string) string { return strings.TrimLeft(s, " \t") }

// tokenLength returns the length of the token that s starts with (RFC 9110 5.6.2).
func tokenLength(s string) int {
	for i := range len(s) {
		c := s[i]
		if c <= ' ' || c >= 0x7f || strings.IndexByte(`"(),/:;<=>?@[\]{}`, c) >= 0 {
			return i
		}
	}
	return len(s)
}

// appendForwarded appends this hop's element of the Forwarded header (RFC 7239).
func appendForwarded[T string | []byte](dst []byte, peer netip.Addr, host T, tls bool) []byte {
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
	dst = append(dst, `";proto=`...)
	return append(dst, schemeName(tls)...)
}

// appendJoined appends the values of all fields of a name, each followed by a comma.
func appendJoined(dst []byte, head *http1.Head, name string) []byte {
	for i := range head.Fields {
		if f := &head.Fields[i]; string(f.Name) == name && len(f.Value) > 0 {
			dst = append(append(dst, f.Value...), ", "...)
		}
	}
	return dst
}

// joined returns the values of all fields of a name, each followed by a comma.
func joined(header http.Header, name string) (all []byte) {
	for _, value := range header.Values(name) {
		if value != "" {
			all = append(append(all, value...), ", "...)
		}
	}
	return all
}

// appendForwardedFields appends the fields of this hop on the fast path.
func (in *inbound) appendForwardedFields(dst []byte) []byte {
	head := in.head
	dst = append(dst, "X-Forwarded-For: "...)
	if in.trusted {
		dst = appendJoined(dst, head, forwardedForField)
	}
	dst = in.appendPeer(dst)
	dst = append(dst, "\r\nX-Forwarded-Host: "...)
	host := head.Host
	if in.trusted {
		if kept := only(head, forwardedHostField); len(kept) > 0 {
			host = kept
		}
	}
	dst = append(dst, host...)
	dst = append(dst, "\r\nX-Forwarded-Proto: "...)
	dst = append(dst, schemeName(in.https)...)
	dst = append(dst, "\r\nForwarded: "...)
	if in.trusted && in.forwardedValid {
		dst = appendJoined(dst, head, forwardedField)
	}
	return appendForwarded(dst, in.peer.Addr(), head.Host, in.tls)
}

// setForwardedFields sets the fields of this hop on the standard path.
func (in *inbound) setForwardedFields(header http.Header) {
	from := in.request.Header
	var chain, elements []byte
	host := in.request.Host
	if in.trusted {
		chain = joined(from, forwardedForField)
		if kept := from.Values(forwardedHostField); len(kept) == 1 && kept[0] != "" {
			host = kept[0]
		}
		if in.forwardedValid {
			elements = joined(from, forwardedField)
		}
	}
	forwarded := string(appendForwarded(elements, in.peer.Addr(), in.request.Host, in.tls))
	values := []string{string(in.appendPeer(chain)), host, schemeName(in.https), forwarded}
	header["X-Forwarded-For"], header["X-Forwarded-Host"] = values[0:1:1], values[1:2:2]
	header["X-Forwarded-Proto"], header["Forwarded"] = values[2:3:3], values[3:4:4]
}

func (in *inbound) appendPeer(dst []byte) []byte {
	if !in.peer.IsValid() {
		return append(dst, "unknown"...)
	}
	return in.peer.Addr().WithZone("").AppendTo(dst)
}
