package memorylimit

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// unmapPages removes the pages of files from the resident memory of this process: of the program, most of which only its start or rare work
// uses, and of etcd's database. The kernel keeps them in its cache while memory is free: using some of them again takes a microsecond then.
func unmapPages() error {
	file, err := os.Open("/proc/self/smaps")
	if err != nil {
		return fmt.Errorf("find the pages of files: %w", err)
	}
	defer file.Close()
	found, err := cleanMappings(file)
	if err != nil {
		return fmt.Errorf("find the pages of files: %w", err)
	}
	for _, m := range found {
		if _, _, fault := unix.Syscall(unix.SYS_MADVISE, m.start, m.end-m.start, unix.MADV_DONTNEED); fault != 0 {
			err = errors.Join(err, fmt.Errorf("unmap pages of %s: %w", m.file, fault))
		}
	}
	return err
}

// mapping is a range of addresses at which a file is mapped.
type mapping struct {
	start, end uintptr
	file       string
}

// cleanMappings returns the mappings of files whose pages can be read from the file again, from the content of /proc/self/smaps: no mapping that
// may be written to, is locked, or has a private copy of a page, such as relocated data.
func cleanMappings(smaps io.Reader) (clean []mapping, err error) {
	var current mapping
	skip := true
	add := func() {
		if !skip {
			clean = append(clean, current)
		}
	}
	scanner := bufio.NewScanner(smaps)
	for scanner.Scan() {
		fields := strings.Fields(scanner.Text())
		if len(fields) < 2 {
			continue
		}
		if !strings.HasSuffix(fields[0], ":") {
			// <start>-<end> <permissions> <offset> <device> <inode> <file>
			add()
			skip = len(fields) < 6 || fields[4] == "0" || strings.Contains(fields[1], "w")
			if current, err = parseMapping(fields); err != nil {
				return nil, err
			}
			continue
		}
		switch fields[0] {
		case "Anonymous:", "Locked:":
			skip = skip || fields[1] != "0"
		}
	}
	add()
	return clean, scanner.Err()
}

// parseMapping returns the range and the file of the first line of a mapping.
func parseMapping(fields []string) (m mapping, err error) {
	from, to, found := strings.Cut(fields[0], "-")
	start, invalid := strconv.ParseUint(from, 16, strconv.IntSize)
	end, alsoInvalid := strconv.ParseUint(to, 16, strconv.IntSize)
	if !found || invalid != nil || alsoInvalid != nil || end < start {
		return m, fmt.Errorf("%.40q is not a range of addresses", fields[0])
	}
	return mapping{start: uintptr(start), end: uintptr(end), file: fields[len(fields)-1]}, nil
}
