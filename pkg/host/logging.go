package host

import (
	"context"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"
)

// bodyLevel is the level from which on clients of Kubernetes APIs log the bodies of requests and responses.
const bodyLevel = 8

// WithoutBodies returns a context in which clients log no bodies, at any level of --v: they have tokens, keys and passwords.
func WithoutBodies(ctx context.Context) context.Context {
	logger := klog.FromContext(ctx)
	return klog.NewContext(ctx, logger.WithSink(limitedSink{logger.GetSink()}))
}

// limitedSink drops messages of bodyLevel and above.
type limitedSink struct{ logr.LogSink }

// Enabled implements logr.LogSink.
func (s limitedSink) Enabled(level int) bool { return level < bodyLevel && s.LogSink.Enabled(level) }

// WithValues implements logr.LogSink.
func (s limitedSink) WithValues(keysAndValues ...any) logr.LogSink {
	return limitedSink{s.LogSink.WithValues(keysAndValues...)}
}

// WithName implements logr.LogSink.
func (s limitedSink) WithName(name string) logr.LogSink { return limitedSink{s.LogSink.WithName(name)} }

// WithCallDepth implements logr.CallDepthLogSink.
func (s limitedSink) WithCallDepth(depth int) logr.LogSink {
	if inner, ok := s.LogSink.(logr.CallDepthLogSink); ok {
		return limitedSink{inner.WithCallDepth(depth)}
	}
	return s
}
