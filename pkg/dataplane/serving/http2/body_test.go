package http2

import (
	"bytes"
	"math/rand/v2"
	"testing"
)

// TestBody compares a body with a buffer, while it is appended to and read from.
func TestBody(t *testing.T) {
	var b body
	var want []byte
	most := 0
	for range 10_000 {
		switch n := rand.IntN(maxFrame + 1); rand.IntN(10) {
		case 0, 1, 2, 3:
			if n%2 == 0 {
				// Many small frames.
				n %= 100
			}
			data := make([]byte, n)
			for i := range data {
				data[i] = byte(rand.Uint32())
			}
			b.append(data)
			want = append(want, data...)
		case 4:
			if b.begun > 0 {
				continue
			}
			if part := b.next(); part != nil {
				if !bytes.HasPrefix(want, *part) {
					t.Fatal("a part differs")
				}
				want = want[len(*part):]
				keepPart(part)
			}
		case 5:
			if n > 300 {
				continue
			}
			if discarded := b.discard(); discarded != len(want) {
				t.Fatalf("%d bytes were discarded, want %d", discarded, len(want))
			}
			want = nil
		default:
			got := make([]byte, n)
			got = got[:b.read(got)]
			if len(got) != min(n, len(want)) || !bytes.HasPrefix(want, got) {
				t.Fatalf("%d of %d bytes were read, or differ", len(got), n)
			}
			want = want[len(got):]
		}
		if b.size != len(want) {
			t.Fatalf("the size is %d, want %d", b.size, len(want))
		}
		most = max(most, len(b.parts)-b.head)
		if len(b.parts) > 2*most+2 {
			t.Fatalf("%d parts for at most %d at a time", len(b.parts), most)
		}
	}
}
