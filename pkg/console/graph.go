package console

import (
	"context"
	"net/http"
	"time"

	"github.com/knative-apiserver/knative-apiserver/pkg/inspect"
)

// graphPage shows which objects events pass, and how many.
type graphPage struct {
	Namespace string
	// Trees have a tree for each Broker and Channel, and each Service that no event reaches.
	Trees []*inspect.Node
	// Incomplete lists what the user may not read.
	Incomplete []string
}

// graph loads the page of the flow of events.
func (c *Console) graph(ctx context.Context, r *http.Request) (any, error) {
	namespace := r.PathValue("namespace")
	g, err := inspect.ReadGraph(ctx, c.knative, namespace)
	if err != nil {
		return nil, err
	}
	p := &graphPage{Namespace: namespace, Trees: g.Trees(namespace, false), Incomplete: g.Incomplete}
	rates, missing := c.samples.rates(ctx, namespace, c.read)
	if missing != "" {
		p.Incomplete = append(p.Incomplete, missing)
	}
	if rates != nil {
		for _, tree := range p.Trees {
			measure(tree, rates)
		}
	}
	return p, nil
}

// measure adds rates to the lines of Brokers, Channels, their consumers and Services. Brokers and Channels that are destinations have lines of their own.
func measure(n *inspect.Node, rates *inspect.Interval) {
	if o := n.Object; o != nil {
		switch o.Kind {
		case "Broker", "Channel", "Trigger", "Subscription":
			if rates.From.HasEvents() && rates.To.HasEvents() {
				n.Text += " · " + rates.Events(o.Kind, o.Namespace, o.Name).String()
			}
		case "Service":
			load := rates.Requests(o.Namespace, o.Name)
			if load.RequestsPerSecond == nil {
				break
			}
			n.Text += " · " + inspect.Number(*load.RequestsPerSecond) + " requests/s"
			if *load.FailuresPerSecond > 0 {
				n.Text += ", " + inspect.Number(*load.FailuresPerSecond) + " failures/s"
			}
		}
	}
	for _, child := range n.Children {
		if !child.Reference || child.Object.Kind == "Service" {
			measure(child, rates)
		}
	}
}

// read reads the metrics of a namespace. missing is why some are missing; without any, there is no sample.
func (c *Console) read(ctx context.Context, namespace string) (sample *inspect.Sample, missing string) {
	sample = inspect.NewSample(time.Now())
	services, events := sample.ReadServices(ctx, c.knative, namespace), sample.ReadEvents(ctx, c.knative, namespace)
	for _, err := range []error{services, events} {
		if err != nil {
			missing = "rates: " + explain(err)
		}
	}
	if services != nil && events != nil {
		return nil, missing
	}
	return sample, missing
}
