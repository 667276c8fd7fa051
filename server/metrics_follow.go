package server

import "github.com/prometheus/client_golang/prometheus"

// followingCollector shows who follows when metrics are collected.
type followingCollector struct {
	following          *following
	followers, streams *prometheus.Desc
}

func newFollowingCollector(g *following) *followingCollector {
	return &followingCollector{
		following: g,
		followers: prometheus.NewDesc("annals_http_followers", "Requests that wait for records now, by kind.", []string{"kind"}, nil),
		streams:   prometheus.NewDesc("annals_http_followed_streams", "Keys and prefixes that are followed by POST /follow now.", nil, nil),
	}
}

// Describe implements prometheus.Collector.
func (c *followingCollector) Describe(out chan<- *prometheus.Desc) {
	out <- c.followers
	out <- c.streams
}

// Collect implements prometheus.Collector.
func (c *followingCollector) Collect(out chan<- prometheus.Metric) {
	for k := range numFollowKinds {
		n := float64(c.following.followers[k].Load())
		out <- prometheus.MustNewConstMetric(c.followers, isGauge, n, followKindNames[k])
	}
	out <- prometheus.MustNewConstMetric(c.streams, isGauge, float64(c.following.streams.Load()))
}
