package engine

// subscription is one root of a Follower: a key, or a prefix that no other prefix of the
// Follower covers.
//
// It is guarded by the hub's lock, except while it is being read: then next, and what the
// prefix keeps for its reader, belong to the goroutine in Next.
type subscription struct {
	f     *Follower
	topic *topic
	// next is a cursor: every record below it that the subscription wants was returned.
	next uint64
	// link and back are its place in the topic's list while a key is armed. link alone is
	// its place in the ready list, or among those that are being read.
	link, back *subscription
	prefix     *prefix // nil for a key
	state      subscriptionState
}

type subscriptionState uint8

const (
	armed subscriptionState = iota // a record has to come first
	ready                          // in the follower's ready list
	taken                          // by Next, from that list
	ended                          // not registered any more
)

// peer returns the next subscription in the list of a topic.
func (s *subscription) peer() *subscription {
	if s.prefix != nil {
		return s.prefix.link
	}
	return s.link
}

// arm makes the next record of the key find the subscription.
func (t *topic) arm(s *subscription) {
	s.state = armed
	s.back, s.link = nil, t.first
	if t.first != nil {
		t.first.back = s
	}
	t.first = s
}

// unlink takes a subscription of a key out of the list of the armed.
func (t *topic) unlink(s *subscription) {
	if s.back != nil {
		s.back.link = s.link
	} else {
		t.first = s.link
	}
	if s.link != nil {
		s.link.back = s.back
	}
	s.link, s.back = nil, nil
}

// linkPrefix makes records with the prefix find the subscription, whatever its state.
func (t *topic) linkPrefix(s *subscription) {
	s.prefix.link = t.first
	if t.first != nil {
		t.first.prefix.back = s
	}
	t.first = s
}

func (t *topic) unlinkPrefix(s *subscription) {
	p := s.prefix
	if p.back != nil {
		p.back.prefix.link = p.link
	} else {
		t.first = p.link
	}
	if p.link != nil {
		p.link.prefix.back = p.back
	}
	p.link, p.back = nil, nil
}
