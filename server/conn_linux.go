package server

import (
	"crypto/tls"
	"net"

	"golang.org/x/sys/unix"
)

// dropUnacknowledged makes the system drop a connection when what was sent is not
// acknowledged for userTimeout: a peer whose host is gone would otherwise keep a stream for a
// quarter of an hour, for it sends nothing that could fail. And it bounds what lies unsent in the system's buffer,
// so that a write that gets on is a client that does.
func dropUnacknowledged(c net.Conn) {
	if t, ok := c.(*tls.Conn); ok {
		c = t.NetConn()
	}
	tcp, ok := c.(*net.TCPConn)
	if !ok {
		return
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return // it is closed
	}
	_ = raw.Control(func(fd uintptr) {
		// Without these all works, but for longer, or with more in the system's buffers than in ours.
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(userTimeout.Milliseconds()))
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, writePiece)
	})
}
