package proxy

import (
	"strings"
	"testing"
)

// TestFrames covers the end of frames of a WebSocket, regardless of the pieces in which their bytes arrive (RFC 6455 5.2).
func TestFrames(t *testing.T) {
	for name, frame := range map[string]string{
		"empty": "\x81\x00", "short": "\x81\x02hi", "masked": "\x81\x82maskhi", "masked without payload": "\x89\x80mask",
		"16 bits": "\x81\x7e\x01\x00" + strings.Repeat("x", 256), "64 bits": "\x81\x7f\x00\x00\x00\x00\x00\x01\x00\x00" + strings.Repeat("x", 1<<16),
		"masked, 16 bits": "\x81\xfe\x00\x80mask" + strings.Repeat("x", 128),
	} {
		for _, size := range []int{1, 3, 1 << 20} {
			var f frames
			all := strings.Repeat(frame, 3)
			for at := 0; at < len(all); {
				n := min(size, len(all)-at)
				f.feed([]byte(all[at : at+n]))
				at += n
				if want := at%len(frame) == 0; f.between() != want {
					t.Fatalf("%s, in pieces of %d: between frames after %d bytes is %v, want %v", name, size, at, !want, want)
				}
			}
		}
	}
}
