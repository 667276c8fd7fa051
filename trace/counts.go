package trace

// SpanCounts counts the spans of operations that were to be sent to a collector. All but
// Queued only grow.
type SpanCounts struct {
	Exported uint64 // sent, and taken
	Failed   uint64 // given up: the collector refused them, or could not be reached
	Dropped  uint64 // never sent: too many waited
	Queued   uint64 // waiting now
}
