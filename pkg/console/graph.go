package console

import (
	"context"
	"net/http"

	"github.com/knative-apiserver/knative-apiserver/pkg/inspect"
)

// graphPage shows which objects events pass.
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
	return &graphPage{Namespace: namespace, Trees: g.Trees(namespace, false), Incomplete: g.Incomplete}, nil
}
