package broker

import "time"

// spare is how long a goroutine without work waits for some.
const spare = 2 * time.Second

// workers run functions on goroutines that are used again: each has a stack by then that is large enough, and growing
// one costs a good part of what an attempt does.
type workers struct {
	waiting chan func()
	// ended tells those that wait that there will be no more.
	ended <-chan struct{}
	// writing bounds the large writes under way.
	writing chan struct{}
}

const (
	// maxWriting is the number of writes of more than largeWrite bytes that are made at a time.
	maxWriting, largeWrite = 8, 64 << 10
)

// heavy waits until a write of so many bytes may be made, and returns what ends it.
func (w workers) heavy(bytes int) (done func()) {
	if bytes <= largeWrite {
		return func() {}
	}
	w.writing <- struct{}{}
	return func() { <-w.writing }
}

func newWorkers(ended <-chan struct{}) workers {
	return workers{make(chan func()), ended, make(chan struct{}, maxWriting)}
}

// run runs a function concurrently.
func (w workers) run(do func()) {
	select {
	case w.waiting <- do:
	default:
		go w.work(do)
	}
}

func (w workers) work(do func()) {
	timer := time.NewTimer(spare)
	defer timer.Stop()
	for {
		do()
		timer.Reset(spare)
		select {
		case do = <-w.waiting:
		case <-timer.C:
			return
		case <-w.ended:
			return
		}
	}
}
