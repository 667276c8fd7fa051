package server

import "github.com/prometheus/client_golang/prometheus"

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
