package engine

import (
	"fmt"
	"testing"
	"time"
)

// BenchmarkScanGroups scans 1,000 consolidated segments in groups of 64: for a key that one of them holds
// ("sparse"), for one of which each has 10 records ("dense"), and for none ("absent"). Warm: everything is in the
// cache. Cold: nothing is, and a GET takes 2 ms; it reports the GETs of a scan.
func BenchmarkScanGroups(b *testing.B) {
	l := consolidated(b, 1000, 64, func(s int) []string {
		keys := []string{fmt.Sprint("own", s)}
		for range 10 {
			keys = append(keys, "dense")
		}
		return keys
	})
	for name, c := range map[string]struct {
		key string
		o   ScanOptions
		n   int
	}{
		"sparse":      {"own500", ScanOptions{}, 1},
		"sparse-last": {"own500", ScanOptions{Last: 10}, 1},
		"absent":      {"nobody", ScanOptions{}, 0},
		"dense":       {"dense", ScanOptions{}, 10_000},
		"dense-last":  {"dense", ScanOptions{Last: 100}, 100},
	} {
		run := func(b *testing.B, core *core) {
			b.ReportAllocs()
			for b.Loop() {
				n := 0
				it := core.Scan(b.Context(), []byte(c.key), All(), c.o)
				for range it.All() {
					n++
				}
				if n != c.n || it.Err() != nil {
					b.Fatal(n, it.Err())
				}
			}
		}
		b.Run(name+"/warm", func(b *testing.B) {
			core := l.open(l.store, 512<<20)
			scan(b, core, c.key, All(), c.o)
			run(b, core)
			if c.n > 0 {
				b.ReportMetric(float64(c.n), "records")
			}
		})
		b.Run(name+"/cold", func(b *testing.B) {
			m := l.metered()
			m.delay = 2 * time.Millisecond
			run(b, l.open(m, 1))
			meta, data := m.gets()
			b.ReportMetric(float64(meta)/float64(b.N), "meta-GETs")
			b.ReportMetric(float64(data)/float64(b.N), "data-GETs")
		})
	}
}

// BenchmarkCountGroups counts a key of which each of 1,000 consolidated segments has 10 records.
func BenchmarkCountGroups(b *testing.B) {
	l := consolidated(b, 1000, 64, func(int) []string {
		return []string{"k", "k", "k", "k", "k", "k", "k", "k", "k", "k"}
	})
	core := l.open(l.store, 512<<20)
	b.ReportAllocs()
	for b.Loop() {
		if n, err := core.Count(b.Context(), []byte("k"), All()); n != 10_000 || err != nil {
			b.Fatal(n, err)
		}
	}
}
