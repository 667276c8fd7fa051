package bench

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"
)

// WriteText writes the report for people.
func (rep *Report) WriteText(w io.Writer) error {
	var t text
	t.line("workload", rep.Workload+rep.ended())
	t.line("machine", rep.Machine.String())
	loop := ""
	if rep.Loop != "none" {
		loop = rep.Loop + " loop, "
	}
	t.line("measured", fmt.Sprintf("%s, %sseed %d", formatSeconds(rep.Seconds), loop, rep.Seed))
	if rep.Loop == "closed" {
		t.line("", "closed loop: an operation that is slow delays the next ones, so that these latencies hide stalls")
	}
	for _, row := range rep.rows {
		if l, ok := row.value.(Latency); ok {
			t.line(row.label, l.String())
			continue
		}
		t.line(row.label, formatValue(row.value, row.unit))
	}
	of := ""
	if rep.client {
		of = ", client"
	}
	t.line("processor"+of, fmt.Sprintf("%.2f s, %.2f of %d cores", rep.CPUSeconds, ratio(rep.CPUSeconds, rep.Seconds), rep.Machine.Cores))
	t.line("memory"+of, fmt.Sprintf("%s resident, %s heap, at most", formatBytes(float64(rep.Memory.PeakRSS)), formatBytes(float64(rep.Memory.PeakHeap))))
	if s := rep.Store; s != nil {
		t.line("store", fmt.Sprintf("%s; %s written, %s read", counts(s.Requests), formatBytes(float64(s.BytesWritten)), formatBytes(float64(s.BytesRead))))
		if len(s.Mean) > 0 {
			t.line("store, mean time", meanTimes(s.Mean))
		}
		if len(s.Failed) > 0 {
			t.line("store, failed", counts(s.Failed))
		}
	}
	if rep.Cost != nil {
		rep.Cost.write(&t)
	}
	for _, f := range rep.Failures {
		t.line("FAILED", f)
	}
	for _, v := range rep.Violations {
		t.line("VIOLATION", v)
	}
	_, err := io.WriteString(w, t.String())
	return err
}

func (rep *Report) ended() string {
	if rep.Interrupted {
		return ", interrupted"
	}
	return ""
}

// String describes the machine in one line.
func (m Machine) String() string {
	cpu := m.CPU
	if cpu == "" {
		cpu = "unknown processor"
	}
	return fmt.Sprintf("%s, %d cores, %s, %s, %s", cpu, m.Cores, formatBytes(float64(m.Memory)), m.OS, m.Go)
}

// String writes a latency in one line.
func (l Latency) String() string {
	if l.Count == 0 {
		return "none"
	}
	return fmt.Sprintf("p50 %s  p90 %s  p99 %s  p99.9 %s  max %s  mean %s  (%d)", formatMicros(l.P50), formatMicros(l.P90),
		formatMicros(l.P99), formatMicros(l.P999), formatMicros(l.Max), formatMicros(int64(l.Mean)), l.Count)
}

// text is lines of a label and what it says, aligned.
type text struct{ rows [][2]string }

func (t *text) line(label, says string) { t.rows = append(t.rows, [2]string{label, says}) }

// maxLabel is where labels stop to widen the report.
const maxLabel = 32

func (t *text) String() string {
	width := 0
	for _, r := range t.rows {
		width = max(width, min(len(r[0]), maxLabel))
	}
	var b strings.Builder
	for _, r := range t.rows {
		// What has several lines stays in its column.
		says := strings.ReplaceAll(strings.TrimRight(r[1], "\n"), "\n", "\n"+strings.Repeat(" ", width+2))
		fmt.Fprintf(&b, "%-*s  %s\n", width, r[0], says)
	}
	return b.String()
}

func formatValue(v any, unit Unit) string {
	f, number := toFloat(v)
	switch {
	case !number:
		return fmt.Sprint(v)
	case unit == Bytes:
		return formatBytes(f)
	case unit == BytesPerSecond:
		return fmt.Sprintf("%.2f MB/s", f/1e6)
	case unit == PerSecond:
		return formatNumber(f) + "/s"
	case unit == Seconds:
		return formatSeconds(f)
	case unit == Ratio:
		return fmt.Sprintf("%.2f", f)
	case unit == Share:
		return fmt.Sprintf("%.1f%%", 100*f)
	}
	return formatNumber(f)
}

func toFloat(v any) (float64, bool) {
	switch v := v.(type) {
	case float64:
		return v, true
	case int:
		return float64(v), true
	case int64:
		return float64(v), true
	case uint64:
		return float64(v), true
	}
	return 0, false
}

// formatNumber writes whole numbers whole, and others with three digits at least.
func formatNumber(f float64) string {
	switch {
	case f == float64(int64(f)) || f >= 1000 || f <= -1000:
		return fmt.Sprintf("%.0f", f)
	case f >= 10:
		return fmt.Sprintf("%.1f", f)
	}
	return fmt.Sprintf("%.3f", f)
}

func formatBytes(b float64) string {
	units := []string{"B", "KiB", "MiB", "GiB", "TiB", "PiB"}
	i := 0
	for b >= 1024 && i < len(units)-1 {
		b /= 1024
		i++
	}
	if i == 0 {
		return fmt.Sprintf("%.0f B", b)
	}
	return fmt.Sprintf("%.1f %s", b, units[i])
}

func formatSeconds(s float64) string { return formatMicros(int64(s * 1e6)) }

// formatMicros writes a time with three digits.
func formatMicros(us int64) string {
	d := time.Duration(us) * time.Microsecond
	switch {
	case d < time.Millisecond:
		return fmt.Sprintf("%dus", us)
	case d < 10*time.Millisecond:
		return fmt.Sprintf("%.2fms", float64(us)/1e3)
	case d < time.Second:
		return fmt.Sprintf("%.1fms", float64(us)/1e3)
	case d < time.Minute:
		return fmt.Sprintf("%.2fs", d.Seconds())
	}
	return d.Round(100 * time.Millisecond).String()
}

func ratio(a, b float64) float64 {
	if b == 0 {
		return 0
	}
	return a / b
}

// meanTimes writes how long requests took, by operation.
func meanTimes(m map[string]int64) string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(m)) {
		parts = append(parts, name+" "+formatMicros(m[name]))
	}
	return strings.Join(parts, ", ")
}

// counts writes what a map counts, by name.
func counts(m map[string]uint64) string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(m)) {
		parts = append(parts, fmt.Sprintf("%d %s", m[name], name))
	}
	if len(parts) == 0 {
		return "nothing asked"
	}
	return strings.Join(parts, ", ")
}
