package client

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"
)

const (
	// maxTokenBytes is the longest bearer token: it travels in a header of each request.
	maxTokenBytes = 4096
	// tokenFileAge is for how long TokenFile's token counts as fresh.
	tokenFileAge = time.Second
)

// ReadTokenFile reads a bearer token from a file: its only line, of at most 4,096 bytes of visible
// ASCII. White space around it, such as the end of the line, is left out. Errors never hold what the
// file holds.
func ReadTokenFile(name string) (string, error) {
	f, err := os.Open(name)
	if err != nil {
		return "", fmt.Errorf("read token file: %w", err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, 2*maxTokenBytes))
	if err != nil {
		return "", fmt.Errorf("read token file: %w", err)
	}
	token := strings.TrimSpace(string(data))
	if err := checkToken(token); err != nil {
		return "", fmt.Errorf("read token file %s: %w", name, err)
	}
	return token, nil
}

// TokenFile returns a TokenSource that reads the file when it is first asked, and again whenever it is asked
// a second later or more: so a new token is taken up by itself. When a later reading fails, it goes on with the token
// that it had, until the server refuses that. It may be called from any goroutine.
func TokenFile(name string) func() (string, error) {
	var mu sync.Mutex
	var token string
	var at time.Time
	return func() (string, error) {
		mu.Lock()
		defer mu.Unlock()
		if token != "" && time.Since(at) < tokenFileAge {
			return token, nil
		}
		read, err := ReadTokenFile(name)
		switch {
		case err == nil:
			token = read
		case token == "":
			return "", err
		}
		at = time.Now()
		return token, nil
	}
}

// checkToken refuses what cannot be a token, without a word of what it is.
func checkToken(token string) error {
	switch {
	case token == "":
		return errors.New("the token is empty")
	case len(token) > maxTokenBytes:
		return fmt.Errorf("the token has more than %d bytes", maxTokenBytes)
	}
	for i := range len(token) {
		if token[i] <= ' ' || token[i] > '~' {
			return errors.New("the token has a character that is not visible ASCII")
		}
	}
	return nil
}

// send sends a request with the token as it is now. All requests go through here.
func (c *Client) send(req *http.Request) (*http.Response, error) {
	if c.token != nil {
		token, err := c.token()
		if err == nil {
			err = checkToken(token)
		}
		if err != nil {
			return nil, &tokenError{err}
		}
		req.Header.Set("Authorization", "Bearer "+token)
	}
	return c.http.Do(req)
}

// tokenError says that there was no token to send with a request: nothing was sent.
type tokenError struct{ err error }

func (e *tokenError) Error() string { return fmt.Sprintf("get a token: %v", e.err) }
func (e *tokenError) Unwrap() error { return e.err }

// withinOrigin returns a copy of an HTTP client that follows redirects only to where the request was for: the token and
// the records are for that server alone. Any other redirect is an answer that is not a success.
func withinOrigin(h *http.Client) *http.Client {
	bounded := *h
	bounded.CheckRedirect = func(req *http.Request, via []*http.Request) error {
		if req.URL.Scheme != via[0].URL.Scheme || req.URL.Host != via[0].URL.Host {
			return http.ErrUseLastResponse
		}
		if h.CheckRedirect != nil {
			return h.CheckRedirect(req, via)
		}
		if len(via) >= maxRedirects {
			return fmt.Errorf("more than %d redirects", maxRedirects)
		}
		return nil
	}
	return &bounded
}

// maxRedirects is how many redirects of one request are followed.
const maxRedirects = 10
