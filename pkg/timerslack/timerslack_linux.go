// Package timerslack lets the kernel delay timers of the process a little, so that more of them expire together: an idle processor then wakes less often.
//
// The slack of Linux is 50 µs. A thread of the Go runtime sleeps for 20 µs at a time after each activity, and an idle replica has a hundred timers
// of libraries a second. With a millisecond it needs a third less processor time (docs/performance.md).
package timerslack

import (
	"fmt"
	"os"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// slack is the longest delay of a timer while no thread of the process runs. It is much shorter than every timeout and interval of this server.
	slack = time.Millisecond
	// standard is the slack of most processes.
	standard = 50 * time.Microsecond
	// marker is the environment variable of a process that Extend has executed.
	marker = "TIMER_SLACK_EXTENDED"
)

// Extend extends the slack of all threads to a millisecond, unless it is as long. It executes the program again, with the same arguments and process ID:
// threads inherit the slack of the thread that creates them, and the Go runtime has created some. It returns in the new execution, or with an error.
// Call it first in main, because nothing else of the process remains.
func Extend() error {
	if os.Getenv(marker) != "" {
		return os.Unsetenv(marker)
	}
	if has, err := get(); err != nil || has >= slack {
		return err
	}
	program, err := os.Executable()
	if err != nil {
		return err
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := set(slack); err != nil {
		return err
	}
	err = syscall.Exec(program, os.Args, append(os.Environ(), marker+"=true"))
	return fmt.Errorf("execute %s: %w", program, err)
}

// Reset sets the slack of this thread, and so of the processes that it starts, to that of most processes.
func Reset() error { return set(standard) }

// get returns the slack of this thread.
func get() (time.Duration, error) {
	nanoseconds, err := unix.PrctlRetInt(unix.PR_GET_TIMERSLACK, 0, 0, 0, 0)
	return time.Duration(nanoseconds), os.NewSyscallError("prctl", err)
}

// set sets the slack of this thread.
func set(to time.Duration) error {
	return os.NewSyscallError("prctl", unix.Prctl(unix.PR_SET_TIMERSLACK, uintptr(to), 0, 0, 0))
}
