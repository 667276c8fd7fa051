package main

import (
	"fmt"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// smallDisk returns a folder on a file system of so many bytes. Where that takes a permission that is missing the test is skipped.
func smallDisk(t *testing.T, bytes int) string {
	t.Helper()
	folder := t.TempDir()
	if err := syscall.Mount("annals-test", folder, "tmpfs", 0, fmt.Sprintf("size=%d", bytes)); err != nil {
		t.Skipf("a small file system needs to be mounted, which takes root: %v", err)
	}
	t.Cleanup(func() { require.NoError(t, syscall.Unmount(folder, syscall.MNT_DETACH)) })
	return folder
}
