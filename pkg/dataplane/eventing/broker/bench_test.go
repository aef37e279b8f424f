package broker

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/event"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/sender"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/trace"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
)

// BenchmarkDeliver measures the cost of an event from its acceptance to the end of its deliveries, without log and network.
func BenchmarkDeliver(b *testing.B) {
	for _, test := range []struct {
		consumers int
		traced    bool
	}{{1, false}, {1, true}, {10, false}, {10, true}} {
		consumers := test.consumers
		b.Run(fmt.Sprintf("consumers=%d,traced=%t", consumers, test.traced), func(b *testing.B) {
			var store *trace.Store
			if test.traced {
				var err error
				if store, err = trace.Open(trace.Options{Dir: b.TempDir(), Clock: clock.RealClock{}, Logger: logr.Discard()}); err != nil {
					b.Fatal(err)
				}
				defer store.Close()
			}
			var delivered atomic.Int64
			done := make(chan struct{}, 1)
			ctx := klog.NewContext(b.Context(), logr.Discard())
			engine := New(ctx, Options{
				Log: newFakeLog().open(), Clock: clock.RealClock{},
				Addresses:     func(key eventing.Key) []string { return []string{"http://broker/" + key.Name} },
				Exists:        func(types.UID) bool { return true },
				HealthChanged: func(eventing.Key) {}, Trace: store,
				Send: func(context.Context, *event.Event, eventing.Endpoint, sender.Attempt) sender.Result {
					if delivered.Add(1)%int64(consumers) == 0 {
						done <- struct{}{}
					}
					return sender.Result{Code: 202}
				},
			})
			defer engine.Stop(0)
			if err := engine.SetStream(ctx, eventing.Stream{Key: brokerKey, UID: types.UID(brokerKey.Name)}); err != nil {
				b.Fatal(err)
			}
			for i := range consumers {
				if err := engine.SetConsumer(ctx, trigger(fmt.Sprint("t", i))); err != nil {
					b.Fatal(err)
				}
			}
			if err := engine.Start(ctx); err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			for b.Loop() {
				if err := engine.Accept(ctx, brokerKey, []*event.Event{newEvent("1")}); err != nil {
					b.Fatal(err)
				}
				<-done
			}
		})
	}
}
