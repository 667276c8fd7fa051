package s3

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/annalsdb/annals/objstore"
)

// Bounds of Options (invariant I9).
const (
	// MinPartSize is the smallest part that S3 accepts (but for the last one).
	MinPartSize = 5 << 20
	// MaxPartSize is the largest part, and the largest object that S3 takes in one
	// request.
	MaxPartSize = 5 << 30
	// MaxPrefixBytes is the longest Options.Prefix: S3 keys have 1,024 bytes, of
	// which a slash and objstore.MaxNameBytes are taken.
	MaxPrefixBytes = 1024 - objstore.MaxNameBytes - 1

	maxAttempts    = 100
	maxConcurrency = 64
)

// Options say where the bucket is and how patiently it is spoken to. Only
// Bucket is required; zero values mean the defaults.
type Options struct {
	// Bucket is the bucket's name. It must exist.
	Bucket string
	// Prefix is put before every object's name, with a slash between. It is a
	// valid object name itself, of at most MaxPrefixBytes. Default: none.
	Prefix string
	// Endpoint is the base URL of a server that speaks S3's API. Default: AWS, or
	// what the AWS environment and configuration files say.
	Endpoint string
	// Region is the region to sign for. Default: what the AWS environment and
	// configuration files say, else us-east-1.
	Region string
	// PathStyle puts the bucket into the path of URLs instead of the host name.
	// Most servers other than AWS need it.
	PathStyle bool
	// Credentials replace the AWS SDK's chain (environment, files, instance roles)
	// that is used when they are nil.
	Credentials *Credentials

	// PartSize is the size above which a body is uploaded in parts, and the size
	// of those parts: MinPartSize to MaxPartSize. Default 16 MiB.
	PartSize int64
	// Concurrency is how many parts of one Put are under way at the same time, 1 to 64.
	// Default 4.
	Concurrency int
	// MaxAttempts bounds how often one request is sent, 1 to 100. Default 5.
	MaxAttempts int
	// FirstBackoff is the longest wait before the second attempt. It doubles for
	// each further one, up to MaxBackoff; the actual wait is drawn evenly from
	// zero to it. Defaults 100 ms and 5 s.
	FirstBackoff, MaxBackoff time.Duration

	// ConnectTimeout bounds the dialling, and the TLS handshake, of a connection.
	// Default 5 s.
	ConnectTimeout time.Duration
	// IdleTimeout cancels a request for which no byte has moved for that long in
	// either direction. Default 10 s.
	IdleTimeout time.Duration
	// RequestTimeout bounds one attempt of one request, body included.
	// Default 2 min.
	RequestTimeout time.Duration
	// OpenTimeout bounds Open. Default 15 s.
	OpenTimeout time.Duration

	// Sleep waits for d or until ctx ends, whose error it then returns. It is called
	// between attempts only. Default: real time.
	Sleep func(ctx context.Context, d time.Duration) error
	// Random returns a number in [0, 1) for the jitter of those waits; it may be
	// called from any goroutine. Default: math/rand/v2.
	Random func() float64
}

// Credentials are an access key. They print as asterisks.
type Credentials struct {
	AccessKeyID, SecretAccessKey string
	// SessionToken belongs to temporary keys only.
	SessionToken string
}

// String hides the key.
func (Credentials) String() string { return "***" }

// GoString hides the key.
func (Credentials) GoString() string { return "***" }

func (o Options) withDefaults() Options {
	setDefault(&o.PartSize, 16<<20)
	setDefault(&o.Concurrency, 4)
	setDefault(&o.MaxAttempts, 5)
	setDefault(&o.FirstBackoff, 100*time.Millisecond)
	setDefault(&o.MaxBackoff, 5*time.Second)
	setDefault(&o.ConnectTimeout, 5*time.Second)
	setDefault(&o.IdleTimeout, 10*time.Second)
	setDefault(&o.RequestTimeout, 2*time.Minute)
	setDefault(&o.OpenTimeout, 15*time.Second)
	if o.Sleep == nil {
		o.Sleep = sleep
	}
	if o.Random == nil {
		o.Random = rand.Float64
	}
	return o
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// bucketName is looser than AWS's rules, which other servers do not share, but keeps
// out what would change the meaning of a URL.
var bucketName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{1,61}[A-Za-z0-9]$`)

// Validate reports all faults of the options at once. Zero values are fine but for
// Bucket.
func (o Options) Validate() error {
	o = o.withDefaults()
	var errs []error
	fault := func(bad bool, format string, args ...any) {
		if bad {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	fault(o.Bucket == "", "bucket: missing")
	fault(o.Bucket != "" && !bucketName.MatchString(o.Bucket),
		"bucket %q: want 3 to 63 letters, digits, dots, hyphens or underscores", o.Bucket)
	if o.Prefix != "" {
		fault(objstore.ValidName(o.Prefix) != nil, "prefix %q: want slash-separated parts of printable ASCII", o.Prefix)
		fault(len(o.Prefix) > MaxPrefixBytes, "prefix: %d bytes, the limit is %d", len(o.Prefix), MaxPrefixBytes)
	}
	if o.Endpoint != "" {
		if err := validEndpoint(o.Endpoint); err != nil {
			errs = append(errs, err)
		}
	}
	fault(strings.ContainsFunc(o.Region, func(r rune) bool { return r <= ' ' || r >= 0x7F || r == '/' }),
		"region %q: not a region's name", o.Region)
	if c := o.Credentials; c != nil {
		fault(c.AccessKeyID == "" || c.SecretAccessKey == "", "credentials: access key id and secret are both needed")
	}
	fault(o.PartSize < MinPartSize || o.PartSize > MaxPartSize, "part size: %d is not in [%d, %d]", o.PartSize, MinPartSize, int64(MaxPartSize))
	fault(o.Concurrency < 1 || o.Concurrency > maxConcurrency, "concurrency: %d is not in [1, %d]", o.Concurrency, maxConcurrency)
	fault(o.MaxAttempts < 1 || o.MaxAttempts > maxAttempts, "max attempts: %d is not in [1, %d]", o.MaxAttempts, maxAttempts)
	for _, d := range []struct {
		name  string
		value time.Duration
	}{
		{"first backoff", o.FirstBackoff}, {"max backoff", o.MaxBackoff}, {"connect timeout", o.ConnectTimeout},
		{"idle timeout", o.IdleTimeout}, {"request timeout", o.RequestTimeout}, {"open timeout", o.OpenTimeout},
	} {
		fault(d.value < 0, "%s: %v is negative", d.name, d.value)
	}
	return errors.Join(errs...)
}

// validEndpoint never puts the URL's user part into its error.
func validEndpoint(endpoint string) error {
	u, err := url.Parse(endpoint)
	switch {
	case err != nil:
		return errors.New("endpoint: not a URL")
	case u.User != nil:
		return errors.New("endpoint: credentials do not belong into a URL")
	case u.Scheme != "http" && u.Scheme != "https":
		return fmt.Errorf("endpoint %q: want http://HOST or https://HOST", endpoint)
	case u.Hostname() == "":
		return fmt.Errorf("endpoint %q: the host is missing", endpoint)
	case u.RawQuery != "" || u.Fragment != "":
		return fmt.Errorf("endpoint %q: query or fragment not allowed", endpoint)
	}
	return nil
}

// ParseURL reads
//
//	s3://BUCKET/PREFIX?endpoint=URL&region=REGION&path_style=true
//
// in which all but the bucket may be absent. The error reports all faults.
// Options that a URL does not carry are left zero.
func ParseURL(rawURL string) (Options, error) {
	u, err := url.Parse(rawURL)
	if err != nil {
		// url.Error repeats the URL, which may hold a secret.
		var inner *url.Error
		if errors.As(err, &inner) {
			err = inner.Err
		}
		return Options{}, fmt.Errorf("parse s3 URL: %w", err)
	}
	var errs []error
	if u.Scheme != "s3" || u.Opaque != "" {
		errs = append(errs, errors.New("want s3://BUCKET/PREFIX"))
	}
	if u.User != nil {
		errs = append(errs, errors.New("credentials do not belong into a URL"))
	}
	if u.Port() != "" {
		errs = append(errs, errors.New("a port belongs into the endpoint parameter"))
	}
	if u.Fragment != "" {
		errs = append(errs, errors.New("fragment not allowed"))
	}
	o := Options{Bucket: u.Hostname(), Prefix: strings.Trim(u.Path, "/")}
	errs = append(errs, o.setQuery(u.RawQuery)...)
	if err := o.Validate(); err != nil {
		errs = append(errs, err)
	}
	if len(errs) > 0 {
		return Options{}, fmt.Errorf("parse s3 URL: %w", errors.Join(errs...))
	}
	return o, nil
}

func (o *Options) setQuery(raw string) (errs []error) {
	query, err := url.ParseQuery(raw)
	if err != nil {
		return []error{errors.New("malformed query")}
	}
	for name, values := range query {
		if len(values) > 1 {
			errs = append(errs, fmt.Errorf("parameter %q given %d times", name, len(values)))
		}
		switch value := values[0]; name {
		case "endpoint":
			o.Endpoint = value
		case "region":
			o.Region = value
		case "path_style":
			if o.PathStyle, err = strconv.ParseBool(value); err != nil {
				errs = append(errs, fmt.Errorf("path_style %q: want true or false", value))
			}
		default:
			errs = append(errs, fmt.Errorf("unknown parameter %q", name))
		}
	}
	return errs
}

// String returns the URL that ParseURL reads. It holds no secret.
func (o Options) String() string {
	query := url.Values{}
	if o.Endpoint != "" && validEndpoint(o.Endpoint) == nil {
		query.Set("endpoint", o.Endpoint)
	}
	if o.Region != "" {
		query.Set("region", o.Region)
	}
	if o.PathStyle {
		query.Set("path_style", "true")
	}
	u := url.URL{Scheme: "s3", Host: o.Bucket, Path: "/" + o.Prefix, RawQuery: query.Encode()}
	if o.Prefix == "" {
		u.Path = ""
	}
	return u.String()
}
