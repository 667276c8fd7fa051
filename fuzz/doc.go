// Package fuzz holds the tests that attack the engine as a whole: failure cases
// that other systems really had (named F1 to F56), sweeps of one fault over every
// store operation, crashes at any point, and random operations against a model.
//
// Run them with: go test ./fuzz
//
// Beneath the faults that a test makes lies a witness: a store that sees what really
// happens to the bucket, and reports a MANIFEST that names what is not there, and the
// deletion of what somebody may still need.
//
// # Simulation
//
// TestSimulation runs the real engine in worlds in which a seed decides everything: what becomes of each request to the
// store and when, in what order timers fire, when processes begin, stop, wake up and die, what clients ask. Several
// writers take the log over from one another, replicas, a compactor, retention and the collector are at work. After every step,
// which is one event, an oracle compares what happened with a record of its own (I1 to I9). sim_world_test.go says how it works.
//
//	go test ./fuzz -run 'TestSimulation$' -v                  60 seeds of 1000 steps, and what happened how often
//	ANNALS_SIM_SEEDS=10000 ANNALS_SIM_FIRST=5000 go test ./fuzz -run 'TestSimulation$' -v -timeout 0
//	ANNALS_SIM_SEED=123 go test ./fuzz -run 'TestSimulation$' -v                               one seed, with its trace
//
// ANNALS_SIM_LENGTH is the number of steps. A seed that fails is shrunk: all but a few steps are made calm, which means that
// they do the most ordinary thing. The report has the trace and the command to run it again, with the steps that may disturb in
// ANNALS_SIM_STEPS. A seed depends on the code: the same seed after a change of the engine is another history.
// What a seed has found therefore gets a test of its own.
//
// The same seed gives the same trace, whatever the Go scheduler does (TestSimulationIsDeterministic, for ANNALS_SIM_SEEDS
// seeds from ANNALS_SIM_FIRST on). Where it does not, code of the engine depends on the scheduler: several
// goroutines that one event has woken did something of which the order matters. It is mended there: starts by base.Env.Go come one at a
// time, after everybody else has come to rest.
//
// # Histories
//
// ANNALS_FUZZ_RUNS is the number of random histories (TestRandomHistories) for each
// set of options, 10 by default: about a minute for 50. A history that fails
// is made as small as possible, and kept under testdata/rapid; it says how to run it
// again. TestSameHistory plays each of its histories under every set of options, and compares what a client sees;
// it draws 5 by default.
//
// TestMutatedObjects, TestResealedObjects and the fuzz targets beside them damage a log that has everything a log
// can have, and hold all who read it to it: the right answer, or an error that names the damage. ANNALS_FUZZ_RUNS
// scales the first two as well. The seed is printed; a mutation is printed as the 8 bytes that a corpus file of
// FuzzMutatedLog or FuzzResealedLog has for it.
//
// ANNALS_FUZZ_SWEEP=all makes the aging sweeps (TestAgingSweep...) break all operations that
// they pass over by default: looks whether MANIFEST has changed, most of all. With -short and
// with -race they break only one operation in eleven, and sizes are smaller.
package fuzz
