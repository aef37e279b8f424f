package commit

import (
	"os"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// TestCache counts the message files that were written to recently and still exist.
func TestCache(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "msgs")
		var reported atomic.Int64
		c := cache{dir: dir, report: func(bytes int64) { reported.Add(bytes) }}
		file := func(number int) string { return filepath.Join(dir, strconv.Itoa(number)+blockSuffix) }
		write := func(number, size int) {
			t.Helper()
			if err := os.WriteFile(file(number), make([]byte, size), 0o600); err != nil {
				t.Fatal(err)
			}
			// The file system does not use the clock of the test.
			if err := os.Chtimes(file(number), time.Time{}, time.Now()); err != nil {
				t.Fatal(err)
			}
			c.wrote(size)
		}
		expect := func(want int64, what string) {
			t.Helper()
			synctest.Wait()
			if got := reported.Load(); got != want {
				t.Errorf("%s: %d bytes, want %d", what, got, want)
			}
		}

		c.wrote(cacheStep)
		expect(0, "without a directory")
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		write(1, cacheStep/2)
		<-time.After(cacheTime + time.Second)
		write(2, cacheStep/2+1)
		expect(0, "few bytes within the time")
		write(3, cacheStep)
		expect(cacheStep+cacheStep/2+1, "recent files, not the first")
		write(11, cacheStep)
		expect(2*cacheStep+cacheStep/2+1, "names that do not sort by number")
		if err := os.Remove(file(3)); err != nil {
			t.Fatal(err)
		}
		<-time.After(cacheInterval)
		expect(cacheStep+cacheStep/2+1, "a file whose segments are acknowledged")
		<-time.After(cacheTime)
		expect(0, "some time after the last write")
		write(11, 2*cacheStep)
		expect(2*cacheStep, "written to again")
		if err := os.Remove(file(11)); err != nil {
			t.Fatal(err)
		}
		write(1, cacheStep)
		<-time.After(cacheInterval)
		expect(cacheStep, "a stream that was created again")
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
		<-time.After(cacheInterval)
		expect(0, "a deleted stream")
	})
}
