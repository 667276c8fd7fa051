package main

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"

	"github.com/annalsdb/annals/auth"
	"github.com/annalsdb/annals/server"
)

// securityConfig is what the flags of serve say about who may reach what.
type securityConfig struct {
	tokensFile     string
	tlsFiles       server.TLSFiles
	adminListen    string
	maxConnections int

	tokens *auth.Tokens // of the file; nil: there is none
	tls    *server.TLS  // likewise
}

func (c *securityConfig) addFlags(s *settings) {
	addFlag(s, "tokens", "file", "", &c.tokensFile, parseText,
		"file that says which tokens may do what, which \"annals token new --file\" makes; every request then needs one but those for health. "+
			"A change is taken up within seconds, or by SIGHUP (default none: everybody may do everything)")
	addFlag(s, "tls-cert", "file", "", &c.tlsFiles.Cert, parseText,
		"certificate in PEM form, with its chain, to speak TLS only. A change is taken up like that of --tokens (default none: plain HTTP)")
	addFlag(s, "tls-key", "file", "", &c.tlsFiles.Key, parseText, "its private key (default none)")
	addFlag(s, "tls-client-ca", "file", "", &c.tlsFiles.ClientCA, parseText,
		"authorities of clients, in PEM form: each client needs a certificate of one of them, for health too (default none: clients need none)")
	addFlag(s, "admin-listen", "address", "", &c.adminListen, parseListen,
		"host and port for /metrics, /debug/pprof, /-/healthy and /-/ready, without TLS and tokens: keep it private. "+
			"/metrics is no longer on --listen then (default none: /metrics is on --listen, pprof nowhere)")
	addFlag(s, "max-connections", "count", strconv.Itoa(server.DefaultMaxConnections), &c.maxConnections, parseInt,
		"connections to --listen that are open at the same time; more are closed at once. Each takes a file descriptor, and a request with long headers up to 1MiB")
}

// check reads the files, unless only the settings are asked for, and reports all that is wrong with
// them.
func (c *securityConfig) check(s *settings, listen string) {
	f := &c.tlsFiles
	switch {
	case f.Cert != "" && f.Key == "":
		s.fault("--tls-cert needs --tls-key")
	case f.Cert == "" && f.Key != "":
		s.fault("--tls-key needs --tls-cert")
	case f.Cert == "" && f.ClientCA != "":
		s.fault("--tls-client-ca needs --tls-cert and --tls-key")
	}
	if _, port, _ := net.SplitHostPort(c.adminListen); c.adminListen != "" && c.adminListen == listen && port != "0" {
		s.fault("--admin-listen and --listen are the same; give each a port of its own")
	}
	if s.printing {
		return
	}
	var err error
	if c.tokensFile != "" {
		if c.tokens, err = auth.Open(c.tokensFile); err != nil {
			faultsOf(s, "--tokens "+c.tokensFile, err)
		}
	}
	if f.Cert != "" && f.Key != "" {
		if c.tls, err = f.Open(); err != nil {
			s.tlsFaults(err)
		}
	}
}

// tlsFlags are the flags of the files, by their names in server.TLSFiles.
var tlsFlags = map[string]string{
	"Cert": "--tls-cert", "Key": "--tls-key", "Cert and Key": "--tls-cert and --tls-key", "ClientCA": "--tls-client-ca",
}

// tlsFaults reports each of the errors that are joined in that of server.TLSFiles.Open.
func (s *settings) tlsFaults(err error) {
	for _, fault := range strings.Split(err.Error(), "\n") {
		if field, why, _ := strings.Cut(fault, ": "); tlsFlags[field] != "" {
			fault = tlsFlags[field] + ": " + why
		}
		s.fault("%s", fault)
	}
}

// faultsOf reports each of the errors that are joined in err.
func faultsOf(s *settings, where string, err error) {
	for _, fault := range strings.Split(err.Error(), "\n") {
		s.fault("%s: %s", where, fault)
	}
}

// warn says what is open that perhaps should not be.
func (c *securityConfig) warn(log *slog.Logger, listen string) {
	switch host, _, _ := net.SplitHostPort(listen); {
	case host == "localhost" || net.ParseIP(host).IsLoopback():
	case c.tokens == nil && c.tlsFiles.ClientCA == "":
		log.Warn("whoever reaches the port can read and append everything; give --tokens or --tls-client-ca, or keep it private", "listen", listen)
	case c.tls == nil:
		log.Info("tokens and records cross the network in the clear, unless a proxy in front speaks TLS; --tls-cert and --tls-key do", "listen", listen)
	}
}

// watch takes changes of the files up, and at once with SIGHUP, until ctx ends. Without files SIGHUP does nothing: what
// reloads all servers of a machine must not end those that have nothing to reload.
func (c *securityConfig) watch(ctx context.Context, log *slog.Logger) {
	if c.tokens != nil {
		go c.tokens.Watch(ctx, log)
	}
	if c.tls != nil {
		go c.tls.Watch(ctx, log)
	}
	hangUp := make(chan os.Signal, 1)
	signal.Notify(hangUp, syscall.SIGHUP)
	go func() {
		defer signal.Stop(hangUp)
		for {
			select {
			case <-hangUp:
				c.reload(log)
			case <-ctx.Done():
				return
			}
		}
	}()
}

func (c *securityConfig) reload(log *slog.Logger) {
	if c.tokens == nil && c.tls == nil {
		log.Info("SIGHUP: there are no tokens and no certificates to reload")
	}
	if c.tokens != nil {
		c.tokens.Reload(log)
	}
	if c.tls != nil {
		c.tls.Reload(log)
	}
}

// front returns the listening side.
func (c *securityConfig) front(log *slog.Logger) *server.Front {
	return server.NewFront(server.FrontOptions{TLS: c.tls, MaxConnections: c.maxConnections, Logger: log})
}

// startAdmin serves the admin side, if there is to be one. end ends it.
func (c *securityConfig) startAdmin(log *slog.Logger) (admin *server.Admin, end func(), err error) {
	if c.adminListen == "" {
		return nil, func() {}, nil
	}
	listener, err := net.Listen("tcp", c.adminListen)
	if err != nil {
		return nil, nil, err
	}
	admin = server.NewAdmin(server.AdminOptions{Debug: profiles(), Logger: log})
	served := make(chan error, 1)
	go func() { served <- admin.Serve(listener) }()
	log.Info("admin listener", "address", listener.Addr().String())
	if host, _, _ := net.SplitHostPort(c.adminListen); host != "localhost" && !net.ParseIP(host).IsLoopback() {
		log.Warn("whoever reaches the admin listener can read metrics, and profiles with what is in memory; keep it private", "admin_listen", c.adminListen)
	}
	return admin, func() {
		admin.Close()
		if err := <-served; err != nil {
			log.Error("the admin listener failed", "error", err)
		}
	}, nil
}

// profiles serves what net/http/pprof has, without http.DefaultServeMux.
func profiles() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	return mux
}
