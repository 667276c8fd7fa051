package compaction

// loserTree finds the least of several inputs with one comparison a level after that one has
// moved on (a tournament of losers; Knuth, The Art of Computer Programming, 5.4.1).
type loserTree struct {
	inputs []*input
	// nodes[i] is the input that lost at the inner node i, where node i has the children 2i and 2i+1
	// and input j is the leaf len(inputs)+j. nodes[0] is the winner of all.
	nodes []player
}

// player is an input with a copy of what usually decides.
type player struct {
	sorted uint64
	in     *input
}

func (p player) less(o player) bool {
	return p.sorted < o.sorted || p.sorted == o.sorted && p.in.less(o.in)
}

func newLoserTree(inputs []*input) *loserTree {
	t := &loserTree{inputs: inputs, nodes: make([]player, max(1, len(inputs)))}
	if len(inputs) > 0 {
		t.nodes[0] = t.play(1)
	}
	return t
}

// play fills the nodes at and below i and returns the winner among their leaves.
func (t *loserTree) play(i int) player {
	if n := len(t.inputs); i >= n {
		return player{t.inputs[i-n].sorted, t.inputs[i-n]}
	}
	a, b := t.play(2*i), t.play(2*i+1)
	if b.less(a) {
		a, b = b, a
	}
	t.nodes[i] = b
	return a
}

// least returns the least input, or nil if all have ended.
func (t *loserTree) least() *input {
	if in := t.nodes[0].in; in != nil && !in.ended {
		return in
	}
	return nil
}

// moved must be called when the least input has moved on.
func (t *loserTree) moved() {
	in := t.nodes[0].in
	p := player{in.sorted, in}
	for i := (len(t.inputs) + in.leaf) / 2; i > 0; i /= 2 {
		if n := &t.nodes[i]; n.less(p) {
			*n, p = p, *n
		}
	}
	t.nodes[0] = p
}
