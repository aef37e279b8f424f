package inspect

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"time"
)

// EachLine calls f with each line of a stream, which ends with a line break, until the end of the stream or an error of f.
func EachLine(stream io.Reader, f func(line []byte) error) error {
	reader := bufio.NewReader(stream)
	for {
		line, err := reader.ReadBytes('\n')
		if len(line) > 0 {
			if line[len(line)-1] != '\n' {
				line = append(line, '\n')
			}
			if err := f(line); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

const (
	// overlap is how much earlier than the last printed line a log is opened again: more than the rounding of sinceSeconds and the delay
	// of a line.
	overlap = 3 * time.Second
	// maxPrinted bounds the lines that are remembered for each instance.
	maxPrinted = 2000
)

// printedLines remembers the latest lines of a log by instance, so that a log that is opened again with an overlap repeats none.
type printedLines struct {
	last  time.Time
	lines map[string][]printedLine
	// skipped are the lines to be skipped by instance, until a line comes that was not printed.
	skipped map[string]map[string]int
}

type printedLine struct {
	text string
	at   time.Time
}

// instanceOf returns the instance of a line, which begins with it in brackets.
func instanceOf(line []byte) string {
	if end := bytes.IndexByte(line, ']'); end > 0 && line[0] == '[' {
		return string(line[:end])
	}
	return ""
}

// add remembers a line that is printed.
func (p *printedLines) add(line []byte, now time.Time) {
	if p.lines == nil {
		p.lines = map[string][]printedLine{}
	}
	p.last = now
	instance := instanceOf(line)
	lines := p.lines[instance]
	if len(lines) == maxPrinted {
		lines = append(lines[:0], lines[maxPrinted/2:]...)
	}
	p.lines[instance] = append(lines, printedLine{string(line), now})
}

// reopen returns how old the lines may be with which the log begins when it is opened again.
func (p *printedLines) reopen(now time.Time) time.Duration {
	p.skipped = map[string]map[string]int{}
	for instance, lines := range p.lines {
		p.skipped[instance] = map[string]int{}
		for _, line := range lines {
			p.skipped[instance][line.text]++
		}
		// Instances without lines for long have ended, or need no overlap.
		if p.last.Sub(lines[len(lines)-1].at) > time.Minute {
			delete(p.lines, instance)
		}
	}
	return now.Sub(p.last) + overlap
}

// repeats reports whether a line was printed before the log was opened again.
func (p *printedLines) repeats(line []byte) bool {
	instance := instanceOf(line)
	skipped := p.skipped[instance]
	if skipped == nil {
		return false
	}
	if skipped[string(line)] == 0 {
		delete(p.skipped, instance)
		return false
	}
	skipped[string(line)]--
	return true
}
