// Command otelcol runs the OTLP receiver of the OpenTelemetry Collector for tests, until its input ends. When it listens it prints an empty JSON
// object, and then what it receives: each request in a line of OTLP/JSON.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"sync"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/confmap"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/ptrace"
	"go.opentelemetry.io/collector/receiver"
	"go.opentelemetry.io/collector/receiver/otlpreceiver"
)

func main() {
	grpc := flag.String("grpc", "127.0.0.1:4317", "Address of OTLP/gRPC.")
	http := flag.String("http", "127.0.0.1:4318", "Address of OTLP/HTTP.")
	flag.Parse()
	if err := run(context.Background(), *grpc, *http); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, grpc, http string) error {
	factory := otlpreceiver.NewFactory()
	config := factory.CreateDefaultConfig()
	endpoints := confmap.NewFromStringMap(map[string]any{"protocols": map[string]any{
		"grpc": map[string]any{"endpoint": grpc},
		"http": map[string]any{"endpoint": http},
	}})
	if err := endpoints.Unmarshal(config); err != nil {
		return err
	}
	settings := receiver.Settings{ID: component.NewID(factory.Type()), TelemetrySettings: componenttest.NewNopTelemetrySettings()}
	var out printer
	traces, err := consumer.NewTraces(func(_ context.Context, received ptrace.Traces) error {
		return out.print((&ptrace.JSONMarshaler{}).MarshalTraces(received))
	})
	if err != nil {
		return err
	}
	metrics, err := consumer.NewMetrics(func(_ context.Context, received pmetric.Metrics) error {
		return out.print((&pmetric.JSONMarshaler{}).MarshalMetrics(received))
	})
	if err != nil {
		return err
	}
	// Both are the same receiver, which starts once.
	forTraces, err := factory.CreateTraces(ctx, settings, config, traces)
	if err != nil {
		return err
	}
	if _, err := factory.CreateMetrics(ctx, settings, config, metrics); err != nil {
		return err
	}
	if err := forTraces.Start(ctx, componenttest.NewNopHost()); err != nil {
		return err
	}
	if err := out.print([]byte("{}"), nil); err != nil {
		return err
	}
	if _, err := io.Copy(io.Discard, os.Stdin); err != nil {
		return err
	}
	return forTraces.Shutdown(ctx)
}

// printer writes lines to the standard output.
type printer struct {
	mu sync.Mutex
}

func (p *printer) print(line []byte, err error) error {
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	_, err = fmt.Printf("%s\n", line)
	return err
}
