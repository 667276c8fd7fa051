package server

import (
	"github.com/prometheus/client_golang/prometheus"
)

// newRefused returns the counter of refused requests, with all its series.
func newRefused() *prometheus.CounterVec {
	c := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "annals_auth_refused_total", Help: "Requests answered with 401 or 403.",
	}, []string{"reason"})
	for _, why := range denials {
		c.WithLabelValues(string(why))
	}
	return c
}

// newSecurityCollectors returns the metrics of tokens, TLS and connections: where a server has none of
// these, zeros.
func newSecurityCollectors(s *Server) []prometheus.Collector {
	gauge := func(name, help string, value func() float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, value)
	}
	counter := func(name, help string, value func() float64) prometheus.Collector {
		return prometheus.NewCounterFunc(prometheus.CounterOpts{Name: name, Help: help}, value)
	}
	return []prometheus.Collector{
		gauge("annals_auth_tokens", "Tokens in force.", func() float64 {
			if s.opts.Tokens == nil {
				return 0
			}
			return float64(s.opts.Tokens.Len())
		}),
		gauge("annals_auth_reload_failing", "1 while the token file is not valid, so that an older one is in force.", func() float64 {
			return one(s.opts.Tokens != nil && s.opts.Tokens.ReloadFailing())
		}),
		gauge("annals_tls_certificate_expiry_timestamp_seconds", "Unix time at which the certificate in force ends.", func() float64 {
			if s.front.tls == nil {
				return 0
			}
			return float64(s.front.tls.expires.Load())
		}),
		gauge("annals_tls_reload_failing", "1 while the certificate's files are not right, so that an older one is in force.", func() float64 {
			return one(s.front.tls != nil && s.front.tls.ReloadFailing())
		}),
		gauge("annals_http_connections", "Connections that are open.", func() float64 { return float64(s.front.conns.open.Load()) }),
		counter("annals_http_connections_refused_total", "Connections closed at once because there were too many.",
			func() float64 { return float64(s.front.conns.refused.Load()) }),
	}
}

// one is 1 for what fails.
func one(failing bool) float64 {
	if failing {
		return 1
	}
	return 0
}
