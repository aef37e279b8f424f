// Command trackedfiles fails if git tracks a file that does not belong in the history of a source tree: one over 2 MiB, or
// an executable binary. It checks the index of the repository in the working directory, and reports every such file.
package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
)

// maxSize is the size of the largest file that may be tracked, in bytes.
const maxSize = 2 << 20

// headSize is the number of bytes that distinguish a binary from text, as in git.
const headSize = 8000

// magics begin executables, shared libraries, object files and archives of them, by format.
var magics = []struct{ magic, format string }{
	{"\x7fELF", "ELF"},
	{"MZ", "PE"},
	{"\xfe\xed\xfa\xce", "Mach-O"},
	{"\xfe\xed\xfa\xcf", "Mach-O"},
	{"\xce\xfa\xed\xfe", "Mach-O"},
	{"\xcf\xfa\xed\xfe", "Mach-O"},
	{"\xca\xfe\xba\xbe", "Mach-O or Java class"},
	{"\x00asm", "WebAssembly"},
	{"!<arch>\n", "ar archive"},
}

func main() {
	faults, err := check(context.Background(), ".")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	for _, fault := range faults {
		fmt.Fprintln(os.Stderr, fault)
	}
	if len(faults) > 0 {
		os.Exit(1)
	}
}

// check returns a message for each file in the index of the repository at dir that must not be tracked.
func check(ctx context.Context, dir string) ([]string, error) {
	list := exec.CommandContext(ctx, "git", "ls-files", "--stage", "-z")
	list.Dir, list.Stderr = dir, os.Stderr
	entries, err := list.Output()
	if err != nil {
		return nil, fmt.Errorf("list tracked files: %w", err)
	}
	read := exec.CommandContext(ctx, "git", "cat-file", "--batch")
	read.Dir, read.Stderr = dir, os.Stderr
	stdin, err := read.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("read tracked files: %w", err)
	}
	stdout, err := read.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("read tracked files: %w", err)
	}
	if err := read.Start(); err != nil {
		return nil, fmt.Errorf("read tracked files: %w", err)
	}
	blobs := bufio.NewReader(stdout)
	var faults []string
	for entry := range strings.SplitSeq(strings.TrimSuffix(string(entries), "\x00"), "\x00") {
		// An entry reads "<mode> <object> <stage>\t<path>". Mode 160000 is a commit of a submodule, which has no contents here.
		description, path, found := strings.Cut(entry, "\t")
		fields := strings.Fields(description)
		if !found || len(fields) != 3 || fields[0] == "160000" {
			continue
		}
		if _, err := fmt.Fprintln(stdin, fields[1]); err != nil {
			return nil, fmt.Errorf("read %s: %w", path, err)
		}
		size, head, err := next(blobs)
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", path, err)
		}
		if size > maxSize {
			faults = append(faults, fmt.Sprintf("%s: %d bytes are tracked, the limit is %d: remove the file from the index, and ignore it if a build makes it", path, size, maxSize))
		}
		if format := executable(fields[0], head); format != "" {
			faults = append(faults, fmt.Sprintf("%s: an executable binary (%s) is tracked: remove it from the index, and ignore it", path, format))
		}
	}
	if err := stdin.Close(); err != nil {
		return nil, fmt.Errorf("read tracked files: %w", err)
	}
	if err := read.Wait(); err != nil {
		return nil, fmt.Errorf("read tracked files: %w", err)
	}
	return faults, nil
}

// next reads one object from the output of git cat-file --batch, and returns its size and its first bytes.
func next(blobs *bufio.Reader) (size int64, head []byte, err error) {
	header, err := blobs.ReadString('\n')
	if err != nil {
		return 0, nil, err
	}
	var object, kind string
	if _, err := fmt.Sscanf(header, "%s %s %d", &object, &kind, &size); err != nil {
		return 0, nil, fmt.Errorf("unexpected object %q: %w", strings.TrimSpace(header), err)
	}
	head = make([]byte, min(size, headSize))
	if _, err := io.ReadFull(blobs, head); err != nil {
		return 0, nil, err
	}
	// A newline ends the contents.
	_, err = io.CopyN(io.Discard, blobs, size-int64(len(head))+1)
	return size, head, err
}

// executable returns the format of an executable binary, or "" for other files. mode is the mode of the file in the index.
func executable(mode string, head []byte) string {
	binary := bytes.IndexByte(head, 0) >= 0
	for _, m := range magics {
		if bytes.HasPrefix(head, []byte(m.magic)) && (binary || m.format == "ar archive") {
			return m.format
		}
	}
	if mode == "100755" && binary {
		return "unknown format"
	}
	return ""
}
