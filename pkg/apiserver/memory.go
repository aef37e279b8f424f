package apiserver

import (
	"net/http"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/knative-apiserver/knative-apiserver/pkg/identity"
)

// Memory bounds the memory that requests hold, in the process and for each namespace.
type Memory interface {
	// Reserve adds bytes to the bytes that a namespace holds. It returns false without adding any if a limit would be exceeded.
	Reserve(namespace string, bytes int64) bool
	// Release subtracts bytes that were reserved.
	Release(namespace string, bytes int64)
}

const (
	// objectWeight is the number of times that an object is in memory while it is written: as text, decoded, with its managed fields,
	// and encoded for etcd and for the response.
	objectWeight = 8
	// streamBytes is the memory of a watch, a followed log, a tail or a request to a Service whose client does not read: goroutines, buffers of its connection, and
	// an event that is being written. The events themselves are shared by all watches, and a slow watch is closed.
	streamBytes = 64 << 10
	// listBytes is the memory of a list that is being sent: an item, and the buffers that encode, compress and send it. The objects are
	// shared with the watch cache.
	listBytes = 1 << 20
	// madeListBytes is the memory of a list that is not in the watch cache, such as 2 MiB of dead letters: as read, as objects, and encoded.
	madeListBytes = 16 << 20
	// allNamespaces is the account of requests without a namespace.
	allNamespaces = "*"
	// retrySeconds is the value of Retry-After of a call that is refused because of its namespace's other calls.
	retrySeconds = 1
)

// memoryLimiter answers a request 429 if its namespace holds too much memory. The controllers are exempt: no user can act in their
// name.
type memoryLimiter struct {
	memory Memory
	codecs runtime.NegotiatedSerializer
	// maxBody is the maximum size of a body in bytes.
	maxBody     int64
	controllers identity.Controllers
}

// limit returns a handler that reserves memory for requests before handler serves them. Without a Memory it returns handler.
func (l *memoryLimiter) limit(handler http.Handler) http.Handler {
	if l.memory == nil {
		return handler
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		info, ok := request.RequestInfoFrom(r.Context())
		if !ok || !info.IsResourceRequest || l.controllers.Made(r.Context()) {
			handler.ServeHTTP(w, r)
			return
		}
		namespace, bytes := account(info), l.bytes(r, info)
		if !l.memory.Reserve(namespace, bytes) {
			refuse(w, r, l.codecs, info, apierrors.NewTooManyRequests("the requests of the namespace hold too much memory", retrySeconds))
			return
		}
		defer l.memory.Release(namespace, bytes)
		handler.ServeHTTP(w, r)
	})
}

// bytes returns the memory that a request may hold, except for the response to a read of one object.
func (l *memoryLimiter) bytes(r *http.Request, info *request.RequestInfo) int64 {
	switch {
	case info.Verb == "watch" || slices.Contains([]string{logSubresource, proxySubresource, tailSubresource}, info.Subresource):
		return streamBytes
	case info.Verb == "list" && slices.Contains([]string{"deadletters", "eventmetrics", "servicemetrics"}, info.Resource):
		return madeListBytes
	case info.Verb == "list":
		return listBytes
	case r.ContentLength < 0:
		return objectWeight * l.maxBody
	}
	// A longer body is refused.
	return objectWeight * min(r.ContentLength, l.maxBody)
}
