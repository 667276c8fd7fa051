// Package compaction decides which runs to merge and merges them.
//
// Plan is pure: it maps a tree's state to jobs. A Runner does one job: it streams
// the records of neighbouring runs into new tables and returns the edit that
// replaces the runs by one; or it writes the index of a group of segments, which takes
// their lists of tables out of the MANIFEST. Nothing here commits, and nothing here deletes.
// docs/COMPACTION.md explains the policy and its bounds.
//
// A log is append-only, so that there is nothing to reconcile: a compaction
// changes where records lie and never which records there are. The invariants of
// the design that this package upholds:
//
//	I4  for one key, records stay in sequence order, none missing, none twice:
//	    counted against the manifest and the tables before an edit is returned; an index
//	    never denies a key that a segment has
//	I5  only neighbouring runs, or all runs of neighbouring segments, are merged
//	I8  what is read is checked against checksums, the tables' own properties and
//	    the manifest; a difference is an error and no edit
//	I9  inputs of a job, memory, retries and requests under way are bounded
package compaction
