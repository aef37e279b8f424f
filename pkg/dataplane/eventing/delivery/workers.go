package delivery

import "time"

const (
	// idleTimeout is the time after which an idle worker ends.
	idleTimeout = 2 * time.Second
	// maxWriting is the number of concurrent appends of more than largeWrite bytes.
	maxWriting, largeWrite = 8, 64 << 10
)

// Workers run functions on reused goroutines: these have large stacks already, and growing one is a considerable part of the
// cost of an attempt.
type Workers struct {
	waiting chan func()
	// ended is closed when no more functions follow.
	ended <-chan struct{}
	// writing bounds the large appends in progress.
	writing chan struct{}
}

// NewWorkers returns Workers whose idle goroutines end when ended is closed.
func NewWorkers(ended <-chan struct{}) *Workers {
	return &Workers{make(chan func()), ended, make(chan struct{}, maxWriting)}
}

// limitWrite waits until an append of so many bytes may be made. done ends it.
func (w *Workers) limitWrite(bytes int) (done func()) {
	if bytes <= largeWrite {
		return func() {}
	}
	w.writing <- struct{}{}
	return func() { <-w.writing }
}

// run runs a function concurrently.
func (w *Workers) run(do func()) {
	select {
	case w.waiting <- do:
	default:
		go w.work(do)
	}
}

func (w *Workers) work(do func()) {
	timer := time.NewTimer(idleTimeout)
	defer timer.Stop()
	for {
		do()
		timer.Reset(idleTimeout)
		select {
		case do = <-w.waiting:
		case <-timer.C:
			return
		case <-w.ended:
			return
		}
	}
}
