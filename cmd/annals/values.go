package main

import (
	"errors"
	"fmt"
	"math"
	"net"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
)

// The readers of flag values. Each names in its error what it was given and
// what would do.

// parseSize reads a number of bytes above 0, such as 4096, 64KiB or 1.5GB.
func parseSize[T int | int64](text string) (T, error) {
	n, err := humanize.ParseBytes(text)
	if err != nil || strings.HasPrefix(text, "-") {
		return 0, fmt.Errorf("%q is not a size such as 64MiB", text)
	}
	if n == 0 || n > math.MaxInt64/2 {
		return 0, fmt.Errorf("%q is out of range: a size is above 0 and below 4EiB", text)
	}
	return T(n), nil
}

// formatSize writes a number of bytes as parseSize reads it, exactly.
func formatSize(n int64) string {
	units := []string{"", "KiB", "MiB", "GiB", "TiB"}
	i := 0
	for n != 0 && n%1024 == 0 && i < len(units)-1 {
		n /= 1024
		i++
	}
	return strconv.FormatInt(n, 10) + units[i]
}

// maxDays is how many days a time.Duration holds.
const maxDays = math.MaxInt64 / int64(24*time.Hour)

var errTooLong = errors.New("too long")

// parseDays is time.ParseDuration with days in front.
func parseDays(text string) (time.Duration, error) {
	number, rest, found := strings.Cut(text, "d")
	if !found {
		return time.ParseDuration(text)
	}
	n, err := strconv.ParseUint(number, 10, 63)
	switch {
	case err != nil:
		return 0, err
	case int64(n) > maxDays:
		return 0, errTooLong
	}
	days := time.Duration(n) * 24 * time.Hour
	if rest == "" {
		return days, nil
	}
	d, err := time.ParseDuration(rest)
	switch {
	case err != nil:
		return 0, err
	case rest[0] == '-' || rest[0] == '+':
		return 0, errors.New("a sign behind days")
	case d > math.MaxInt64-days:
		return 0, errTooLong
	}
	return days + d, nil
}

// parseDuration reads a time above 0, such as 100ms, 1h30m or 7d. A day is 24 hours and
// stands alone or first.
func parseDuration(text string) (time.Duration, error) {
	d, err := parseDays(text)
	switch {
	case err != nil:
		return 0, fmt.Errorf("%q is not a duration such as 100ms, or above the longest, of 106751 days", text)
	case d <= 0:
		return 0, fmt.Errorf("%q is out of range: a duration is above 0", text)
	}
	return d, nil
}

// parseCount reads a whole number from lo on.
func parseCount(lo, hi uint64) func(string) (uint64, error) {
	return func(text string) (uint64, error) {
		n, err := strconv.ParseUint(text, 10, 64)
		switch {
		case err != nil && !errors.Is(err, strconv.ErrRange):
			return 0, fmt.Errorf("%q is not a whole number", text)
		case err != nil || n < lo || n > hi:
			return 0, fmt.Errorf("%s is out of range: it must be from %d to %d", text, lo, hi)
		}
		return n, nil
	}
}

// parseInt reads a count above 0.
func parseInt(text string) (int, error) {
	n, err := parseCount(1, math.MaxInt32)(text)
	return int(n), err
}

// parseChoice reads one of a few words, each of which stands for a value.
func parseChoice[T any](words []string, values []T) func(string) (T, error) {
	return func(text string) (T, error) {
		for i, word := range words {
			if text == word {
				return values[i], nil
			}
		}
		var none T
		return none, fmt.Errorf("%q is not one of: %s", text, strings.Join(words, ", "))
	}
}

// parseListen reads a host and port to listen on.
func parseListen(text string) (string, error) {
	_, port, err := net.SplitHostPort(text)
	if err != nil {
		return "", fmt.Errorf("%q is not an address such as 127.0.0.1:8080", text)
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		return "", fmt.Errorf("%q: the port must be a number from 0 to 65535", text)
	}
	return text, nil
}

// parseServer reads the base URL of a server.
func parseServer(text string) (string, error) {
	u, err := url.Parse(text)
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" {
		return "", fmt.Errorf("%q is not a URL such as http://127.0.0.1:8080", withoutPassword(text))
	}
	if strings.ContainsAny(text, "?#") || u.User != nil { // an empty query or fragment too: a path is put behind it
		return "", fmt.Errorf("%q: a server's URL has no user, query or fragment", withoutPassword(text))
	}
	return strings.TrimSuffix(text, "/"), nil
}

// parseText reads anything but nothing.
func parseText(text string) (string, error) {
	if text == "" {
		return "", errors.New("it is empty")
	}
	return text, nil
}
