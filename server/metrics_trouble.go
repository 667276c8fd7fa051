package server

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/annalsdb/annals/engine"
)

func newTroubleDesc() *prometheus.Desc {
	return prometheus.NewDesc("annals_trouble", "1 while something fails, by kind.", []string{"kind"}, nil)
}

// collectTroubles tells what fails. All kinds have a series from the start.
func collectTroubles(out chan<- prometheus.Metric, desc *prometheus.Desc, status *engine.Status) {
	var lasts [engine.NumTroubleKinds]float64
	for _, t := range status.Troubles {
		lasts[t.Kind] = 1
	}
	for kind, is := range lasts {
		out <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, is, engine.TroubleKind(kind).String())
	}
}
