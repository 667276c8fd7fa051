// Package history records what many clients of a log asked over HTTP and what they were answered, and
// decides afterwards whether a correct log could have answered so.
//
// A driver makes a Recorder, tells it when server processes start, are ready and have ended, and
// wraps every request in Begin and End. When all requests have ended and no other writer can be alive, it reads the log
// from a fresh writer and tells that too (Recorder.Final). Check then judges the whole history, and
// WriteFile keeps one that failed.
//
// What a driver must keep to:
//
//   - Every value is used by one append only, so that a record tells where it comes from. The attempts of one
//     idempotent append (same producer, same number) carry the same records.
//   - Every start of a server is a process of its own, on an address of its own: the
//     recorder must know who answered. A request of which it does not has Process 0.
//   - A request whose outcome is not known for sure is Unknown, whatever the reason: it may
//     have taken effect, or may later. client.NotAppended tells for appends.
//   - Nothing is dropped by retention, cursors move forward only, and are not deleted.
//   - Keys and values are what Text makes of them.
//
// A history of a file is checked again with
//
//	ANNALS_HISTORY=file go test ./fuzz/history -run 'TestFile$' -v
package history
