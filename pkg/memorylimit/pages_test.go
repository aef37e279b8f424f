package memorylimit

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// TestUnmapPages maps a file twice. The pages that equal the file leave the resident memory, a changed one is kept.
func TestUnmapPages(t *testing.T) {
	const size = 16 << 20
	path := filepath.Join(t.TempDir(), "pages")
	if err := os.WriteFile(path, bytes.Repeat([]byte("x"), size), 0o600); err != nil {
		t.Fatal(err)
	}
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	mapped := func(protection, flags int) []byte {
		t.Helper()
		pages, err := unix.Mmap(int(file.Fd()), 0, size, protection, flags)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := unix.Munmap(pages); err != nil {
				t.Error(err)
			}
		})
		return pages
	}
	clean := mapped(unix.PROT_READ, unix.MAP_SHARED)
	changed := mapped(unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE)
	changed[size/2] = 'y'
	if err := unix.Mprotect(changed, unix.PROT_READ); err != nil {
		t.Fatal(err)
	}
	if n := bytes.Count(clean, []byte("x")); n != size {
		t.Fatalf("the file has %d bytes", n)
	}
	before := residentFiles(t)
	if err := unmapPages(); err != nil {
		t.Fatal(err)
	}
	if after := residentFiles(t); after > before-size*3/4 {
		t.Errorf("%d bytes of files are resident, and %d were before", after, before)
	}
	if n := bytes.Count(clean, []byte("x")); n != size || changed[size/2] != 'y' {
		t.Errorf("%d bytes equal the file, and the changed one is %q", n, changed[size/2])
	}
}

// residentFiles returns the resident pages of files in bytes.
func residentFiles(t *testing.T) int {
	t.Helper()
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(status), "RssFile:")
	kibibytes, err := strconv.Atoi(strings.Fields(rest)[0])
	if err != nil {
		t.Fatal(err)
	}
	return kibibytes << 10
}

func TestCleanMappings(t *testing.T) {
	const smaps = `00400000-03743000 r-xp 00000000 fe:00 1234                               /usr/bin/program
Rss:               50000 kB
Anonymous:             0 kB
Locked:                0 kB
VmFlags: rd ex mr mw me
03743000-075a7000 r--p 03343000 fe:00 1234                               /usr/bin/relocated
Anonymous:             8 kB
Locked:                0 kB
075a7000-076a9000 rw-p 071a7000 fe:00 1234                               /usr/bin/program
Anonymous:             0 kB
076a9000-09705000 rw-p 00000000 00:00 0
c000000000-c004000000 r--p 00000000 00:00 0                              [anon: Go: heap]
7f0000000000-7f0000010000 r--s 00000000 fe:00 99                         /var/lib/locked
Anonymous:             0 kB
Locked:               64 kB
7f0000010000-7f0000020000 r--s 00000000 fe:00 77                         /var/lib/etcd/db
Anonymous:             0 kB
Locked:                0 kB
7ffc00000000-7ffc00002000 r-xp 00000000 00:00 0                          [vdso]
`
	got, err := cleanMappings(strings.NewReader(smaps))
	want := []mapping{{0x400000, 0x3743000, "/usr/bin/program"}, {0x7f0000010000, 0x7f0000020000, "/var/lib/etcd/db"}}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(mapping{})); diff != "" || err != nil {
		t.Errorf("%v, mappings (-want +got):\n%s", err, diff)
	}
	if _, err := cleanMappings(strings.NewReader("2-1 r--p 0 0:0 1 /file\n")); err == nil {
		t.Error("a range that ends before it begins is accepted")
	}
}
