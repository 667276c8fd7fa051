package history

import "testing"

// wrong are histories that no correct log can have, one at least for every rule, and what they break.
var wrong = map[string]struct {
	rules []Rule
	play  func(*scene)
}{
	// Nothing lost, nothing invented.
	"an acknowledged append is lost": {[]Rule{RuleLost}, func(s *scene) {
		s.append(10, 11, 0, "k=a")
	}},
	"half of an acknowledged batch is lost": {[]Rule{RuleLost}, func(s *scene) {
		s.append(10, 11, 0, "k=a", "l=b")
		s.final("k", "0=a")
	}},
	"half of an unknown batch is there": {[]Rule{RuleAtomic}, func(s *scene) {
		s.unknown(10, "k=a", "l=b")
		s.final("l", "1=b")
	}},
	"a record that was read is lost": {[]Rule{RuleLinear, RuleLost, RulePrefix}, func(s *scene) {
		s.unknown(10, "k=a")
		s.scan(20, 21, "k", 0, 1, "0=a")
	}},
	"a record that a follower got is lost": {[]Rule{RuleLost, RuleStream}, func(s *scene) {
		s.unknown(10, "k=a")
		s.follow(20, 30, k, "k:0=a")
	}},
	"a record that a follower got behind all others is lost": {[]Rule{RuleLost, RuleStream}, func(s *scene) {
		s.append(10, 11, 0, "k=a")
		s.unknown(12, "k=b")
		s.follow(20, 30, k, "k:0=a", "k:1=b")
		s.final("k", "0=a")
	}},
	"a refused append is there": {[]Rule{RuleInvented}, func(s *scene) {
		s.refused(10, 11, "k=a")
		s.final("k", "0=a")
	}},
	"a record that nobody appended": {[]Rule{RuleInvented}, func(s *scene) {
		s.final("k", "0=a")
	}},
	"a repeat of an append is there twice": {[]Rule{RuleInvented}, func(s *scene) {
		s.unknown(10, "k=a").Append.Producer = "p"
		s.append(20, 21, 7, "k=a").Append.Producer = "p"
		s.final("k", "0=a", "7=a")
	}},
	"an unknown append is there twice": {[]Rule{RuleInvented}, func(s *scene) {
		s.unknown(10, "k=a")
		s.final("k", "0=a", "1=a")
	}},
	"a zombie acknowledges what is behind the fence": {[]Rule{RuleLost}, func(s *scene) {
		w := s.process(Writer, 20, 21, 0)
		s.append(10, 11, 0, "k=a")
		s.append(30, 31, 100, "k=b").at(w)
		s.append(40, 41, 1, "k=c")
		s.final("k", "0=a", "100=b")
	}},
	"a zombie's late append is there": {[]Rule{RuleLinear, RuleOrder}, func(s *scene) {
		w := s.process(Writer, 20, 21, 0)
		s.append(10, 11, 0, "k=a")
		s.append(30, 31, 100, "k=b").at(w)
		s.unknown(40, "k=c")
		s.final("k", "0=a", "1=c", "100=b")
	}},

	// One record a sequence, whole batches, one order.
	"a sequence is used again": {[]Rule{RuleOrder, RuleReused}, func(s *scene) {
		s.append(10, 11, 0, "k=a").Append.Memory = true // lost, but its sequence was told
		s.append(20, 21, 0, "l=b")
		s.final("l", "0=b")
	}},
	"a sequence is given twice to appends that are both lost": {[]Rule{RuleReused}, func(s *scene) {
		s.append(10, 11, 3, "k=a", "k=b").Append.Memory = true
		s.append(20, 21, 4, "l=c").Append.Memory = true
	}},
	"an append is there with another sequence": {[]Rule{RuleReused}, func(s *scene) {
		s.append(10, 11, 0, "k=a")
		s.final("k", "1=a")
	}},
	"the final log has a sequence twice": {[]Rule{RuleReused}, func(s *scene) {
		s.unknown(10, "k=a")
		s.unknown(10, "l=b")
		s.final("k", "0=a")
		s.final("l", "0=b")
	}},
	"a follower got another record": {[]Rule{RuleReused}, func(s *scene) {
		s.append(10, 11, 0, "k=a")
		s.follow(20, 30, k, "k:0=x")
		s.final("k", "0=a")
	}},
	"the sequences of a batch have a gap": {[]Rule{RuleAtomic}, func(s *scene) {
		s.append(10, 11, 0, "k=a", "l=b")
		s.final("k", "0=a")
		s.final("l", "2=b")
	}},
	"the records of a batch are reordered": {[]Rule{RuleAtomic, RuleReused}, func(s *scene) {
		s.append(10, 11, 0, "k=a", "l=b")
		s.final("k", "1=a")
		s.final("l", "0=b")
	}},
	"the records of a batch have two timestamps": {[]Rule{RuleAtomic}, func(s *scene) {
		s.unknown(10, "k=a", "l=b")
		s.final("k", "0=a")
		s.final("l", "1=b")
		s.Final.Records["l"][0].Timestamp++
	}},
	"timestamps go back": {[]Rule{RuleOrder}, func(s *scene) {
		s.unknown(10, "k=a")
		s.unknown(10, "l=b")
		s.final("k", "0=a")
		s.final("l", "1=b")
		s.Final.Records["k"][0].Timestamp++
	}},
	"a frontier lies within a batch": {[]Rule{RuleAtomic}, func(s *scene) {
		r := s.process(Replica, 1, 2, 0)
		s.append(10, 11, 0, "k=a", "l=b")
		s.scan(20, 21, "m", 0, 1).at(r)
		s.final("k", "0=a")
		s.final("l", "1=b")
	}},
	"a replica shows one half of a batch, then lacks the other": {[]Rule{RuleBack}, func(s *scene) {
		r := s.process(Replica, 1, 2, 0)
		s.append(10, 11, 0, "k=a", "l=b")
		s.count(20, 21, "k", 1).at(r)
		s.count(22, 23, "l", 0).at(r)
		s.final("k", "0=a")
		s.final("l", "1=b")
	}},
	"a list of keys has one half of a batch": {[]Rule{RuleAtomic}, func(s *scene) {
		r := s.process(Replica, 1, 2, 0)
		s.append(10, 11, 0, "k=a", "l=b")
		s.keys(20, 21, "k").at(r)
		s.final("k", "0=a")
		s.final("l", "1=b")
	}},
	"an append goes before one of another key that was acknowledged": {[]Rule{RuleOrder}, func(s *scene) {
		s.append(10, 11, 1, "k=a")
		s.append(20, 21, 0, "l=b")
		s.final("k", "1=a")
		s.final("l", "0=b")
	}},
	"an append goes before what a replica had shown": {[]Rule{RuleOrder}, func(s *scene) {
		r := s.process(Replica, 1, 2, 0)
		s.unknown(10, "k=a")
		s.count(20, 21, "k", 1).at(r)
		s.append(30, 31, 0, "l=b")
		s.final("k", "1=a")
		s.final("l", "0=b")
	}},
	"a condition is accepted that does not hold": {[]Rule{RuleLinear, RuleOrder}, func(s *scene) {
		s.append(10, 11, 0, "k=a")
		s.append(20, 21, 1, "k=b").Append.ExpectedNext = []KeySequence{{"k", 0}}
		s.final("k", "0=a", "1=b")
	}},
	"two that expect the same are accepted": {[]Rule{RuleLinear, RuleOrder}, func(s *scene) {
		s.append(10, 30, 0, "k=a").Append.ExpectedNext = []KeySequence{{"k", 0}}
		s.unknown(10, "k=b").Append.ExpectedNext = []KeySequence{{"k", 0}}
		s.final("k", "0=a", "1=b")
	}},
	"a condition of another key is accepted that does not hold": {[]Rule{RuleLinear, RuleOrder}, func(s *scene) {
		s.append(10, 11, 0, "k=a")
		s.append(20, 21, 1, "l=b").Append.ExpectedNext = []KeySequence{{"k", 0}}
		s.final("k", "0=a")
		s.final("l", "1=b")
	}},
	"an append is refused for an old record": {[]Rule{RuleLinear, RuleStale}, func(s *scene) {
		s.append(10, 11, 0, "k=a")
		s.append(12, 13, 1, "k=b")
		o := s.refused(20, 21, "k=c")
		o.Append.ExpectedNext, o.Append.Conflict = []KeySequence{{"k", 0}}, &KeySequence{"k", 0}
		s.final("k", "0=a", "1=b")
	}},
	"an append is refused for what it does not exclude": {[]Rule{RuleOrder}, func(s *scene) {
		s.append(10, 11, 0, "k=a")
		o := s.refused(20, 21, "k=c")
		o.Append.ExpectedNext, o.Append.Conflict = []KeySequence{{"k", 1}}, &KeySequence{"k", 0}
		s.final("k", "0=a")
	}},
	"an append is refused for a record that vanishes": {[]Rule{RuleLinear, RuleLost}, func(s *scene) {
		s.append(10, 11, 0, "k=a").Append.Memory = true
		o := s.refused(20, 21, "k=c")
		o.Append.ExpectedNext, o.Append.Conflict = []KeySequence{{"k", 0}}, &KeySequence{"k", 0}
	}},

	// The current writer.
	"the writer's scan lacks what was acknowledged": {[]Rule{RuleLinear, RuleStale}, func(s *scene) {
		s.append(10, 11, 0, "k=a")
		s.append(12, 13, 1, "k=b")
		s.scan(20, 21, "k", 0, 1, "0=a")
		s.final("k", "0=a", "1=b")
	}},
	"the writer's count lacks what was acknowledged": {[]Rule{RuleLinear, RuleStale}, func(s *scene) {
		s.append(10, 11, 0, "k=a")
		s.count(20, 21, "k", 0)
		s.final("k", "0=a")
	}},
	"the writer's last record is not the last": {[]Rule{RuleLinear, RuleStale}, func(s *scene) {
		s.append(10, 11, 0, "k=a", "k=b")
		s.append(12, 13, 2, "k=c")
		s.scan(20, 21, "k", 0, 2, "1=b").Scan.Last = 1
		s.final("k", "0=a", "1=b", "2=c")
	}},
	"the writer's last records are fewer than asked for, and than there are": {[]Rule{RuleLinear, RulePrefix}, func(s *scene) {
		s.append(10, 11, 0, "k=a", "k=b")
		s.scan(20, 21, "k", 0, 2, "1=b").Scan.Last = 3
		s.final("k", "0=a", "1=b")
	}},
	"the writer's keys lack one that was acknowledged": {[]Rule{RuleStale}, func(s *scene) {
		s.append(10, 11, 0, "k=a")
		s.append(12, 13, 1, "l=b")
		s.keys(20, 21, "k")
		s.final("k", "0=a")
		s.final("l", "1=b")
	}},
	"the writer shows a record, then does not": {[]Rule{RuleLinear, RuleStale}, func(s *scene) {
		s.unknown(10, "k=a")
		s.count(20, 21, "k", 1)
		s.count(22, 23, "k", 0)
		s.final("k", "0=a")
	}},
	"the writer shows a later record of one key, then lacks an earlier one of another": {[]Rule{RuleStale}, func(s *scene) {
		s.unknown(10, "l=b")
		s.unknown(10, "k=a")
		s.count(20, 21, "k", 1)
		s.count(22, 23, "l", 0)
		s.final("l", "0=b")
		s.final("k", "1=a")
	}},
	"a new writer lacks what the one before it acknowledged": {[]Rule{RuleLinear, RuleStale}, func(s *scene) {
		s.append(10, 11, 0, "k=a")
		w := s.process(Writer, 20, 21, 0)
		s.count(30, 31, "k", 0).at(w)
		s.final("k", "0=a")
	}},
	"a new writer lacks what was acknowledged, after another that died before it was ready": {[]Rule{RuleLinear, RuleStale}, func(s *scene) {
		s.append(10, 11, 0, "k=a")
		s.process(Writer, 12, 0, 15)
		w := s.process(Writer, 20, 21, 0)
		s.count(30, 31, "k", 0).at(w)
		s.final("k", "0=a")
	}},
	"the writer lacks an append that was acknowledged, and is again later": {[]Rule{RuleLinear, RuleStale}, func(s *scene) {
		s.append(10, 11, 0, "k=a").Append.Producer = "p"
		s.count(20, 21, "k", 0)
		s.append(30, 31, 0, "k=a").Append.Producer = "p"
		s.final("k", "0=a")
	}},
	"a condition without records is accepted that does not hold": {[]Rule{RuleLinear, RuleStale}, func(s *scene) {
		s.append(10, 11, 0, "k=a")
		s.append(20, 21, 0).Append.ExpectedNext = []KeySequence{{"k", 0}}
		s.final("k", "0=a")
	}},

	// A prefix everywhere, and no process goes back.
	"a replica's scan has a hole": {[]Rule{RulePrefix}, func(s *scene) {
		r := s.process(Replica, 1, 2, 0)
		s.append(10, 11, 0, "k=a", "k=b", "k=c")
		s.scan(20, 21, "k", 0, 3, "0=a", "2=c").at(r)
		s.final("k", "0=a", "1=b", "2=c")
	}},
	"a replica's scan has a record twice": {[]Rule{RulePrefix}, func(s *scene) {
		r := s.process(Replica, 1, 2, 0)
		s.append(10, 11, 0, "k=a")
		s.scan(20, 21, "k", 0, 1, "0=a", "0=a").at(r)
		s.final("k", "0=a")
	}},
	"a replica's scan goes on behind what it left out": {[]Rule{RulePrefix}, func(s *scene) {
		r := s.process(Replica, 1, 2, 0)
		s.append(10, 11, 0, "k=a")
		s.scan(20, 21, "k", 0, 1).at(r)
		s.final("k", "0=a")
	}},
	"a scan goes on before it began": {[]Rule{RulePrefix}, func(s *scene) {
		r := s.process(Replica, 1, 2, 0)
		s.scan(20, 21, "k", 5, 4).at(r)
		s.append(10, 11, 0, "l=a", "l=b", "l=c", "l=d", "l=e", "l=f")
		s.final("l", "0=a", "1=b", "2=c", "3=d", "4=e", "5=f")
	}},
	"a count is too high": {[]Rule{RulePrefix}, func(s *scene) {
		r := s.process(Replica, 1, 2, 0)
		s.append(10, 11, 0, "k=a")
		s.count(20, 21, "k", 2).at(r)
		s.final("k", "0=a")
	}},
	"a list of keys has one that does not exist": {[]Rule{RulePrefix}, func(s *scene) {
		s.append(10, 11, 0, "k=a")
		s.keys(20, 21, "k", "l")
		s.final("k", "0=a")
	}},
	"a list of keys is out of order": {[]Rule{RulePrefix}, func(s *scene) {
		s.append(10, 11, 0, "k=a", "l=b")
		s.keys(20, 21, "l", "k")
		s.final("k", "0=a")
		s.final("l", "1=b")
	}},
	"a list of keys has one that is not behind the one asked for": {[]Rule{RulePrefix}, func(s *scene) {
		s.append(10, 11, 0, "k=a")
		s.keys(20, 21, "k").Keys.After = new("k")
		s.final("k", "0=a")
	}},
	"a list of keys has one without the prefix": {[]Rule{RulePrefix}, func(s *scene) {
		s.append(10, 11, 0, "k=a")
		s.keys(20, 21, "k").Keys.Prefix = "l"
		s.final("k", "0=a")
	}},
	"a replica goes back": {[]Rule{RuleBack}, func(s *scene) {
		r := s.process(Replica, 1, 2, 0)
		s.append(10, 11, 0, "k=a")
		s.scan(20, 21, "m", 0, 1).at(r)
		s.scan(22, 23, "m", 0, 0).at(r)
		s.final("k", "0=a")
	}},
	"a replica goes back behind what it sent to a follower": {[]Rule{RuleBack}, func(s *scene) {
		r := s.process(Replica, 1, 2, 0)
		s.append(10, 11, 0, "k=a")
		s.follow(20, 30, k, "k:0=a").at(r)
		s.count(40, 41, "k", 0).at(r)
		s.final("k", "0=a")
	}},
	"a frontier is beyond the final one": {[]Rule{RuleBack}, func(s *scene) {
		r := s.process(Replica, 1, 2, 0)
		s.scan(20, 21, "k", 0, 7).at(r)
		s.append(10, 11, 0, "k=a").Append.Memory = true
	}},
	"the final log ends before its records": {[]Rule{RulePrefix}, func(s *scene) {
		s.unknown(10, "k=a")
		s.final("k", "0=a")
		s.Final.Frontier = 0
	}},
	"the final log's key is out of order": {[]Rule{RulePrefix}, func(s *scene) {
		s.append(10, 11, 0, "k=a", "k=b")
		s.final("k", "1=b", "0=a")
	}},

	// Followers.
	"a follower misses a record": {[]Rule{RuleStream}, func(s *scene) {
		s.append(10, 11, 0, "k=a", "k=b")
		s.follow(20, 30, k, "k:1=b")
		s.final("k", "0=a", "1=b")
	}},
	"a follower gets a record twice": {[]Rule{RuleStream}, func(s *scene) {
		s.append(10, 11, 0, "k=a")
		s.follow(20, 30, k, "k:0=a", "k:0=a")
		s.final("k", "0=a")
	}},
	"a follower gets records out of order": {[]Rule{RuleStream}, func(s *scene) {
		s.append(10, 11, 0, "k=a", "k=b")
		s.follow(20, 30, k, "k:1=b", "k:0=a")
		s.final("k", "0=a", "1=b")
	}},
	"a follower is told that all came, and one did not": {[]Rule{RuleStream}, func(s *scene) {
		s.append(10, 11, 0, "k=a", "l=b")
		s.follow(20, 30, []Stream{{Prefix: true}}, "l:1=b", "2")
		s.final("k", "0=a")
		s.final("l", "1=b")
	}},
	"a record comes after the word that all had come": {[]Rule{RuleStream}, func(s *scene) {
		s.append(10, 11, 0, "k=a")
		s.follow(20, 30, k, "1", "k:0=a")
		s.final("k", "0=a")
	}},
	"a follower's cursor goes back": {[]Rule{RuleStream}, func(s *scene) {
		s.append(10, 11, 0, "l=a", "l=b")
		s.follow(20, 30, k, "2", "0")
		s.final("l", "0=a", "1=b")
	}},
	"a follower's cursor skips a record": {[]Rule{RuleStream}, func(s *scene) {
		s.append(10, 11, 0, "k=a", "k=b")
		s.follow(20, 30, k, "k:0=a").Follow.Items[0].Next = 2
		s.final("k", "0=a", "1=b")
	}},
	"a follower gets a key that it does not follow": {[]Rule{RuleStream}, func(s *scene) {
		s.append(10, 11, 0, "l=a")
		s.follow(20, 30, k, "l:0=a")
		s.final("l", "0=a")
	}},
	"a record is left out between two connections": {[]Rule{RuleStream}, func(s *scene) {
		s.append(10, 11, 0, "k=a", "k=b", "k=c")
		s.follow(20, 30, k, "k:0=a")
		s.follow(31, 40, []Stream{{Key: "k", Start: 2}}, "k:2=c")
		s.final("k", "0=a", "1=b", "2=c")
	}},
	"a record comes again by the next connection": {[]Rule{RuleStream}, func(s *scene) {
		s.append(10, 11, 0, "k=a")
		s.follow(20, 30, k, "k:0=a")
		s.follow(31, 40, k, "k:0=a")
		s.final("k", "0=a")
	}},

	// Producers.
	"a number is taken behind a gap": {[]Rule{RuleNumbers}, func(s *scene) {
		s.append(10, 11, 0, "k=a").Append.Producer = "p"
		o := s.append(20, 21, 1, "k=b").Append
		o.Producer, o.Number = "p", 2
		s.final("k", "0=a", "1=b")
	}},
	"a number is taken before the one before it": {[]Rule{RuleNumbers}, func(s *scene) {
		o := s.append(10, 21, 0, "k=a").Append
		o.Producer, o.Number = "p", 1
		s.append(10, 21, 1, "k=b").Append.Producer = "p"
		s.final("k", "0=a", "1=b")
	}},
	"an acknowledged number is forgotten": {[]Rule{RuleNumbers}, func(s *scene) {
		s.append(10, 11, 0, "k=a").Append.Producer = "p"
		o := s.append(12, 13, 1, "k=b").Append
		o.Producer, o.Number = "p", 1
		o = s.refused(20, 21, "k=c").Append
		o.Producer, o.Number, o.LastNumber = "p", 2, new(uint64)
		s.final("k", "0=a", "1=b")
	}},
	"the next number is refused": {[]Rule{RuleNumbers}, func(s *scene) {
		s.append(10, 11, 0, "k=a").Append.Producer = "p"
		o := s.refused(20, 21, "k=c").Append
		o.Producer, o.Number, o.LastNumber = "p", 1, new(uint64)
		s.final("k", "0=a")
	}},
	"a number is refused for one that nobody sent": {[]Rule{RuleNumbers}, func(s *scene) {
		o := s.refused(20, 21, "k=c").Append
		o.Producer, o.Number, o.LastNumber = "p", 9, new(uint64)
	}},
	"a repeat is not known again": {[]Rule{RuleNumbers}, func(s *scene) {
		s.append(10, 11, 0, "k=a").Append.Producer = "p"
		o := s.refused(20, 21, "k=a").Append
		o.Producer, o.LastNumber = "p", new(uint64)
		s.final("k", "0=a")
	}},
	"a repeat is answered with another sequence": {[]Rule{RuleReused}, func(s *scene) {
		s.append(10, 11, 0, "k=a").Append.Producer = "p"
		s.append(20, 21, 1, "k=a").Append.Producer = "p"
		s.final("k", "0=a")
	}},

	// Cursors.
	"an acknowledged cursor is lost": {[]Rule{RuleCursors}, func(s *scene) {
		s.setCursor(10, 11, 5, 5)
	}},
	"a cursor goes back at the writer": {[]Rule{RuleCursors}, func(s *scene) {
		s.setCursor(10, 11, 3, 3)
		s.setCursor(12, 13, 5, 5)
		s.getCursor(20, 21, 3)
		s.Final.Cursors["u"] = map[string]uint64{"k": 5}
	}},
	"a cursor goes back at a replica": {[]Rule{RuleCursors}, func(s *scene) {
		r := s.process(Replica, 1, 2, 0)
		s.setCursor(10, 11, 5, 5)
		s.getCursor(20, 21, 5).at(r)
		s.getCursor(22, 23, 0).at(r)
		s.Final.Cursors["u"] = map[string]uint64{"k": 5}
	}},
	"a cursor is set below what a replica has shown": {[]Rule{RuleCursors}, func(s *scene) {
		r := s.process(Replica, 1, 2, 0)
		s.setCursor(10, 0, 5, 0).Outcome = Unknown
		s.getCursor(20, 21, 5).at(r)
		s.setCursor(30, 31, 3, 3)
		s.Final.Cursors["u"] = map[string]uint64{"k": 5}
	}},
	"a cursor is below what was set": {[]Rule{RuleCursors}, func(s *scene) {
		s.setCursor(10, 15, 3, 3)
		s.setCursor(10, 15, 5, 3)
		s.Final.Cursors["u"] = map[string]uint64{"k": 5}
	}},
	"a cursor has a value that nobody set": {[]Rule{RuleCursors}, func(s *scene) {
		s.Final.Cursors["u"] = map[string]uint64{"k": 5}
	}},
	"a cursor has a value before it is set": {[]Rule{RuleCursors}, func(s *scene) {
		s.getCursor(10, 11, 5)
		s.setCursor(20, 21, 5, 5)
		s.Final.Cursors["u"] = map[string]uint64{"k": 5}
	}},

	"a cursor is not answered": {[]Rule{RuleCursors}, func(s *scene) {
		s.setCursor(10, 11, 5, 5).SetCursors.Answer = nil
		s.Final.Cursors["u"] = map[string]uint64{"k": 5}
	}},

	// What cannot be judged.
	"an operation that is none": {[]Rule{RuleWellFormed}, func(s *scene) {
		s.do(10, 11, Operation{})
	}},
	"an operation that is two": {[]Rule{RuleWellFormed}, func(s *scene) {
		s.count(10, 11, "k", 0).Scan = &Scan{Key: "k"}
	}},
	"an answer before the question": {[]Rule{RuleWellFormed}, func(s *scene) {
		s.count(11, 10, "k", 0)
	}},
	"a value is used twice": {[]Rule{RuleWellFormed}, func(s *scene) {
		s.append(10, 11, 0, "k=a")
		s.unknown(12, "k=a")
		s.final("k", "0=a")
	}},
	"two appends of one number": {[]Rule{RuleWellFormed}, func(s *scene) {
		s.unknown(10, "k=a").Append.Producer = "p"
		s.unknown(20, "k=b").Append.Producer = "p"
	}},
	"there is no final log": {[]Rule{RuleWellFormed}, func(s *scene) {
		s.History.Final = nil
	}},
	"an answer of nobody": {[]Rule{RuleWellFormed}, func(s *scene) {
		s.count(10, 11, "k", 0).at(7)
	}},
}

func TestWrong(t *testing.T) {
	for name, w := range wrong {
		t.Run(name, func(t *testing.T) {
			s := newScene()
			w.play(s)
			requireBroken(t, &s.History, w.rules...)
		})
	}
}

// Every rule has a history that breaks it.
func TestEveryRuleCanBreak(t *testing.T) {
	broken := make(map[Rule]bool)
	for _, w := range wrong {
		for _, r := range w.rules {
			broken[r] = true
		}
	}
	for _, r := range []Rule{RuleWellFormed, RuleLost, RuleInvented, RuleReused, RuleAtomic, RuleOrder, RuleLinear, RuleStale, RulePrefix, RuleBack, RuleStream, RuleNumbers, RuleCursors} {
		if !broken[r] {
			t.Errorf("no wrong history breaks %q", r)
		}
	}
}
