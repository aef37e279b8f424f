package http1

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/sha256"
	"crypto/tls"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"net"
	"net/http/httptest"
	"strings"
	"syscall"
	"testing"
	"time"
)

// The types of messages and records of TLS 1.3 (RFC 8446 B).
const (
	recordHandshake, recordData = 22, 23
	keyUpdate, updateRequested  = 24, 1
)

// keyUpdater is the client's half of a connection with TLS 1.3, which sends key updates at any time.
type keyUpdater struct {
	net.Conn
	secret   []byte
	sequence uint64
}

// dialKeyUpdater performs a handshake.
func dialKeyUpdater(t *testing.T, address string) *keyUpdater {
	t.Helper()
	// A small window from the start.
	dialer := net.Dialer{Control: func(_, _ string, raw syscall.RawConn) (err error) {
		if fault := raw.Control(func(fd uintptr) {
			err = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVBUF, 4<<10)
		}); fault != nil {
			return fault
		}
		return err
	}}
	conn, err := dialer.DialContext(t.Context(), "tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	var keys bytes.Buffer
	client := tls.Client(conn, &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS13, KeyLogWriter: &keys})
	if err := client.HandshakeContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	if suite := client.ConnectionState().CipherSuite; suite != tls.TLS_AES_128_GCM_SHA256 {
		t.Skipf("this machine negotiates %s", tls.CipherSuiteName(suite))
	}
	for line := range strings.Lines(keys.String()) {
		if fields := strings.Fields(line); fields[0] == "CLIENT_TRAFFIC_SECRET_0" {
			secret, err := hex.DecodeString(fields[2])
			if err != nil {
				t.Fatal(err)
			}
			return &keyUpdater{Conn: conn, secret: secret}
		}
	}
	t.Fatal("the client logged no secret")
	return nil
}

// expand derives a secret (RFC 8446 7.1).
func (k *keyUpdater) expand(label string, length int) ([]byte, error) {
	label = "tls13 " + label
	return hkdf.Expand(sha256.New, k.secret, string([]byte{0, byte(length), byte(len(label))})+label+"\x00", length)
}

// send sends a record.
func (k *keyUpdater) send(kind byte, content ...byte) error {
	key, err := k.expand("key", 16)
	if err != nil {
		return err
	}
	nonce, err := k.expand("iv", 12)
	if err != nil {
		return err
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return err
	}
	sealer, err := cipher.NewGCM(block)
	if err != nil {
		return err
	}
	binary.BigEndian.PutUint64(nonce[4:], binary.BigEndian.Uint64(nonce[4:])^k.sequence)
	k.sequence++
	content = append(content, kind)
	head := []byte{recordData, 3, 3, 0, byte(len(content) + sealer.Overhead())}
	_, err = k.Write(sealer.Seal(bytes.Clone(head), nonce, content, head))
	return err
}

// update updates the keys, and requests an update of the peer's.
func (k *keyUpdater) update() (err error) {
	if err = k.send(recordHandshake, keyUpdate, 0, 0, 1, updateRequested); err != nil {
		return err
	}
	k.secret, err = k.expand("traffic upd", sha256.Size)
	k.sequence = 0
	return err
}

// TestKeyUpdates covers a client that asks for key updates and does not read them: the responses do not keep its
// connection longer than the rest of a head.
func TestKeyUpdates(t *testing.T) {
	other := httptest.NewTLSServer(nil)
	config := &tls.Config{Certificates: other.TLS.Certificates, MinVersion: tls.VersionTLS13}
	other.Close()
	l := listen(t)
	served := make(chan error, 1)
	go func() {
		conn, err := l.Accept()
		if err != nil {
			served <- err
			return
		}
		defer conn.Close()
		if err := conn.(*net.TCPConn).SetWriteBuffer(4 << 10); err != nil {
			served <- err
			return
		}
		secure := NewTLSConn(conn, config)
		if err := secure.HandshakeContext(t.Context()); err != nil {
			served <- fmt.Errorf("handshake: %w", err)
			return
		}
		server := &Server{Handler: newFakeRouter(""), HeaderTimeout: time.Second}
		server.ServeConn(t.Context(), secure)
		served <- nil
	}()
	client := dialKeyUpdater(t, l.Addr().String())
	go func() {
		for range 50000 {
			// Without data between them, TLS itself ends the connection.
			if client.update() != nil || client.send(recordData, 'a') != nil {
				return
			}
		}
	}()
	select {
	case err := <-served:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(time.Minute):
		t.Error("the client keeps the connection")
	}
}
