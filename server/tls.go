package server

import (
	"bytes"
	"cmp"
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

// The names of a TLSFiles' fields, with which errors begin.
const certField, keyField, clientCAField = "Cert", "Key", "ClientCA"

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

// names returns those of the files that there are: certificate, key, authorities of clients.
func (f TLSFiles) names() []string {
	if f.ClientCA == "" {
		return []string{f.Cert, f.Key}
	}
	return []string{f.Cert, f.Key, f.ClientCA}
}

// Open reads the files. Errors: all that is wrong with them, joined. Each begins with the field that names the
// file and a colon: "Cert: ", "Key: ", "Cert and Key: ", "ClientCA: ".
func (f TLSFiles) Open() (*TLS, error) {
	t := new(TLS)
	var err error
	t.files, err = reload.Open("certificate", f.names(), func(contents [][]byte) error { return t.use(f, contents) })
	if err != nil {
		return nil, cmp.Or(f.faults(), err) // err: they are right by now
	}
	return t, nil
}

// faults returns all that is wrong with the files: one that cannot be read hides nothing of the others.
func (f TLSFiles) faults() error {
	var errs []error
	contents := make([][]byte, len(f.names()))
	for i, name := range f.names() {
		var err error
		if contents[i], err = reload.ReadFile(name); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", [...]string{certField, keyField, clientCAField}[i], err))
			contents[i] = nil
		}
	}
	_, err := f.config(contents)
	return errors.Join(append(errs, err)...)
}

// use puts what is in the files in force, if all of it is right.
func (t *TLS) use(f TLSFiles, contents [][]byte) error {
	c, err := f.config(contents)
	if err != nil {
		return err
	}
	t.current.Store(c)
	t.expires.Store(c.Certificates[0].Leaf.NotAfter.Unix())
	return nil
}

// config is what the contents of the files make. Those that are nil are left out: the errors are of the others.
func (f TLSFiles) config(contents [][]byte) (*tls.Config, error) {
	c := &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"}}
	var errs []error
	if contents[0] != nil && contents[1] != nil {
		pair, err := tls.X509KeyPair(contents[0], contents[1])
		if err != nil {
			errs = append(errs, fmt.Errorf("%s and %s: %s and %s: %w", certField, keyField, f.Cert, f.Key, err))
		} else if expires := pair.Leaf.NotAfter; !time.Now().Before(expires) {
			errs = append(errs, fmt.Errorf("%s: %s: the certificate ended at %s", certField, f.Cert, expires.UTC().Format(time.RFC3339)))
		}
		c.Certificates = []tls.Certificate{pair}
	}
	if contents[0] != nil && errs == nil {
		if _, err := certificatesIn(contents[0]); err != nil { // of the chain, too
			errs = append(errs, fmt.Errorf("%s: %s: %w", certField, f.Cert, err))
		}
	}
	if len(contents) > 2 && contents[2] != nil {
		c.ClientAuth, c.ClientCAs = tls.RequireAndVerifyClientCert, x509.NewCertPool()
		// A session is not resumed past a change of the authorities.
		c.SessionTicketsDisabled = true
		authorities, err := certificatesIn(contents[2])
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %s: %w", clientCAField, f.ClientCA, err))
		}
		for _, one := range authorities {
			c.ClientCAs.AddCert(one)
		}
	}
	return c, errors.Join(errs...)
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
