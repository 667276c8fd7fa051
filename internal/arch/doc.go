// Package arch holds no code: its tests read the source of the whole module and
// check who may import whom, and that protocol code can be simulated.
package arch
