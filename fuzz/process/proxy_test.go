package process

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"time"
)

// weather is how a proxy treats connections.
type weather struct {
	// cutOneIn is how many new connections there are for each that is cut after cutWithin
	// bytes at most, in the middle of whatever it carries. 0: none is.
	cutOneIn int
	// late is the longest that a piece of data waits.
	late time.Duration
}

const (
	pieceBytes = 4 << 10
	cutWithin  = 96 << 10
	maxLinks   = 1024 // connections of a proxy; more are refused (I9)
)

// proxy passes connections on to a target.
type proxy struct {
	listener net.Listener
	target   string

	mu      sync.Mutex
	rng     *rand.Rand         // guarded by mu
	weather weather            // guarded by mu
	links   map[*link]struct{} // guarded by mu
	open    chan struct{}      // guarded by mu; closed while bytes may pass
	closed  bool               // guarded by mu
	running sync.WaitGroup
}

// link is a connection through the proxy.
type link struct {
	near, far *net.TCPConn
	mu        sync.Mutex
	left      int64         // guarded by mu: bytes until it is cut; below 0: no end
	cut       chan struct{} // closed when it is over
	once      sync.Once
}

func newProxy(target string, rng *rand.Rand) (*proxy, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("start proxy: %w", err)
	}
	p := &proxy{listener: l, target: target, rng: rng, links: make(map[*link]struct{}), open: make(chan struct{})}
	close(p.open)
	p.running.Go(p.accept)
	return p, nil
}

func (p *proxy) address() string { return p.listener.Addr().String() }

func (p *proxy) accept() {
	for {
		conn, err := p.listener.Accept()
		if err != nil {
			return // closed
		}
		p.running.Go(func() { p.pass(conn.(*net.TCPConn)) })
	}
}

// pass carries one connection to its end.
func (p *proxy) pass(near *net.TCPConn) {
	far, err := net.DialTimeout("tcp", p.target, 5*time.Second)
	if err != nil {
		reset(near)
		return
	}
	l := &link{near: near, far: far.(*net.TCPConn), cut: make(chan struct{})}
	if !p.add(l) {
		l.end()
		return
	}
	var both sync.WaitGroup
	both.Go(func() { p.pump(l, l.far, l.near) })
	both.Go(func() { p.pump(l, l.near, l.far) })
	both.Wait()
	l.end()
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.links, l)
}

// add decides the fate of a new connection.
func (p *proxy) add(l *link) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || len(p.links) == maxLinks {
		return false
	}
	l.left = -1
	if n := p.weather.cutOneIn; n > 0 && p.rng.IntN(n) == 0 {
		l.left = p.rng.Int64N(cutWithin)
	}
	p.links[l] = struct{}{}
	return true
}

// pump carries one direction.
func (p *proxy) pump(l *link, dst, src *net.TCPConn) {
	buf := make([]byte, pieceBytes)
	for {
		n, err := src.Read(buf)
		if n > 0 && !p.forward(l, dst, buf[:n]) {
			l.end()
			return
		}
		if err == io.EOF {
			_ = dst.CloseWrite()
			return
		}
		if err != nil {
			l.end()
			return
		}
	}
}

// forward sends a piece when it may pass, or the part of it that the connection has left; false
// ends the connection.
func (p *proxy) forward(l *link, dst *net.TCPConn, piece []byte) bool {
	p.mu.Lock()
	open, late := p.open, p.weather.late
	if late > 0 {
		late = time.Duration(p.rng.Int64N(int64(late)))
	}
	p.mu.Unlock()
	select {
	case <-open:
	case <-l.cut:
		return false
	}
	if late > 0 {
		select {
		case <-time.After(late):
		case <-l.cut:
			return false
		}
	}
	whole := len(piece)
	piece = l.take(piece)
	_, err := dst.Write(piece)
	return err == nil && len(piece) == whole
}

// take returns the part of a piece that may still pass.
func (l *link) take(piece []byte) []byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.left < 0 {
		return piece
	}
	piece = piece[:min(int64(len(piece)), l.left)]
	l.left -= int64(len(piece))
	return piece
}

// end cuts a connection: both sides see a reset.
func (l *link) end() {
	l.once.Do(func() {
		close(l.cut)
		reset(l.near)
		reset(l.far)
	})
}

func reset(c *net.TCPConn) {
	_ = c.SetLinger(0) // its errors are those of a connection that is gone
	_ = c.Close()
}

// setWeather changes how connections are treated from now on.
func (p *proxy) setWeather(w weather) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.weather = w
}

// cut ends all connections.
func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.links {
		l.end()
	}
}

// hold lets no byte pass until release. Connections stay.
func (p *proxy) hold() {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.open:
		p.open = make(chan struct{})
	default: // it is held
	}
}

func (p *proxy) release() {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.open:
	default:
		close(p.open)
	}
}

// close ends the proxy and all its connections.
func (p *proxy) close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	_ = p.listener.Close()
	p.cut()
	p.running.Wait()
}
