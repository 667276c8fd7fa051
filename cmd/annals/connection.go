package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/annalsdb/annals/client"
)

// defaultServer is where "annals serve" listens by default.
const defaultServer = "http://127.0.0.1:8080"

// maxCredentialBytes bounds the files that a connection is made of.
const maxCredentialBytes = 1 << 20

// connection says how a command reaches a server.
type connection struct {
	server        string
	tokenFile     string
	token         string // of the variable
	ca, cert, key string // files
}

// addConnectionFlags adds the flags of a command that speaks to a server. Each is a variable too; a token
// itself is a variable only, since command lines can be read by everybody on the machine.
func addConnectionFlags(s *settings, c *connection) {
	addFlag(s, "server", "url", defaultServer, &c.server, parseServer, "the server's base URL")
	s.withVariable("server")
	addCredentialFlags(s, c)
}

// addCredentialFlags adds all of them but --server.
func addCredentialFlags(s *settings, c *connection) {
	addFlag(s, "token-file", "file", "", &c.tokenFile, parseText,
		"file that holds the token which the server asks for; or the token itself is in ANNALS_TOKEN (default: none)")
	addFlag(s, "tls-ca", "file", "", &c.ca, parseText, "PEM file of the authorities that sign the server's certificate (default: the system's)")
	addFlag(s, "tls-cert", "file", "", &c.cert, parseText, "PEM file of the certificate that the server asks clients for; needs --tls-key (default: none)")
	addFlag(s, "tls-key", "file", "", &c.key, parseText, "PEM file of its key (default: none)")
	for _, name := range credentialFlags {
		s.withVariable(name)
	}
	token := &value[string]{target: &c.token, parse: parseToken, kind: "token"}
	s.variables[tokenVariable] = &pflag.Flag{Name: "token", Value: token}
	s.checks = append(s.checks, func() { c.check(s) })
}

// tokenVariable holds a token. There is no flag of its name.
const tokenVariable = variablePrefix + "TOKEN"

// credentialFlags are the flags of addCredentialFlags.
var credentialFlags = []string{"token-file", "tls-ca", "tls-cert", "tls-key"}

// check reports flags that contradict one another.
func (c *connection) check(s *settings) {
	if (c.cert == "") != (c.key == "") {
		s.fault("--tls-cert and --tls-key need each other")
	}
	for _, name := range []string{"tls-ca", "tls-cert"} {
		// A variable may be there for other servers, or for serve, which has --tls-cert too.
		if s.sources[name] == "--"+name && !c.https() {
			s.fault("--%s needs a --server that begins with https://", name)
		}
	}
}

func (c *connection) https() bool { return strings.HasPrefix(c.server, "https:") }

// parseToken reads a token as an HTTP header can carry it. Its errors repeat nothing of it.
func parseToken(text string) (string, error) {
	for _, b := range []byte(text) {
		if b <= ' ' || b > '~' {
			return "", errors.New("a token is one word of plain characters")
		}
	}
	if text == "" {
		return "", errors.New("the token is empty")
	}
	return text, nil
}

// bearer returns the token as it is now; empty: none.
func (c *connection) bearer() (string, error) {
	if c.tokenFile == "" { // a flag or variable of its own: it beats the token itself
		return c.token, nil
	}
	return client.ReadTokenFile(c.tokenFile)
}

// options reads the files that the flags name.
func (c *connection) options() (client.Options, error) {
	var o client.Options
	token, err := c.bearer()
	if err != nil {
		return o, err
	}
	if c.tokenFile != "" {
		o.TokenSource = client.TokenFile(c.tokenFile) // a later token is taken up
	} else {
		o.Token = token
	}
	o.TLS, err = c.tlsConfig()
	return o, err
}

// client returns a client for the server. Nothing is sent yet.
func (c *connection) client() (*client.Client, error) {
	o, err := c.options()
	if err != nil {
		return nil, err
	}
	return client.New(c.server, o)
}

// remoteCommand builds a command that asks a server and prints the answer. check may add faults about the arguments,
// which are as many as there must be. do gets a client and where to print; the first failure to print is reported when it returns.
func remoteCommand(p *process, c *connection, cmd *cobra.Command, arguments []string, define func(*settings),
	check func(*settings, []string), do func(ctx context.Context, api *client.Client, out *bufio.Writer, args []string) error) *cobra.Command {
	withServer := func(s *settings) {
		addConnectionFlags(s, c)
		define(s)
	}
	return newCommand(p, cmd, arguments, withServer, func(*settings) {}, func(s *settings, args []string) error {
		if check(s, args); len(s.faults) > 0 {
			return &usageError{s.faults}
		}
		api, err := c.client()
		if err != nil {
			return failf("%w", err)
		}
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
		defer stop()
		out := bufio.NewWriterSize(p.stdout, outputBufferBytes)
		err = do(ctx, api, out, args)
		switch flushed := out.Flush(); {
		case ctx.Err() != nil:
			return failf("%w", errInterrupted)
		case err != nil:
			return failf("%w", err)
		case flushed != nil:
			return failf("write output: %w", flushed)
		}
		return nil
	})
}

// tlsConfig returns what the flags say of TLS; nil: nothing.
func (c *connection) tlsConfig() (*tls.Config, error) {
	if c.ca == "" && c.cert == "" || !c.https() {
		return nil, nil
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if c.ca != "" {
		text, err := readCredential(c.ca)
		if err != nil {
			return nil, fmt.Errorf("read --tls-ca: %w", err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(text) {
			return nil, fmt.Errorf("read --tls-ca: %s holds no certificate in PEM form", c.ca)
		}
	}
	if c.cert != "" {
		pair, err := tls.LoadX509KeyPair(c.cert, c.key)
		if err != nil {
			return nil, fmt.Errorf("read --tls-cert and --tls-key: %w", err)
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return config, nil
}

// readCredential reads a file of at most maxCredentialBytes.
func readCredential(name string) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxCredentialBytes+1))
	if err == nil && len(text) > maxCredentialBytes {
		err = fmt.Errorf("%s is longer than %s", name, formatSize(maxCredentialBytes))
	}
	return text, err
}
