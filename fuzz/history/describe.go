package history

import (
	"fmt"
	"strings"
)

// kind names what was asked; empty unless it is exactly one thing.
func (o *Operation) kind() string {
	name, n := "", 0
	for _, k := range []struct {
		name string
		is   bool
	}{
		{"append", o.Append != nil}, {"scan", o.Scan != nil}, {"count", o.Count != nil}, {"keys", o.Keys != nil},
		{"follow", o.Follow != nil}, {"set cursors", o.SetCursors != nil}, {"get cursors", o.GetCursors != nil},
	} {
		if k.is {
			name = k.name
			n++
		}
	}
	if n != 1 {
		return ""
	}
	return name
}

// describe writes one operation on a line.
func (h *History) describe(i int) string {
	o := &h.Operations[i]
	who := "somebody"
	if o.Process > 0 && o.Process <= len(h.Processes) {
		p := h.Processes[o.Process-1]
		who = fmt.Sprintf("%s %d (%s)", p.Role, p.ID, p.Name)
	}
	outcome := o.Outcome
	if outcome == Pending {
		outcome = "pending"
	}
	text := fmt.Sprintf("%s of %s, %v to %v, %s: %s", o.Client, who, o.Call, o.Return, outcome, o.text())
	if o.Note != "" {
		text += fmt.Sprintf(" (%.200s)", o.Note)
	}
	return text
}

// text says what was asked and answered.
func (o *Operation) text() string {
	switch {
	case o.Append != nil:
		return o.Append.text(o.Outcome)
	case o.Scan != nil:
		s := o.Scan
		return fmt.Sprintf("scan %q from %d to %d, last %d, limit %d -> %d records%s, next %d", s.Key, s.Start, s.End, s.Last, s.Limit, len(s.Records), ends(s.Records), s.Next)
	case o.Count != nil:
		return fmt.Sprintf("count %q from %d to %d -> %d", o.Count.Key, o.Count.Start, o.Count.End, o.Count.Count)
	case o.Keys != nil:
		return fmt.Sprintf("keys with prefix %q -> %.200q, more %t", o.Keys.Prefix, o.Keys.Keys, o.Keys.More)
	case o.Follow != nil:
		return fmt.Sprintf("follow as %s %.200s -> %d items", o.Follow.Name, fmt.Sprint(o.Follow.Streams), len(o.Follow.Items))
	case o.SetCursors != nil:
		return fmt.Sprintf("set cursors of %s: %.200s -> %.200s", o.SetCursors.Consumer, fmt.Sprint(o.SetCursors.Cursors), fmt.Sprint(o.SetCursors.Answer))
	case o.GetCursors != nil:
		return fmt.Sprintf("get cursors of %s: %.200q -> %.200s", o.GetCursors.Consumer, o.GetCursors.Keys, fmt.Sprint(o.GetCursors.Answer))
	}
	return "nothing"
}

func (a *Append) text(outcome Outcome) string {
	var b strings.Builder
	fmt.Fprintf(&b, "append %.200s", fmt.Sprint(a.Records))
	if a.Producer != "" {
		fmt.Fprintf(&b, " as number %d of %s", a.Number, a.Producer)
	}
	if len(a.ExpectedNext) > 0 {
		fmt.Fprintf(&b, " expecting %.200s", fmt.Sprint(a.ExpectedNext))
	}
	if a.Memory {
		b.WriteString(" from memory")
	}
	switch {
	case outcome == OK:
		fmt.Fprintf(&b, " -> sequence %d, timestamp %d", a.First, a.Timestamp)
	case a.Conflict != nil:
		fmt.Fprintf(&b, " -> %q has %d", a.Conflict.Key, a.Conflict.Sequence)
	case a.LastNumber != nil:
		fmt.Fprintf(&b, " -> the last number is %d", *a.LastNumber)
	}
	return b.String()
}

func ends(recs []Record) string {
	if len(recs) == 0 {
		return ""
	}
	return fmt.Sprintf(" (%d to %d)", recs[0].Sequence, recs[len(recs)-1].Sequence)
}
