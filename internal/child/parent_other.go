//go:build !linux

package child

import "os/exec"

// dieWithParent does nothing where the kernel has no such service.
func dieWithParent(*exec.Cmd) {}
