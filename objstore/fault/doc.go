// Package fault wraps an object store and breaks it on purpose.
//
// What makes a remote store hard is that a request being *applied* and its being
// *answered* are two events, and either can fail or be late without the other.
// Every call through a fault.Store asks a Hook for a Plan, which can act at both
// points:
//
//	caller -> Before -> (apply to the inner store) -> Mangle, After -> caller
//
// An error from Before is a request that never arrived; an error from After is
// an answer that was lost although the request was applied; a Held plan is a
// request that is still under way when its caller has given up, and is applied
// when the test says so.
//
// A sweep over every operation of some work, each not applied, or applied and
// then failed, until a run meets no fault:
//
//	for i := 0; ; i++ {
//		rule := fault.FailNth(i, true, nil)
//		store := fault.New(mem.New(mem.Options{}), rule.Hook)
//		work(store) // may fail; then reopen and check
//		if !rule.Hit() {
//			break
//		}
//	}
//
// The exact number of requests of an operation:
//
//	var count fault.Counter
//	store := fault.New(inner, count.Hook)
//	work(store)
//	count.Assert(t, fault.Counts{Put: 1, Get: 2, BytesPut: 100, BytesGot: 70})
package fault
