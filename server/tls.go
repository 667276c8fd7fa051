package server

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/annalsdb/annals/internal/reload"
)

// TLSFiles name what a server's TLS is made of, in PEM form.
type TLSFiles struct {
	Cert string // the certificate, and those between it and its authority
	Key  string // its private key
	// ClientCA holds the authorities of clients: each client then needs a certificate of one of them.
	// "": clients need none.
	ClientCA string
}

// TLS is the TLS of a server, of files that may be replaced at any time. Methods may be called from any
// goroutine.
type TLS struct {
	files   *reload.Files
	current atomic.Pointer[tls.Config]
	expires atomic.Int64 // Unix time
}

// Open reads the files. Errors: all that is wrong with them.
func (f TLSFiles) Open() (*TLS, error) {
	names := []string{f.Cert, f.Key}
	if f.ClientCA != "" {
		names = append(names, f.ClientCA)
	}
	t := new(TLS)
	var err error
	t.files, err = reload.Open("certificate", names, func(contents [][]byte) error { return t.use(f, contents) })
	if err != nil {
		return nil, err
	}
	return t, nil
}

// use puts what is in the files in force, if all of it is right.
func (t *TLS) use(f TLSFiles, contents [][]byte) error {
	c := &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"}}
	var errs []error
	var expires time.Time
	pair, err := tls.X509KeyPair(contents[0], contents[1])
	if err != nil {
		errs = append(errs, fmt.Errorf("%s and %s: %w", f.Cert, f.Key, err))
	} else if _, err := certificatesIn(contents[0]); err != nil { // of the chain, too
		errs = append(errs, fmt.Errorf("%s: %w", f.Cert, err))
	} else {
		c.Certificates = []tls.Certificate{pair}
		if expires = pair.Leaf.NotAfter; !time.Now().Before(expires) {
			errs = append(errs, fmt.Errorf("%s: the certificate ended at %s", f.Cert, expires.UTC().Format(time.RFC3339)))
		}
	}
	if len(contents) > 2 {
		c.ClientAuth, c.ClientCAs = tls.RequireAndVerifyClientCert, x509.NewCertPool()
		// A session is not resumed past a change of the authorities.
		c.SessionTicketsDisabled = true
		authorities, err := certificatesIn(contents[2])
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", f.ClientCA, err))
		}
		for _, one := range authorities {
			c.ClientCAs.AddCert(one)
		}
	}
	if len(errs) > 0 {
		return errors.Join(errs...)
	}
	t.current.Store(c)
	t.expires.Store(expires.Unix())
	return nil
}

// certificatesIn returns all certificates of a PEM file. What is half written or damaged is an error, where crypto/x509 and
// encoding/pem leave it out: whoever it vouches for would be locked out in silence.
func certificatesIn(text []byte) (list []*x509.Certificate, err error) {
	begun := bytes.Count(append([]byte("\n"), text...), []byte("\n-----BEGIN "))
	blocks := 0
	for {
		var block *pem.Block
		if block, text = pem.Decode(text); block == nil {
			break
		}
		blocks++
		if block.Type != "CERTIFICATE" {
			continue // a key may be there too
		}
		one, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("certificate %d: %w", len(list)+1, err)
		}
		list = append(list, one)
	}
	switch {
	case blocks != begun:
		return nil, fmt.Errorf("%d PEM blocks begin in it and %d are whole: it is damaged, or not all of it is written", begun, blocks)
	case len(list) == 0:
		return nil, errors.New("there is no certificate in it")
	}
	return list, nil
}

// Config is for FrontOptions.TLS, or any other server: each new connection gets what is in force then. TLS 1.2
// and 1.3; HTTP/2 and HTTP/1.1.
func (t *TLS) Config() *tls.Config {
	return &tls.Config{
		MinVersion:         tls.VersionTLS12,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return t.current.Load(), nil },
	}
}

// Watch takes changes of the files up, within four seconds, until ctx ends. Files that are not right change
// nothing, and that is logged. Connections that there are stay as they are.
func (t *TLS) Watch(ctx context.Context, log *slog.Logger) { t.files.Watch(ctx, log) }

// Reload takes the files up at once.
func (t *TLS) Reload(log *slog.Logger) { t.files.Reload(log) }

// Expires is when the certificate in force ends.
func (t *TLS) Expires() time.Time { return time.Unix(t.expires.Load(), 0) }

// ReloadFailing reports whether the files as they are now were refused, so that older ones are in force.
func (t *TLS) ReloadFailing() bool { return t.files.Failing() }
