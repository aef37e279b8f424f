package plugin

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

var (
	answersBlock = regexp.MustCompile("(?s)```sh\n(.*?)\n```")
	// endless finds commands that continue until they are interrupted.
	endless  = regexp.MustCompile(` (-f|--follow|-w|--watch|console|tail)\b`)
	anything = regexp.MustCompile(`\S`)
)

// TestAnswers runs the commands of docs/answers.md as they stand there, against the objects that the page describes. Each question has one
// command, which must succeed with output.
func TestAnswers(t *testing.T) {
	root, err := harness.Root()
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(filepath.Join(root, "docs", "answers.md"))
	if err != nil {
		t.Fatal(err)
	}
	shared.shop(t, "answers")
	kubectl := harness.NewPlugin(t, shared.kubeconfig(t, "answers"), "")
	questions := 0
	for _, part := range strings.Split("\n"+string(page), "\n## ")[1:] {
		question, answer, _ := strings.Cut(part, "\n")
		if !strings.HasSuffix(question, "?") {
			continue
		}
		questions++
		t.Run(question, func(t *testing.T) {
			blocks := answersBlock.FindAllStringSubmatch(answer, -1)
			if len(blocks) != 1 || strings.Contains(blocks[0][1], "\n") {
				t.Fatalf("the answer must have one command, not %d blocks:\n%s", len(blocks), answer)
			}
			command := blocks[0][1]
			process := kubectl.Shell(t, command)
			if _, err := process.WaitForOutput(anything); err != nil {
				t.Fatal(err)
			}
			if endless.MatchString(command) {
				if err := process.Stop(); err != nil {
					t.Fatal(err)
				}
			}
			if code, err := process.ExitCode(); err != nil || code != 0 {
				t.Errorf("%s: exit code %d, %v\n%s", command, code, err, process.Log())
			}
		})
	}
	if questions == 0 {
		t.Error("the page has no questions")
	}
}
