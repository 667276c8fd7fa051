// Command image makes the container image of annals without a container engine: it builds the program, and does what the
// last stage of deploy/Dockerfile says.
//
//	go run ./image -o annals.tar        in the folder deploy; then: docker load -i annals.tar
//
// It knows the instructions that stage uses, and refuses others. The folders that are copied from the build stage are
// made here by what mapping says.
package main
