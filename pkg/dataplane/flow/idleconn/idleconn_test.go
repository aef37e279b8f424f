package idleconn

import (
	"net"
	"testing"
)

// connect returns both ends of a TCP connection.
func connect(t *testing.T) (near, far net.Conn) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	near, err = net.Dial("tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	far, err = listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { near.Close(); far.Close() })
	return near, far
}

// arrived blocks until the connection is readable, without reading.
func arrived(t *testing.T, conn net.Conn) {
	t.Helper()
	raw, err := conn.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	c := NewChecker(conn)
	if err := raw.Read(func(fd uintptr) bool { c.pollRead(fd); return c.readable }); err != nil {
		t.Fatal(err)
	}
}

func TestUnusable(t *testing.T) {
	for name, test := range map[string]struct {
		change func(near, far net.Conn)
		want   bool
	}{
		"open":               {func(net.Conn, net.Conn) {}, false},
		"closed by the peer": {func(near, far net.Conn) { far.Close(); arrived(t, near) }, true},
		"unsolicited data":   {func(near, far net.Conn) { far.Write([]byte("x")); arrived(t, near) }, true}, //nolint:errcheck // arrives or times out
		"closed here":        {func(near, _ net.Conn) { near.Close() }, true},
	} {
		t.Run(name, func(t *testing.T) {
			near, far := connect(t)
			checker := NewChecker(near)
			test.change(near, far)
			if got := checker.Unusable(); got != test.want {
				t.Errorf("unusable is %v, want %v", got, test.want)
			}
		})
	}
	near, _ := connect(t)
	checker := NewChecker(near)
	if n := testing.AllocsPerRun(100, func() { checker.Unusable() }); n != 0 {
		t.Errorf("a check allocates %v times", n)
	}
}

func TestReset(t *testing.T) {
	for name, reads := range map[string]bool{"unread": false, "read": true} {
		t.Run(name, func(t *testing.T) {
			near, far := connect(t)
			if _, err := near.Write([]byte("x")); err != nil {
				t.Fatal(err)
			}
			arrived(t, far)
			if reads {
				if _, err := far.Read(make([]byte, 1)); err != nil {
					t.Fatal(err)
				}
			}
			far.Close()
			arrived(t, near)
			if got := NewChecker(near).Reset(); got != !reads {
				t.Errorf("reset is %v, want %v", got, !reads)
			}
		})
	}
}

func TestWithoutDescriptor(t *testing.T) {
	near, far := net.Pipe()
	defer near.Close()
	far.Close()
	if checker := NewChecker(near); checker.Unusable() || checker.Reset() {
		t.Error("a pipe has no descriptor to check")
	}
}
