package server

import (
	"net"
	"net/http"
	"sync/atomic"
)

// connections bounds the connections of a front (invariant I9). Safe for concurrent use.
type connections struct {
	limit    int64
	open     atomic.Int64
	refused  atomic.Uint64
	refusals *boundedLog
}

// changed is told of each connection by net/http: that it is new before the next one is accepted.
func (c *connections) changed(_ net.Conn, state http.ConnState) {
	switch state {
	case http.StateNew:
		c.open.Add(1)
	case http.StateClosed, http.StateHijacked:
		c.open.Add(-1)
	}
}

// boundedListener closes connections beyond the limit.
type boundedListener struct {
	net.Listener
	conns *connections
}

// Accept returns the next connection that is not too many.
func (l *boundedListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil || l.conns.open.Load() < l.conns.limit {
			return conn, err
		}
		l.conns.refused.Add(1)
		l.conns.refusals.write("remote", conn.RemoteAddr().String(), "limit", l.conns.limit)
		if tcp, ok := conn.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0) // or the system would remember each for a minute
		}
		_ = conn.Close()
	}
}
