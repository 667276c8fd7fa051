package main

import "math"

// seqRange is what the flags of a listing say about the sequences that it is of.
type seqRange struct {
	from, to uint64 // to is exclusive; 0: no end
}

func (r *seqRange) addFlags(s *settings, from, to string) {
	addFlag(s, "from", "sequence", "0", &r.from, parseCount(0, math.MaxUint64), from)
	addFlag(s, "to", "sequence", "", &r.to, parseCount(1, math.MaxUint64), to+" (default: all)")
}

func (r *seqRange) check(s *settings) {
	if s.changed("to") && r.from > r.to {
		s.fault("--from %d is above --to %d", r.from, r.to)
	}
}
