//go:build !linux

package server

import "net"

// dropUnacknowledged does what is possible on Linux only.
func dropUnacknowledged(net.Conn) {}
