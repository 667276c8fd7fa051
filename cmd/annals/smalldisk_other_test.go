//go:build !linux

package main

import "testing"

func smallDisk(t *testing.T, _ int) string {
	t.Skip("a small file system is made on Linux only")
	return ""
}
