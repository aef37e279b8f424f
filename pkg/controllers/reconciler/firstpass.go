package reconciler

import (
	"sync"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
)

// firstPass follows the keys that were enqueued before workers began, until each has been reconciled once. A key
// that is reconciled again meanwhile, because that failed, does not stand for another one.
type firstPass struct {
	// mu guards what follows.
	mu     sync.Mutex
	unseen sets.Set[types.NamespacedName]
	begun  bool
	over   chan struct{}
}

func newFirstPass() *firstPass {
	return &firstPass{unseen: sets.New[types.NamespacedName](), over: make(chan struct{})}
}

// enqueued notes a key, unless workers have begun.
func (p *firstPass) enqueued(key types.NamespacedName) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.begun {
		p.unseen.Insert(key)
	}
}

// begin tells that workers begin.
func (p *firstPass) begin() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.begun = true
	if p.unseen.Len() == 0 {
		close(p.over)
	}
}

// reconciled notes that a key has been reconciled.
func (p *firstPass) reconciled(key types.NamespacedName) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.unseen.Has(key) {
		return
	}
	if p.unseen.Delete(key); p.unseen.Len() == 0 {
		close(p.over)
	}
}
