// Package process drives real processes of annals, and breaks them: servers on a real S3 server and on a
// directory are killed, paused and passed by other writers, connections are cut, and what all clients
// were answered is held against what the log has in the end (package history).
//
//	go test -v ./fuzz/process
//
// Between a server and its clients, and between it and the S3 server, lies a proxy of ours, which
// cuts, holds up and delays connections. A nemesis chooses, by the seed, what happens next:
//
//	kill -9 of the writer, a replica, the compactor, the S3 server, each started again
//	a second writer beside the first, or two: all but one must find out and end with status 4
//	the writer is stopped (SIGSTOP) while another takes the log, and then goes on: a zombie
//	writer, replica or S3 server stand still for a while
//	connections are cut, also in the middle of bodies; bytes are late, or stay away for a while
//
// Meanwhile clients append, under conditions too and with producers' numbers, scan, count, list keys, set and
// read cursors, and follow, at the writer, at writers that were passed, and at replicas. In the
// end everything is healed and read back from a fresh writer. Nothing that was acknowledged may be
// missing, and nothing may be there that nobody appended; the other rules are those of history.Check, and
// engine.Check must find nothing, then and all the while.
//
// A seed fixes what the nemesis and the clients choose, not what the processes make of it: a
// run that failed is judged by what it left. It keeps its logs, history and store, and says where.
//
//	ANNALS_PROCESS_TIME=2m    how long each store is tormented; 8s by default, 2s with -short
//	ANNALS_PROCESS_SEED=7     the seed; by default another one each time
//	ANNALS_PROCESS_RACE=1     build the server with the race detector
//	ANNALS_PROCESS_KEEP=1     keep the files of a run that passed, too
//	ANNALS_TEST_S3=s3://...   another S3 server, which is not killed and not paused (objstore/s3/s3server)
//
// Objects that left the log are deleted after 6 minutes, the least --gc-grace: only longer runs see that.
package process
