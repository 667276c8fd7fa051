package main

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"net/http"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/annalsdb/annals/client"
	"github.com/annalsdb/annals/manifest"
)

// hintOf says what to do about a failure of a command that speaks to a server, or that there is no log for; empty: nothing is known.
func hintOf(cmd *cobra.Command, err error) string {
	if store := cmd.Flags().Lookup("store"); store != nil && errors.Is(err, manifest.ErrNoLog) {
		return "\"annals serve\" begins a log in an empty store. --store, or the variable ANNALS_STORE, names another one: it is " +
			withoutPassword(store.Value.String()) + "."
	}
	flag := cmd.Flags().Lookup("server")
	if flag == nil || flag.Value.String() == "" || cmd.Flags().Lookup("token-file") == nil {
		return ""
	}
	server := flag.Value.String()
	var answer *client.Error
	if errors.As(err, &answer) {
		return hintOfAnswer(answer, server)
	}
	var name *net.DNSError
	var authority x509.UnknownAuthorityError
	var host x509.HostnameError
	var record tls.RecordHeaderError
	var alert tls.AlertError
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return "Is \"annals serve\" running at " + server + "? --server, or the variable ANNALS_SERVER, names another place."
	case errors.As(err, &name):
		return "--server, or the variable ANNALS_SERVER, names the server: it is " + server + "."
	case errors.Is(err, http.ErrSchemeMismatch), errors.As(err, &record):
		return "There is no TLS there: --server with http:// instead of https://."
	case errors.As(err, &authority):
		return "The server's certificate is signed by somebody whom this machine does not know: --tls-ca names the file of its authorities."
	case errors.As(err, &host):
		return "The server's certificate is for another name than " + server + " has."
	case errors.As(err, &alert):
		return "The server refused the TLS connection. It may ask for a certificate: --tls-cert and --tls-key."
	}
	return ""
}

// hintOfAnswer is hintOf for what a server answered.
func hintOfAnswer(answer *client.Error, server string) string {
	switch answer.Status {
	case http.StatusUnauthorized:
		return "The server asks for a token that it knows: --token-file FILE, or the variable ANNALS_TOKEN."
	case http.StatusForbidden:
		return "The token is not for this: --token-file or the variable ANNALS_TOKEN give another one."
	case http.StatusBadRequest:
		if strings.HasPrefix(server, "http:") && strings.Contains(answer.Message, "HTTP request to an HTTPS server") {
			return "There is TLS there: --server with https:// instead of http://."
		}
	}
	return ""
}
