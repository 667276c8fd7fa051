package history_test

import (
	"fmt"

	"github.com/annalsdb/annals/fuzz/history"
)

// A server acknowledges an append, and does not count it afterwards.
func Example() {
	r := history.NewRecorder(history.Limits{})
	server := r.Started(history.Writer, "first") // before it is executed
	r.Ready(server)                              // it answered

	call, err := r.Begin(history.Operation{Client: "a", Process: server, Append: &history.Append{Records: []history.KeyValue{{Key: "k", Value: "v"}}}})
	if err != nil {
		return // the history is full: it must not be sent
	}
	call.Append.First, call.Append.Timestamp = 0, 1000 // as it was answered
	_ = call.End(history.OK, nil)

	call, err = r.Begin(history.Operation{Client: "b", Process: server, Count: &history.Count{Key: "k"}})
	if err != nil {
		return
	}
	call.Count.Count = 0
	_ = call.End(history.OK, nil)

	r.Ended(server)
	r.Final(history.Final{ // what a fresh writer has
		Records:  map[string][]history.Record{"k": {{Sequence: 0, Timestamp: 1000, Value: "v"}}},
		Frontier: 1,
	})
	for _, x := range history.Check(r.History(), history.Options{}).Violations {
		fmt.Println(x.Rule)
	}
	// Output:
	// current at the writer
	// linearizable
}
