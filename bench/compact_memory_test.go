package bench

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
)

// What is in use while the watch looks is in its peak, and what was there before is not.
func TestMemoryWatch(t *testing.T) {
	const size = 64 << 20
	before := make([]byte, size)
	m := watchMemory(nil, false)
	during := make([]byte, size)
	peak := m.stop()
	runtime.KeepAlive(before)
	runtime.KeepAlive(during)
	require.Greater(t, peak, uint64(size/2))
	require.Less(t, peak, uint64(3*size/2))
}
