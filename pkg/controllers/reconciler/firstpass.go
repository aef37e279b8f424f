package reconciler

import (
	"sync"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
)

// firstPass tracks the keys that were enqueued before the workers started, until each has been reconciled once, with or without an
// error.
type firstPass struct {
	// mu guards the fields below.
	mu     sync.Mutex
	unseen sets.Set[types.NamespacedName]
	begun  bool
	over   chan struct{}
}

func newFirstPass() *firstPass {
	return &firstPass{unseen: sets.New[types.NamespacedName](), over: make(chan struct{})}
}

// enqueued records a key, unless the workers have started.
func (p *firstPass) enqueued(key types.NamespacedName) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.begun {
		p.unseen.Insert(key)
	}
}

// begin records that the workers start.
func (p *firstPass) begin() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.begun = true
	if p.unseen.Len() == 0 {
		close(p.over)
	}
}

// reconciled records that a key has been reconciled.
func (p *firstPass) reconciled(key types.NamespacedName) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.unseen.Has(key) {
		return
	}
	if p.unseen.Delete(key); p.unseen.Len() == 0 {
		// The set would keep the memory of its largest size.
		p.unseen = nil
		close(p.over)
	}
}
