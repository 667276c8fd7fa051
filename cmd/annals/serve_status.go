package main

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"slices"
	"strings"

	"github.com/annalsdb/annals/server"
)

// statusConfig is what the flags of serve say about the status of other servers.
type statusConfig struct {
	replicas    []string
	authorities *x509.CertPool // nil: the system's
	cert, key   string         // files; empty: no certificate is shown
}

func (c *statusConfig) addFlags(s *settings) {
	addFlag(s, "replicas", "url,...", "", &c.replicas, parseReplicas,
		"base URLs of the log's replicas, whose lag is shown by GET /api/v1/log/status and /ui. Each status asks all of them, with the token "+
			"that it was asked with: name only servers that may see it, by https:// where others could listen (default none)")
	addFlag(s, "replicas-ca", "file", "", &c.authorities, parseAuthorities,
		"PEM file of the authorities that sign the certificates of these servers (default: the system's)")
	addFlag(s, "replicas-cert", "file", "", &c.cert, parseText,
		"certificate in PEM form, with its chain, to show to these servers, which may ask for one (--tls-client-ca). It is read for each connection (default none)")
	addFlag(s, "replicas-key", "file", "", &c.key, parseText, "its private key (default none)")
}

// check reports flags that make no sense together.
func (c *statusConfig) check(s *settings) {
	https := slices.ContainsFunc(c.replicas, func(u string) bool { return strings.HasPrefix(u, "https:") })
	if c.authorities != nil && !https {
		s.fault("--replicas-ca needs --replicas of which one begins with https://")
	}
	switch {
	case c.cert == "" && c.key == "":
	case c.cert == "":
		s.fault("--replicas-key needs --replicas-cert")
	case c.key == "":
		s.fault("--replicas-cert needs --replicas-key")
	case !https:
		s.fault("--replicas-cert needs --replicas of which one begins with https://")
	case !s.printing:
		if _, err := tls.LoadX509KeyPair(c.cert, c.key); err != nil {
			s.fault("--replicas-cert: %v", err)
		}
	}
}

// options puts what the flags say into the options of a server.
func (c *statusConfig) options(o *server.Options) {
	o.Replicas = c.replicas
	if c.authorities == nil && c.cert == "" {
		return
	}
	o.ReplicaTLS = &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: c.authorities}
	if c.cert != "" {
		o.ReplicaTLS.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			pair, err := tls.LoadX509KeyPair(c.cert, c.key)
			return &pair, err
		}
	}
}

// parseReplicas reads base URLs with commas between them.
func parseReplicas(text string) ([]string, error) {
	var urls []string
	for one := range strings.SplitSeq(text, ",") {
		u, err := parseServer(strings.TrimSpace(one))
		switch {
		case err != nil:
			return nil, err
		case slices.Contains(urls, u):
			return nil, fmt.Errorf("%s is named twice", u)
		}
		urls = append(urls, u)
	}
	if len(urls) > server.MaxReplicas {
		return nil, fmt.Errorf("%d are named; at most %d are allowed", len(urls), server.MaxReplicas)
	}
	return urls, nil
}

// parseAuthorities reads a file of certificates in PEM form.
func parseAuthorities(name string) (*x509.CertPool, error) {
	text, err := readCredential(name)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("%s holds no certificate in PEM form", name)
	}
	return pool, nil
}
