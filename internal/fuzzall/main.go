// Command fuzzall runs every fuzz target of the module, one after the other, each for a bounded time.
//
//	go run ./internal/fuzzall -each 1s            # as CI does
//	go run ./internal/fuzzall -each 10m           # a night
//	go run ./internal/fuzzall -run wal -each 1h   # targets with "wal" in package or name
//
// It finds the targets by itself, in the packages of the folder that it is called in and below. What a target finds
// interesting goes where go test -fuzz keeps it, and is where the next run starts; an input that fails is written to
// testdata/fuzz of its package, to be committed with what mends it.
//
// go test -fuzz instruments the standard library and all dependencies too, which takes minutes for every package. Here
// only the module's own packages are.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"time"
)

const (
	// spare is what a target may take beyond its time, to start and to end.
	spare = 2 * time.Minute
	// minimizing is the part of its time, one in so many, in which an input that is interesting may be made smaller. The
	// usual minute each would be all that a slow target does.
	minimizing = 4
)

func main() {
	each := flag.Duration("each", time.Second, "how long each target runs")
	run := flag.String("run", "", "only targets of which package.Name matches this regular expression")
	parallel := flag.Int("parallel", runtime.NumCPU(), "processes of a target at the same time")
	flag.Parse()
	r := runner{each: *each, parallel: *parallel}
	if err := r.all(*run); err != nil {
		fmt.Fprintln(os.Stderr, "fuzzall:", err)
		os.Exit(1)
	}
}

// runner runs targets.
type runner struct {
	each     time.Duration
	parallel int
	binaries string // folder of the built tests
	inputs   string // folder of what targets found interesting
	module   string
}

// all runs the targets that match a pattern. It goes on behind one that fails.
func (r *runner) all(pattern string) error {
	only, err := regexp.Compile(pattern)
	if err != nil {
		return fmt.Errorf("-run: %w", err)
	}
	if r.module, err = output("go", "list", "-m"); err != nil {
		return err
	}
	cache, err := output("go", "env", "GOCACHE")
	if err != nil {
		return err
	}
	r.inputs = filepath.Join(cache, "fuzz")
	packages, err := list("./...")
	if err != nil {
		return err
	}
	if r.binaries, err = os.MkdirTemp("", "fuzzall"); err != nil {
		return fmt.Errorf("make a folder for the built tests: %w", err)
	}
	defer func() { _ = os.RemoveAll(r.binaries) }()
	began, n := time.Now(), 0
	var failed []string
	for _, p := range packages {
		for _, name := range p.targets {
			if !only.MatchString(p.path + "." + name) {
				continue
			}
			n++
			if err := r.target(p, name); err != nil {
				failed = append(failed, fmt.Sprintf("%s.%s: %v", p.path, name, err))
			}
		}
	}
	fmt.Printf("%d targets in %v\n", n, time.Since(began).Round(time.Second))
	if n == 0 {
		return fmt.Errorf("no target matches %q", pattern)
	}
	if len(failed) > 0 {
		return fmt.Errorf("%d of %d targets failed:\n%s", len(failed), n, strings.Join(failed, "\n"))
	}
	return nil
}

// target runs one target, and prints what it did.
func (r *runner) target(p pkg, name string) error {
	binary, err := r.build(p)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), r.each+spare)
	defer cancel()
	cmd := exec.CommandContext(ctx, binary, "-test.run=^$", "-test.fuzz=^"+name+"$", "-test.fuzztime="+r.each.String(),
		"-test.fuzzminimizetime="+(r.each/minimizing).String(), fmt.Sprintf("-test.parallel=%d", r.parallel),
		"-test.fuzzcachedir="+filepath.Join(r.inputs, filepath.FromSlash(p.path)))
	cmd.Dir = p.dir // where its testdata is
	out, err := cmd.CombinedOutput()
	fmt.Printf("%-60s %s\n", strings.TrimPrefix(p.path, r.module+"/")+"."+name, summary(string(out)))
	if err == nil || ranOut(string(out)) {
		return nil
	}
	fmt.Printf("%s\n", out)
	return err
}

// build builds the tests of a package, once.
func (r *runner) build(p pkg) (string, error) {
	binary := filepath.Join(r.binaries, strings.ReplaceAll(p.path, "/", "-")+".test")
	if _, err := os.Stat(binary); err == nil {
		return binary, nil
	}
	// What go test -fuzz passes to the compiler, for fewer packages.
	_, err := output("go", "test", "-c", "-gcflags="+r.module+"/...=-d=libfuzzer", "-o", binary, p.path)
	return binary, err
}

var progress = regexp.MustCompile(`execs: \d+ .*`)

// summary is the last thing that a target said about its progress.
func summary(out string) string {
	all := progress.FindAllString(out, -1)
	if len(all) == 0 {
		return "no progress"
	}
	return all[len(all)-1]
}

var (
	timeOver = regexp.MustCompile(`(?m)^--- FAIL: \w+ \([\d.]+s\)\n\s+context deadline exceeded\n`)
	inputBad = regexp.MustCompile(`(?i)failing input|seed corpus|panic|hung|minimiz`)
)

// ranOut reports whether a target failed only because its time was over while it was at an input: the testing package
// takes that for a failure now and then. One that has found something says more.
func ranOut(out string) bool { return timeOver.MatchString(out) && !inputBad.MatchString(out) }

func output(name string, args ...string) (string, error) {
	cmd := exec.Command(name, args...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w", name, strings.Join(args, " "), err)
	}
	return strings.TrimSpace(string(out)), nil
}
