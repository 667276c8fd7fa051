package process

import (
	"io"
	"math/rand/v2"
	"net"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// proxied returns a connection by way of a proxy to a server that sends back all it gets.
func proxied(t *testing.T, w weather) (*proxy, net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				_, _ = io.Copy(conn, conn)
			}()
		}
	}()
	p, err := newProxy(l.Addr().String(), rand.New(rand.NewPCG(1, 1)))
	require.NoError(t, err)
	p.setWeather(w)
	t.Cleanup(p.close)
	conn, err := net.Dial("tcp", p.address())
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return p, conn
}

// echo sends a text and wants it back.
func echo(t *testing.T, conn net.Conn, text string) {
	t.Helper()
	_, err := io.WriteString(conn, text)
	require.NoError(t, err)
	comesBack(t, conn, text)
}

func comesBack(t *testing.T, conn net.Conn, text string) {
	t.Helper()
	got := make([]byte, len(text))
	_, err := io.ReadFull(conn, got)
	require.NoError(t, err)
	require.Equal(t, text, string(got))
}

func TestProxyHoldsAndCuts(t *testing.T) {
	p, conn := proxied(t, weather{late: time.Millisecond})
	echo(t, conn, "passes")

	p.hold()
	_, err := io.WriteString(conn, "held")
	require.NoError(t, err)
	require.NoError(t, conn.SetReadDeadline(time.Now().Add(20*time.Millisecond)))
	_, err = conn.Read(make([]byte, 1))
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	require.NoError(t, conn.SetReadDeadline(time.Time{}))
	p.release()
	comesBack(t, conn, "held")

	p.cut()
	_, err = conn.Read(make([]byte, 1))
	require.Error(t, err)
	require.NotErrorIs(t, err, io.EOF, "it is a reset, not an end")
	again, err := net.Dial("tcp", p.address())
	require.NoError(t, err)
	defer again.Close()
	echo(t, again, "a new connection works")

	p.hold()
	p.close() // does not wait for what is held
	_, err = net.DialTimeout("tcp", p.address(), time.Second)
	require.Error(t, err)
}

// What ends properly, ends so on the other side.
func TestProxyEnds(t *testing.T) {
	_, conn := proxied(t, weather{})
	_, err := io.WriteString(conn, "all")
	require.NoError(t, err)
	require.NoError(t, conn.(*net.TCPConn).CloseWrite())
	got, err := io.ReadAll(conn)
	require.NoError(t, err)
	require.Equal(t, "all", string(got))
}

// In bad weather a connection ends in the middle of what it carries.
func TestProxyCutsWithin(t *testing.T) {
	_, conn := proxied(t, weather{cutOneIn: 1})
	go func() {
		_, _ = conn.Write(make([]byte, 4*cutWithin)) // until it is cut
	}()
	n, err := io.Copy(io.Discard, conn)
	require.Error(t, err)
	require.Less(t, n, int64(cutWithin))
}
