package bench

import (
	"bytes"
	"os"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Machine says where a benchmark ran. What could not be found out is empty.
type Machine struct {
	CPU        string `json:"cpu,omitempty"`
	Cores      int    `json:"cores"`
	Memory     uint64 `json:"memory_bytes,omitempty"`
	GOMAXPROCS int    `json:"gomaxprocs"`
	Go         string `json:"go"`
	OS         string `json:"os"`
}

func thisMachine() Machine {
	m := Machine{Cores: runtime.NumCPU(), GOMAXPROCS: runtime.GOMAXPROCS(0), Go: runtime.Version(), OS: runtime.GOOS + "/" + runtime.GOARCH}
	m.CPU = procField("/proc/cpuinfo", "model name")
	if kib, ok := strings.CutSuffix(procField("/proc/meminfo", "MemTotal"), " kB"); ok {
		if n, err := strconv.ParseUint(kib, 10, 54); err == nil {
			m.Memory = n << 10
		}
	}
	return m
}

// procField returns what follows "name:" in a file of Linux's /proc, or nothing.
func procField(file, name string) string {
	text, err := os.ReadFile(file)
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(text)) {
		if key, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == name {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// residentBytes returns the memory that this process occupies now; 0 where that is not known.
func residentBytes() uint64 {
	text, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0
	}
	fields := bytes.Fields(text)
	if len(fields) < 2 {
		return 0
	}
	pages, err := strconv.ParseUint(string(fields[1]), 10, 48)
	if err != nil {
		return 0
	}
	return pages * uint64(os.Getpagesize())
}

// CPUTime returns the processor time that this process has used.
func CPUTime() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
