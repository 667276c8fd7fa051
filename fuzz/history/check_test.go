package history

import "testing"

var k = []Stream{{Key: "k"}}

// Histories that a correct log can have, though they look odd.
func TestRight(t *testing.T) {
	for name, play := range map[string]func(*scene){
		"nothing": func(*scene) {},
		"appends and reads that overlap": func(s *scene) {
			s.append(10, 40, 0, "k=a")
			s.scan(11, 20, "k", 0, 1, "0=a") // before the answer to the append
			s.scan(12, 50, "k", 0, 0)        // asked before
			s.final("k", "0=a")
		},
		"an unknown append that takes effect late": func(s *scene) {
			s.unknown(10, "k=a")
			s.append(20, 30, 0, "k=b")
			s.count(31, 32, "k", 1)
			s.count(33, 34, "k", 2)
			s.final("k", "0=b", "1=a")
		},
		"an unknown append that never does": func(s *scene) {
			s.unknown(10, "k=a", "l=b")
			s.append(20, 30, 7, "k=c")
			s.final("k", "7=c")
		},
		"an append from memory that a crash lost, and the sequence is not used again": func(s *scene) {
			s.append(10, 11, 5, "k=a").Append.Memory = true
			s.append(20, 21, 99, "k=b")
			s.final("k", "99=b")
		},
		"an append from memory that nobody sees at once": func(s *scene) {
			s.append(10, 11, 0, "k=a").Append.Memory = true
			s.count(12, 13, "k", 0)
			s.count(14, 15, "k", 1)
			s.final("k", "0=a")
		},
		"a replica that is behind": func(s *scene) {
			r := s.process(Replica, 1, 2, 0)
			s.append(10, 11, 0, "k=a", "l=b")
			s.count(20, 21, "k", 0).at(r)
			s.scan(22, 23, "l", 0, 2, "1=b").at(r)
			s.count(24, 25, "k", 1).at(r)
			s.final("k", "0=a")
			s.final("l", "1=b")
		},
		"two replicas of which one is ahead": func(s *scene) {
			r, q := s.process(Replica, 1, 2, 0), s.process(Replica, 1, 2, 0)
			s.unknown(10, "k=a")
			s.count(20, 21, "k", 1).at(r)
			s.count(22, 23, "k", 0).at(q)
			s.count(24, 25, "k", 0) // and of the writer, which has not heard yet that it landed
			s.final("k", "0=a")
		},
		"a writer that may have been passed answers with less": func(s *scene) {
			w := s.process(Writer, 20, 30, 0)
			s.append(10, 11, 0, "k=a")
			s.append(31, 32, 100, "k=b").at(w)
			s.scan(33, 34, "k", 0, 1, "0=a")
			s.scan(35, 36, "k", 0, 101, "0=a", "100=b").at(w)
			s.final("k", "0=a", "100=b")
		},
		"a page that ends at its limit": func(s *scene) {
			s.append(10, 11, 0, "k=a", "k=b", "k=c")
			s.scan(20, 21, "k", 0, 1, "0=a").Scan.Limit = 1
			s.scan(22, 23, "k", 1, 3, "1=b", "2=c")
			s.scan(24, 25, "k", 0, 3, "1=b", "2=c").Scan.Last = 2
			s.scan(26, 27, "k", 0, 2, "0=a", "1=b").Scan.End = 2
			s.final("k", "0=a", "1=b", "2=c")
		},
		"a number that is sent until there is an answer": func(s *scene) {
			s.unknown(10, "k=a").Append.Producer = "p"
			s.append(20, 21, 0, "k=a").Append.Producer = "p"
			s.append(22, 23, 0, "k=a").Append.Producer = "p"
			s.final("k", "0=a")
		},
		"a number that was refused, and is used for another append": func(s *scene) {
			s.refused(10, 11, "k=a").Append.Producer = "p"
			s.append(20, 21, 0, "k=b").Append.Producer = "p"
			s.final("k", "0=b")
		},
		"a number that a zombie refuses, which has not heard of the one before it": func(s *scene) {
			w := s.process(Writer, 20, 21, 0)
			s.append(10, 11, 0, "k=a").Append.Producer = "p"
			o := s.append(30, 31, 100, "k=b").at(w).Append
			o.Producer, o.Number = "p", 1
			o = s.refused(40, 41, "k=c").Append
			o.Producer, o.Number, o.LastNumber = "p", 2, new(uint64)
			s.final("k", "0=a", "100=b")
		},
		"a follower at a replica that is behind where it begins": func(s *scene) {
			r := s.process(Replica, 1, 2, 0)
			s.append(10, 11, 0, "k=a")
			s.follow(20, 30, []Stream{{Key: "k", Start: 1}}, "1").at(r)
			s.count(40, 41, "k", 0).at(r)
			s.final("k", "0=a")
		},
		"conditions": func(s *scene) {
			s.append(10, 11, 0, "k=a").Append.ExpectedNext = []KeySequence{{"k", 0}}
			o := s.refused(20, 21, "k=b")
			o.Append.ExpectedNext, o.Append.Conflict = []KeySequence{{"k", 0}}, &KeySequence{"k", 0}
			s.append(30, 31, 1, "l=c").Append.ExpectedNext = []KeySequence{{"k", 1}, {"l", 0}}
			s.append(32, 33, 0).Append.ExpectedNext = []KeySequence{{"k", 1}}
			s.final("k", "0=a")
			s.final("l", "1=c")
		},
		"a follower that connects again": func(s *scene) {
			s.append(10, 11, 0, "k=a", "l=b")
			s.append(12, 13, 2, "k=c")
			s.follow(20, 30, k, "k:0=a", "2")
			s.follow(31, 40, []Stream{{Key: "k", Start: 2}}, "k:2=c", "3")
			s.final("k", "0=a", "2=c")
			s.final("l", "1=b")
		},
		"a follower of a prefix that gets some again": func(s *scene) {
			all := []Stream{{Prefix: true}}
			s.append(10, 11, 0, "k=a", "l=b")
			s.follow(20, 30, all, "l:1=b")
			s.follow(31, 40, all, "l:1=b", "k:0=a", "2")
			s.final("k", "0=a")
			s.final("l", "1=b")
		},
		"keys": func(s *scene) {
			s.append(10, 11, 0, "k=a", "l=b")
			s.keys(20, 21, "k", "l")
			s.keys(22, 23, "k").Keys.More = true
			s.final("k", "0=a")
			s.final("l", "1=b")
		},
		"cursors": func(s *scene) {
			s.setCursor(10, 11, 5, 5)
			s.setCursor(12, 20, 3, 5)
			s.getCursor(12, 13, 5)
			s.setCursor(30, 0, 9, 9).Outcome = Unknown
			s.getCursor(31, 32, 5)
			s.getCursor(33, 34, 9)
			s.Final.Cursors["u"] = map[string]uint64{"k": 9}
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene()
			play(s)
			requireRight(t, &s.History)
		})
	}
}
