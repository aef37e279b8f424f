package apiserver

import (
	"context"
	"net/http"
	goruntime "runtime"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/knative-apiserver/knative-apiserver/pkg/identity"
)

const (
	// maxWriteTurn is the time after which a write that is still served no longer counts: it waits for something else than a processor, such as
	// a webhook.
	maxWriteTurn = time.Second
	// lull is the time without a user's write after which users write no more: a client needs a moment between two writes.
	lull = 20 * time.Millisecond
)

// precedence serves the writes of users before the controllers' writes: while users write, at most beside writes of the controllers are
// served at a time. Without it, users that create many objects wait for the controllers, which write nine times for each Service; with a
// limit at all times the controllers would write more slowly, because etcd syncs writes together.
type precedence struct {
	codecs      runtime.NegotiatedSerializer
	controllers identity.Controllers
	beside      int

	// mu guards the fields below.
	mu sync.Mutex
	// users and own are the writes of users and of the controllers that are served.
	users, own int
	// busy is true while users write, until lull has ended.
	busy bool
	lull *time.Timer
	// waiting has a channel for each write of the controllers that waits, which is closed when it may be served.
	waiting []chan struct{}
}

func newPrecedence(codecs runtime.NegotiatedSerializer, controllers identity.Controllers) *precedence {
	p := &precedence{codecs: codecs, controllers: controllers, beside: max(4, 2*goruntime.GOMAXPROCS(0))}
	p.lull = time.AfterFunc(lull, p.pause)
	return p
}

// order returns a handler that serves writes by handler in that order, and everything else at once.
func (p *precedence) order(handler http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		info, ok := request.RequestInfoFrom(r.Context())
		if !ok || !info.IsResourceRequest || longRunning(r, info) || isRead(info) {
			handler.ServeHTTP(w, r)
			return
		}
		end := p.endUser
		if !p.controllers.Made(r.Context()) {
			p.beginUser()
		} else if end = p.endOwn; p.wait(r.Context()) != nil {
			refuse(w, r, p.codecs, info, apierrors.NewTooManyRequests("the writes of users are served first", retrySeconds))
			return
		}
		end = sync.OnceFunc(end)
		defer time.AfterFunc(maxWriteTurn, end).Stop()
		defer end()
		handler.ServeHTTP(w, r)
	})
}

// beginUser counts a write of a user.
func (p *precedence) beginUser() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.users++
	p.busy = true
}

// endUser stops counting a write of a user.
func (p *precedence) endUser() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.users--; p.users == 0 {
		p.lull.Reset(lull)
	}
}

// pause lets the controllers write without limit, unless users write.
func (p *precedence) pause() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.busy = p.users > 0
	p.grantLocked()
}

// wait waits until a write of the controllers may be served, and counts it. The error is the error of ctx.
func (p *precedence) wait(ctx context.Context) error {
	turn := make(chan struct{})
	p.mu.Lock()
	p.waiting = append(p.waiting, turn)
	p.grantLocked()
	p.mu.Unlock()
	select {
	case <-turn:
		return nil
	case <-ctx.Done():
	}
	p.mu.Lock()
	i := slices.Index(p.waiting, turn)
	if i >= 0 {
		p.waiting = slices.Delete(p.waiting, i, i+1)
	}
	p.mu.Unlock()
	if i < 0 {
		p.endOwn()
	}
	return ctx.Err()
}

// endOwn stops counting a write of the controllers.
func (p *precedence) endOwn() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.own--
	p.grantLocked()
}

// grantLocked lets waiting writes be served as long as there may be more. mu is held.
func (p *precedence) grantLocked() {
	n := 0
	for n < len(p.waiting) && (!p.busy || p.own < p.beside) {
		p.own++
		close(p.waiting[n])
		n++
	}
	p.waiting = slices.Delete(p.waiting, 0, n)
}
