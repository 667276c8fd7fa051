package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/google/go-containerregistry/pkg/v1"
	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	"github.com/moby/buildkit/frontend/dockerfile/linter"
	"github.com/moby/buildkit/frontend/dockerfile/parser"
)

// A file is what one COPY of the last stage puts into the image.
type file struct {
	from string // its path in the build stage
	to   string // its path in the image
	uid  int    // of the owner, who is its group too
}

// A plan is what the last stage of a Dockerfile says.
type plan struct {
	files  []file
	config v1.Config
}

// parse returns the stages of a Dockerfile, each instruction checked as a build would.
func parse(in io.Reader) ([]instructions.Stage, error) {
	result, err := parser.Parse(in)
	if err != nil {
		return nil, fmt.Errorf("parse Dockerfile: %w", err)
	}
	stages, _, err := instructions.Parse(result.AST, linter.New(&linter.Config{ReturnAsError: true}))
	if err != nil {
		return nil, fmt.Errorf("parse Dockerfile: %w", err)
	}
	return stages, nil
}

// planOf reads the last stage, which must begin with nothing.
func planOf(stages []instructions.Stage) (*plan, error) {
	last := stages[len(stages)-1]
	if last.BaseName != "scratch" {
		return nil, fmt.Errorf("the last stage begins with %s; only scratch can be made here", last.BaseName)
	}
	p := new(plan)
	for _, command := range last.Commands {
		if err := p.add(command); err != nil {
			return nil, fmt.Errorf("%s: %w", command.Name(), err)
		}
	}
	return p, nil
}

func (p *plan) add(command instructions.Command) error {
	switch c := command.(type) {
	case *instructions.CopyCommand:
		return p.addCopy(c)
	case *instructions.UserCommand:
		p.config.User = c.User
	case *instructions.WorkdirCommand:
		p.config.WorkingDir = c.Path
	case *instructions.EnvCommand:
		for _, pair := range c.Env {
			p.config.Env = append(p.config.Env, pair.Key+"="+pair.Value)
		}
	case *instructions.ExposeCommand:
		p.config.ExposedPorts = make(map[string]struct{})
		for _, port := range c.Ports {
			if !strings.Contains(port, "/") {
				port += "/tcp"
			}
			p.config.ExposedPorts[port] = struct{}{}
		}
	case *instructions.EntrypointCommand:
		if c.PrependShell {
			return fmt.Errorf("there is no shell in the image: write a list")
		}
		p.config.Entrypoint = c.CmdLine
	case *instructions.CmdCommand:
		if c.PrependShell {
			return fmt.Errorf("there is no shell in the image: write a list")
		}
		p.config.Cmd = c.CmdLine
	default:
		return fmt.Errorf("is not known here")
	}
	return nil
}

// addCopy takes COPY --from=build [--chown=N:N] FROM TO, both paths absolute.
func (p *plan) addCopy(c *instructions.CopyCommand) error {
	if c.From != "build" || len(c.SourcePaths) != 1 || c.Chmod != "" {
		return fmt.Errorf("want --from=build and one path")
	}
	f := file{from: c.SourcePaths[0], to: c.DestPath}
	if c.Chown != "" {
		var gid int
		if n, err := fmt.Sscanf(c.Chown, "%d:%d", &f.uid, &gid); err != nil || n != 2 || gid != f.uid {
			return fmt.Errorf("--chown=%s: want the same number twice", c.Chown)
		}
	}
	p.files = append(p.files, f)
	return nil
}
