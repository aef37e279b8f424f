package apiserver

import (
	"cmp"
	"fmt"
	"io"
	"net/http"
	"strings"
	"unicode/utf8"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validate/content"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/apiserver/pkg/endpoints/request"
	genericapiserver "k8s.io/apiserver/pkg/server"
)

// refuseMalformed rejects requests that the library would mishandle: namespaces that are not a path segment ('..') would cause
// an internal error of storage, and text that is not valid UTF-8 would be stored as different text.
func refuseMalformed(handler http.Handler, codecs runtime.NegotiatedSerializer) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if info, ok := request.RequestInfoFrom(r.Context()); ok && info.IsResourceRequest && info.Namespace != "" {
			if faults := content.IsPathSegmentName(info.Namespace); len(faults) > 0 {
				refuse(w, r, codecs, info, apierrors.NewBadRequest(fmt.Sprintf("the namespace in the path is invalid: %s", strings.Join(faults, ", "))))
				return
			}
		}
		if r.Body != nil && !toService(r) && isText(r.Header.Get("Content-Type")) {
			r.Body = &utf8Body{ReadCloser: r.Body}
		}
		handler.ServeHTTP(w, r)
	})
}

// refuse answers a request with an error, in a media type that its client accepts.
func refuse(w http.ResponseWriter, r *http.Request, codecs runtime.NegotiatedSerializer, info *request.RequestInfo, err error) {
	responsewriters.ErrorNegotiated(err, codecs, schema.GroupVersion{Group: info.APIGroup, Version: info.APIVersion}, w, r)
}

// account returns the namespace that a request counts for.
func account(info *request.RequestInfo) string { return cmp.Or(info.Namespace, allNamespaces) }

// toService reports whether the body of a request is for a Service.
func toService(r *http.Request) bool {
	info, ok := request.RequestInfoFrom(r.Context())
	return ok && info.IsResourceRequest && info.Subresource == proxySubresource
}

// isText reports whether bodies of a media type are text. The default media type is JSON.
func isText(mediaType string) bool {
	return mediaType == "" || strings.Contains(mediaType, "json") || strings.Contains(mediaType, "yaml")
}

// utf8Body is a request body that must be UTF-8.
type utf8Body struct {
	io.ReadCloser
	// rest is the beginning of a character that is incomplete so far.
	rest []byte
}

// Read returns a Status error if the text is not valid UTF-8.
func (b *utf8Body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	text := p[:n]
	if len(b.rest) > 0 {
		text = append(b.rest, text...)
	}
	whole := text[:len(text)-unfinished(text)]
	b.rest = append([]byte(nil), text[len(whole):]...)
	if !utf8.Valid(whole) || err == io.EOF && len(b.rest) > 0 {
		return n, apierrors.NewBadRequest("the body of the request must be UTF-8 text")
	}
	return n, err
}

// unfinished returns the number of bytes at the end of text that form an incomplete character.
func unfinished(text []byte) int {
	for i := 1; i < utf8.UTFMax && i <= len(text); i++ {
		if end := text[len(text)-i:]; utf8.RuneStart(end[0]) {
			if !utf8.FullRune(end) {
				return i
			}
			break
		}
	}
	return 0
}

// handlerChain adds handlers to the library's chain, between authorization and the resources.
func (c *Config) handlerChain(handler http.Handler, config *genericapiserver.Config) http.Handler {
	memory := memoryLimiter{memory: c.Memory, codecs: c.codecs, maxBody: config.MaxRequestBodyBytes, controllers: c.Controllers}
	calls := callLimiter{reads: c.Reads, writes: c.Writes, codecs: c.codecs, maxBody: config.MaxRequestBodyBytes, controllers: c.Controllers}
	writes := newPrecedence(c.codecs, c.Controllers)
	handler = writes.order(c.wrapEvents(serveCurrentOpenAPI(handler)))
	return genericapiserver.DefaultBuildHandlerChain(refuseMalformed(memory.limit(calls.limit(handler)), c.codecs), config)
}
