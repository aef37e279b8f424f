package spawn

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/knative-apiserver/knative-apiserver/pkg/timerslack"
)

// slackVariable marks the process in which TestTimerSlack starts a program.
const slackVariable = "SPAWN_TEST_SLACK"

// TestTimerSlack checks that the timers of programs are as precise as usual although all threads of the server delay theirs.
func TestTimerSlack(t *testing.T) {
	if os.Getenv(slackVariable) != "" {
		if err := timerslack.Extend(); err != nil {
			t.Fatal(err)
		}
		startWithSlack(t)
		return
	}
	server := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestTimerSlack$")
	server.Env = append(os.Environ(), slackVariable+"=true")
	if out, err := server.CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}

// startWithSlack starts a program that prints its slack.
func startWithSlack(t *testing.T) {
	t.Helper()
	out, err := os.Create(filepath.Join(t.TempDir(), "out"))
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	spawner := New(func(int) func() { return func() {} })
	defer spawner.Close()
	program, err := spawner.Start(&Command{Argv: []string{"/bin/cat", "/proc/self/timerslack_ns"}, Env: []string{"A=b"}, Stdout: out, Stderr: out})
	if err != nil {
		t.Fatal(err)
	}
	<-program.Done()
	if printed, err := os.ReadFile(out.Name()); err != nil || string(printed) != "50000\n" {
		t.Errorf("the slack of the program is %q, %v", printed, err)
	}
}
