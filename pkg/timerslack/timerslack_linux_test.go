package timerslack

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// childVariable makes the test binary the process that TestExtend starts.
const childVariable = "TIMERSLACK_TEST_CHILD"

func TestMain(m *testing.M) {
	if os.Getenv(childVariable) != "" {
		if err := printExtended(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// printExtended extends the slack and prints the process ID, the arguments, the marker and the slack of each thread, if the kernel discloses it.
func printExtended() error {
	if err := Extend(); err != nil {
		return err
	}
	fmt.Println(os.Getpid(), os.Args[1:], os.Getenv(marker) == "")
	threads, err := filepath.Glob("/proc/self/task/*")
	if err != nil {
		return err
	}
	for _, thread := range threads {
		// Another thread's is only disclosed to privileged processes.
		if has, err := os.ReadFile(filepath.Join("/proc", filepath.Base(thread), "timerslack_ns")); err == nil {
			fmt.Print(string(has))
		}
	}
	return nil
}

func TestExtend(t *testing.T) {
	t.Parallel()
	child := exec.CommandContext(t.Context(), os.Args[0], "one", "", "two words")
	child.Env = append(os.Environ(), childVariable+"=true")
	out, err := child.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	first, slacks, _ := strings.Cut(string(out), "\n")
	if want := fmt.Sprintf("%d [one  two words] true", child.Process.Pid); first != want {
		t.Errorf("the process ID, the arguments and the absence of the marker are %q, want %q", first, want)
	}
	threads := strings.Fields(slacks)
	for _, has := range threads {
		if has != "1000000" {
			t.Errorf("the slack of a thread is %s ns", has)
		}
	}
	if len(threads) == 0 {
		t.Error("no thread disclosed its slack")
	}
}
