package flow

// Cost estimates the processor time of requests and events: one is the cost of a request, or of an event, with a small body.
type Cost int64

// bytesPerCost is the number of bytes that are received and sent in the time of a request with a small body.
const bytesPerCost = 32 << 10

// CostOf returns the cost of requests or events with a number of bytes in all.
func CostOf(count int, bytes int64) Cost { return Cost(count) + Cost(bytes/bytesPerCost) }

// AboveShare reports whether the cost of a tenant is more than an equal share of the sum of the costs of all tenants.
func (c Cost) AboveShare(sum Cost, tenants int) bool { return c*Cost(tenants) > sum }
