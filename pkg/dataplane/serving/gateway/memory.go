package gateway

import "net/http"

// How much memory requests are taken to hold, in bytes.
const (
	// requestSize is that of one that fits into buffers of the usual sizes. Such requests are bounded by their number.
	requestSize = 16 << 10
	// standardSize is that of one on the standard path: its goroutines, and the buffers of both connections.
	standardSize = 64 << 10
	// fieldSize is that of a header field beside its name and value, headCopies how often the standard path holds a head.
	fieldSize, headCopies = 64, 4
	// largestRequest is more than any request holds.
	largestRequest = 1 << 20
	// defaultMemory is the limit where there is no Options.Budget.
	defaultMemory = 256 << 20
)

// Hold implements http1.Exchange.
func (x *exchange) Hold(bytes int) bool {
	if !x.gateway.options.Budget.Reserve(x.pool.key.Namespace, int64(bytes)) {
		return false
	}
	x.held += int64(bytes)
	return true
}

// memoryOf returns how much memory a request holds on the standard path.
func memoryOf(r *http.Request) int {
	head := len(r.RequestURI) + len(r.Host)
	for name, values := range r.Header {
		for _, value := range values {
			head += len(name) + len(value) + fieldSize
		}
	}
	return standardSize + headCopies*head
}
