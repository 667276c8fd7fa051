package server

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// authority makes certificates.
type authority struct {
	t    testing.TB
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte
}

func newAuthority(t testing.TB, name string) *authority {
	a := &authority{t: t}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	var err error
	a.key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	der, err := x509.CreateCertificate(rand.Reader, template, template, &a.key.PublicKey, a.key)
	require.NoError(t, err)
	a.cert, err = x509.ParseCertificate(der)
	require.NoError(t, err)
	a.pem = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	return a
}

// issue returns a certificate for 127.0.0.1 that ends then, and its key.
func (a *authority) issue(serial int64, ends time.Time) (cert, key []byte) {
	template := &x509.Certificate{
		SerialNumber: big.NewInt(serial), NotBefore: time.Now().Add(-2 * time.Hour), NotAfter: ends, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(a.t, err)
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, &private.PublicKey, a.key)
	require.NoError(a.t, err)
	pkcs8, err := x509.MarshalPKCS8PrivateKey(private)
	require.NoError(a.t, err)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8})
}

func (a *authority) pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	return pool
}

// certFiles are the files of a server's TLS.
type certFiles struct {
	TLSFiles
	ca   *authority
	ends time.Time
}

func newCertFiles(t testing.TB) *certFiles {
	folder := t.TempDir()
	f := &certFiles{ca: newAuthority(t, "servers"), ends: time.Now().Add(time.Hour).Truncate(time.Second)}
	f.Cert, f.Key = filepath.Join(folder, "tls.crt"), filepath.Join(folder, "tls.key")
	f.renew(1, f.ends)
	return f
}

// renew puts another certificate in place.
func (f *certFiles) renew(serial int64, ends time.Time) {
	cert, key := f.ca.issue(serial, ends)
	require.NoError(f.ca.t, os.WriteFile(f.Cert, cert, 0o600))
	require.NoError(f.ca.t, os.WriteFile(f.Key, key, 0o600))
}

func (f *certFiles) open() *TLS {
	opened, err := f.Open()
	require.NoError(f.ca.t, err)
	return opened
}

// newTLSClient speaks one protocol over TLS.
func newTLSClient(t testing.TB, c *tls.Config, http2 bool) *http.Client {
	p := new(http.Protocols)
	p.SetHTTP1(!http2)
	p.SetHTTP2(http2)
	tr := &http.Transport{Protocols: p, DisableCompression: true, TLSClientConfig: c}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr}
}

// overTLS makes a server that startWith runs speak TLS, and returns how to make the clients.
func overTLS(t testing.TB, o *Options) func(*running, bool) *running {
	f := newCertFiles(t)
	o.Front = NewFront(FrontOptions{TLS: f.open()})
	return func(r *running, http2 bool) *running {
		r.url = "https" + r.url[len("http"):]
		r.client = newTLSClient(t, &tls.Config{RootCAs: f.ca.pool()}, http2)
		return r
	}
}

// overAll runs a test over HTTP/1.1 and HTTP/2, in the clear and over TLS. run starts the server and
// makes the client.
func overAll(t *testing.T, f func(t *testing.T, run func(Options, func(*Server)) *running)) {
	overBoth(t, func(t *testing.T, http2 bool) {
		f(t, func(o Options, change func(*Server)) *running { return startWith(t, o, change).speak(http2) })
	})
	for _, http2 := range []bool{false, true} {
		name := map[bool]string{false: "HTTP1 over TLS", true: "HTTP2 over TLS"}[http2]
		t.Run(name, func(t *testing.T) {
			f(t, func(o Options, change func(*Server)) *running {
				speak := overTLS(t, &o)
				return speak(startWith(t, o, change), http2)
			})
		})
	}
}

func TestTLS(t *testing.T) {
	var o Options
	speak := overTLS(t, &o)
	r := start(t, o)
	plain := r.url
	for _, http2 := range []bool{false, true} {
		speak(r, http2)
		got := r.post(appendPath, `{"records":[{"key":"aw","value":"dg"}]}`)
		require.Equal(t, 200, got.status)
		require.Equal(t, http2, got.proto == 2)
		r.url = plain
	}
	// In the clear there is nothing.
	r.elsewhere = true
	got := r.speak(false).get("/-/healthy")
	require.Equal(t, 400, got.status)
	require.Contains(t, got.body, "HTTPS")
	_, err := newClient(t, true).Get(plain + "/-/healthy")
	require.Error(t, err)
	// Nor in old versions.
	_, err = tls.Dial("tcp", plain[len("http://"):], &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11})
	require.ErrorContains(t, err, "protocol version")
}

func TestClientCertificates(t *testing.T) {
	f := newCertFiles(t)
	clients, others := newAuthority(t, "clients"), newAuthority(t, "others")
	f.ClientCA = filepath.Join(t.TempDir(), "ca.crt")
	require.NoError(t, os.WriteFile(f.ClientCA, clients.pem, 0o600))
	opened := f.open()
	r := start(t, Options{Front: NewFront(FrontOptions{TLS: opened})})
	url := "https" + r.url[len("http"):] + "/-/healthy"
	get := func(a *authority) error {
		c := &tls.Config{RootCAs: f.ca.pool()}
		if a != nil {
			pair, err := tls.X509KeyPair(a.issue(5, time.Now().Add(time.Hour)))
			require.NoError(t, err)
			// Whatever authorities the server asks for: else the client would not show it.
			c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair, nil }
		}
		resp, err := newTLSClient(t, c, true).Get(url)
		if err == nil {
			require.Equal(t, 200, resp.StatusCode)
			_ = resp.Body.Close()
		}
		return err
	}
	require.NoError(t, get(clients))
	require.Error(t, get(nil)) // "certificate required", if it arrives before the connection is closed
	require.Error(t, get(others))
	require.NoError(t, os.WriteFile(f.ClientCA, others.pem, 0o600))
	opened.Reload(slog.New(slog.DiscardHandler))
	require.NoError(t, get(others))
	require.Error(t, get(clients), "the authority was replaced")
}

// A client whose session is resumed has shown its certificate to authorities that may be gone.
func TestSessionsWithClientCertificatesAreNotResumed(t *testing.T) {
	f := newCertFiles(t)
	clients := newAuthority(t, "clients")
	f.ClientCA = filepath.Join(t.TempDir(), "ca.crt")
	require.NoError(t, os.WriteFile(f.ClientCA, clients.pem, 0o600))
	pair, err := tls.X509KeyPair(clients.issue(5, time.Now().Add(time.Hour)))
	require.NoError(t, err)
	for _, wantsCert := range []bool{true, false} {
		if !wantsCert {
			f.ClientCA = ""
		}
		r := start(t, Options{Front: NewFront(FrontOptions{TLS: f.open()})})
		c := &tls.Config{RootCAs: f.ca.pool(), Certificates: []tls.Certificate{pair}, ClientSessionCache: tls.NewLRUClientSessionCache(1)}
		var resumed bool
		for range 2 {
			client := newTLSClient(t, c, false)
			resp, err := client.Get("https" + r.url[len("http"):] + "/-/healthy")
			require.NoError(t, err)
			_, _ = io.Copy(io.Discard, resp.Body)
			_ = resp.Body.Close()
			resumed = resp.TLS.DidResume
			client.CloseIdleConnections()
		}
		require.Equal(t, !wantsCert, resumed)
	}
}

func TestCertificatesAreReplaced(t *testing.T) {
	f := newCertFiles(t)
	opened := f.open()
	r := start(t, Options{Front: NewFront(FrontOptions{TLS: opened})})
	serial := func() int64 {
		conn, err := tls.Dial("tcp", r.url[len("http://"):], &tls.Config{RootCAs: f.ca.pool()})
		require.NoError(t, err)
		defer conn.Close()
		return conn.ConnectionState().PeerCertificates[0].SerialNumber.Int64()
	}
	discard := slog.New(slog.DiscardHandler)
	require.EqualValues(t, 1, serial())
	require.Equal(t, f.ends.Unix(), opened.Expires().Unix())
	f.renew(2, f.ends.Add(time.Hour))
	opened.Reload(discard)
	require.EqualValues(t, 2, serial())
	require.Equal(t, f.ends.Add(time.Hour).Unix(), opened.Expires().Unix())

	for name, spoil := range map[string]func(){
		"it has ended":   func() { f.renew(3, time.Now().Add(-time.Minute)) },
		"not a key":      func() { require.NoError(t, os.WriteFile(f.Key, []byte("x"), 0o600)) },
		"another's key":  func() { _, key := f.ca.issue(4, f.ends); require.NoError(t, os.WriteFile(f.Key, key, 0o600)) },
		"no certificate": func() { require.NoError(t, os.WriteFile(f.Cert, nil, 0o600)) },
		"not there":      func() { require.NoError(t, os.Remove(f.Cert)) },
		"half a chain":   func() { appendTo(t, f.Cert, f.ca.pem[:len(f.ca.pem)/2]) },
	} {
		f.renew(9, f.ends)
		spoil()
		opened.Reload(discard)
		require.True(t, opened.ReloadFailing(), name)
		require.EqualValues(t, 2, serial(), name)
	}
	f.renew(5, f.ends)
	opened.Reload(discard)
	require.False(t, opened.ReloadFailing())
	require.EqualValues(t, 5, serial())
}

func appendTo(t *testing.T, name string, text []byte) {
	old, err := os.ReadFile(name)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(name, append(old, text...), 0o600))
}

// Authorities of which one is half written or damaged are not taken up without it: its clients would be locked out.
func TestAuthoritiesAreTakenUpWhole(t *testing.T) {
	f := newCertFiles(t)
	f.ClientCA = f.Cert + ".clients"
	both := []*authority{newAuthority(t, "one"), newAuthority(t, "two")}
	one, two := both[0].pem, both[1].pem
	whole := append([]byte("of tenants:\n"), append(one, two...)...)
	require.NoError(t, os.WriteFile(f.ClientCA, whole, 0o600))
	opened := f.open()
	inForce := opened.current.Load()
	pool := both[0].pool()
	pool.AddCert(both[1].cert)
	require.True(t, inForce.ClientCAs.Equal(pool))
	damaged := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte("damaged")})
	for name, text := range map[string][]byte{"half": whole[:len(whole)-len(two)/2], "none of the second": whole[:len(whole)-len(two)+30], "damaged": append(one, damaged...)} {
		require.NoError(t, os.WriteFile(f.ClientCA, text, 0o600))
		opened.Reload(slog.New(slog.DiscardHandler))
		require.True(t, opened.ReloadFailing(), name)
		require.Same(t, inForce, opened.current.Load(), name)
	}
}

func TestTLSFilesTellAllFaults(t *testing.T) {
	f := newCertFiles(t)
	f.ClientCA = f.Key // holds no certificate
	f.renew(3, time.Now().Add(-time.Minute))
	_, err := f.Open()
	require.ErrorContains(t, err, "the certificate ended at")
	require.ErrorContains(t, err, "there is no certificate in it")
	f.Cert = "/nowhere/a" // hides nothing of the others
	_, err = f.Open()
	require.EqualError(t, err, "Cert: open /nowhere/a: no such file or directory\nClientCA: "+f.Key+": there is no certificate in it")
	f.Cert, f.Key, f.ClientCA = "/nowhere/a", "/nowhere/b", "/nowhere/c"
	_, err = f.Open()
	for _, name := range []string{f.Cert, f.Key, f.ClientCA} {
		require.ErrorContains(t, err, name)
	}
}

// A connection that says nothing is closed, in the middle of a handshake too.
func TestHandshakesThatHangEnd(t *testing.T) {
	front := NewFront(FrontOptions{TLS: newCertFiles(t).open()})
	front.http.ReadHeaderTimeout = 10 * time.Millisecond
	r := start(t, Options{Front: front})
	conn, err := net.Dial("tcp", r.url[len("http://"):])
	require.NoError(t, err)
	defer conn.Close()
	_, err = conn.Write([]byte{0x16, 0x03, 0x01}) // the first bytes of a hello
	require.NoError(t, err)
	_, err = io.ReadAll(conn)
	require.NoError(t, err, "it is closed")
	require.Eventually(t, func() bool { return front.conns.open.Load() == 0 }, patience, time.Millisecond)
	require.NoError(t, r.Shutdown(context.Background()))
}
