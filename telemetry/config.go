package telemetry

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Config is what the variables of an environment say, as far as this package looks at
// them. The zero value sends nothing. Read makes one.
type Config struct {
	on            bool
	queue, batch  int           // spans
	delay         time.Duration // that a span waits for others
	exportTimeout time.Duration // of one batch, with all that is tried again
}

// On reports whether traces are sent.
func (c Config) On() bool { return c.on }

// Defaults and bounds of the batches, which are those of the OpenTelemetry
// specification.
const (
	defaultQueue, maxQueue = 2048, 1 << 20
	defaultBatch           = 512
	defaultDelay           = 5 * time.Second
	defaultExportTimeout   = 30 * time.Second
	maxMilliseconds        = 24 * 60 * 60 * 1000
)

// Values that are known.
var (
	protocols    = []string{"http/protobuf", "http/json"}
	compressions = []string{"none", "gzip"}
	samplers     = []string{"always_on", "always_off", "traceidratio",
		"parentbased_always_on", "parentbased_always_off", "parentbased_traceidratio"}
)

// Read reads the OTEL_ variables that getenv knows. Traces are on when
// OTEL_EXPORTER_OTLP_ENDPOINT or OTEL_EXPORTER_OTLP_TRACES_ENDPOINT is set, unless
// OTEL_TRACES_EXPORTER is none or OTEL_SDK_DISABLED true. faults are all values that
// cannot be used; there are none while traces are off. Start reads the same variables of
// the process.
func Read(getenv func(string) string) (c Config, faults []error) {
	r := reader{getenv: getenv}
	if r.get("OTEL_EXPORTER_OTLP_ENDPOINT") == "" && r.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") == "" ||
		strings.EqualFold(r.get("OTEL_SDK_DISABLED"), "true") || r.get("OTEL_TRACES_EXPORTER") == "none" {
		return Config{}, nil
	}
	r.oneOf("OTEL_TRACES_EXPORTER", "otlp", "none")
	for _, prefix := range []string{"OTEL_EXPORTER_OTLP_", "OTEL_EXPORTER_OTLP_TRACES_"} {
		r.endpoint(prefix + "ENDPOINT")
		r.oneOf(prefix+"PROTOCOL", protocols...)
		r.oneOf(prefix+"COMPRESSION", compressions...)
		r.headers(prefix + "HEADERS")
		r.number(prefix+"TIMEOUT", 0, 1, maxMilliseconds)
		r.certificates(prefix)
	}
	r.sampler()
	c = Config{
		on:            true,
		queue:         r.number("OTEL_BSP_MAX_QUEUE_SIZE", defaultQueue, 1, maxQueue),
		delay:         r.milliseconds("OTEL_BSP_SCHEDULE_DELAY", defaultDelay),
		exportTimeout: r.milliseconds("OTEL_BSP_EXPORT_TIMEOUT", defaultExportTimeout),
	}
	c.batch = r.number("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", min(defaultBatch, c.queue), 1, c.queue)
	return c, r.faults
}

// reader reads variables and collects what is wrong with them.
type reader struct {
	getenv func(string) string
	faults []error
}

func (r *reader) get(name string) string { return strings.TrimSpace(r.getenv(name)) }

func (r *reader) fault(format string, args ...any) {
	r.faults = append(r.faults, fmt.Errorf(format, args...))
}

// oneOf checks a variable that has one of some values if it is set.
func (r *reader) oneOf(name string, values ...string) {
	if v := r.get(name); v != "" && !slices.Contains(values, v) {
		r.fault("%s is %q; supported are %s", name, v, strings.Join(values, ", "))
	}
}

// endpoint checks a URL. Its text may hold a password, which is not repeated.
func (r *reader) endpoint(name string) {
	v := r.get(name)
	if v == "" {
		return
	}
	u, err := url.Parse(v)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		r.fault("%s must be a URL such as http://localhost:4318", name)
	}
}

// headers checks names and values of headers, which may be secret.
func (r *reader) headers(name string) {
	for pair := range strings.SplitSeq(r.get(name), ",") {
		if strings.TrimSpace(pair) == "" {
			continue
		}
		key, value, ok := strings.Cut(pair, "=")
		if _, err := url.PathUnescape(value); err != nil || !ok || strings.TrimSpace(key) == "" {
			r.fault("%s must be of the form name=value,name=value, its values percent-encoded", name)
			return
		}
	}
}

// number returns a whole number, or def if it is not set.
func (r *reader) number(name string, def, lo, hi int) int {
	v := r.get(name)
	if v == "" {
		return def
	}
	n, err := strconv.Atoi(v)
	if err != nil || n < lo || n > hi {
		r.fault("%s is %q; it must be a whole number from %d to %d", name, v, lo, hi)
		return def
	}
	return n
}

func (r *reader) milliseconds(name string, def time.Duration) time.Duration {
	return time.Duration(r.number(name, int(def/time.Millisecond), 1, maxMilliseconds)) * time.Millisecond
}

// certificates checks the files of TLS.
func (r *reader) certificates(prefix string) {
	if file := r.get(prefix + "CERTIFICATE"); file != "" {
		pem, err := os.ReadFile(file)
		if err == nil && !x509.NewCertPool().AppendCertsFromPEM(pem) {
			err = errors.New("no certificate in it")
		}
		if err != nil {
			r.fault("%sCERTIFICATE: read %s: %w", prefix, file, err)
		}
	}
	cert, key := r.get(prefix+"CLIENT_CERTIFICATE"), r.get(prefix+"CLIENT_KEY")
	switch {
	case cert == "" && key == "":
	case cert == "" || key == "":
		r.fault("%sCLIENT_CERTIFICATE and %sCLIENT_KEY need each other", prefix, prefix)
	default:
		if _, err := tls.LoadX509KeyPair(cert, key); err != nil {
			r.fault("%sCLIENT_CERTIFICATE: %w", prefix, err)
		}
	}
}

// sampler checks which traces are sent.
func (r *reader) sampler() {
	const name, arg = "OTEL_TRACES_SAMPLER", "OTEL_TRACES_SAMPLER_ARG"
	v := strings.ToLower(r.get(name))
	if v != "" && !slices.Contains(samplers, v) {
		r.fault("%s is %q; supported are %s", name, v, strings.Join(samplers, ", "))
	}
	if a := r.get(arg); a != "" && strings.HasSuffix(v, "traceidratio") {
		if n, err := strconv.ParseFloat(a, 64); err != nil || !(n >= 0 && n <= 1) {
			r.fault("%s is %q; it must be a number from 0 to 1", arg, a)
		}
	}
}
